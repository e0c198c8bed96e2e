"""Weights that stay fixed from some step on: the causal test of frame and precision.

`routing` freezes what decides where attention looks: the query and key rows of every block's
qkv.weight. `content` freezes what is done with what it finds: the value rows, attn.proj and the MLP
of every block. Embeddings, norms, token shifts and the head always train on. So frozen queries and
keys do not mean frozen attention: what they are computed from may still change.

Until `freeze_at` a run is bit for bit the one without `freeze` of the same seed and steps, so that
runs with none, routing and content are branches of one trajectory:

    bwt train TASK --seed 0 --steps N --decay none --freeze routing --freeze-at S

The gain after S is log2(KL at S / KL at the end) of each branch. If attention is learned by step S,
the branch with frozen routing gains about as much as the free one, and the branch with frozen
content gains little. If the branch with frozen routing loses as much, attention was still being
learned. Take a constant rate (`--decay none`): a falling one slows every branch. Each branch is
evaluated at S.
"""

import re

import torch
from torch import Tensor, nn

from bwt.runs.config import TrainConfig
from bwt.train.optim import Optimizer

QKV = re.compile(r"blocks\.\d+\.attn\.qkv\.weight")
REST = re.compile(r"blocks\.\d+\.(attn\.proj|mlp)\..*")


def frozen_rows(model: nn.Module, part: str) -> dict[str, slice]:
    """Return the rows of each weight that belong to a part, by name."""
    found = {}
    for name, p in model.named_parameters():
        if QKV.fullmatch(name):
            values = len(p) // 3 * 2  # after queries and keys
            found[name] = slice(values) if part == "routing" else slice(values, None)
        elif part == "content" and REST.fullmatch(name):
            found[name] = slice(None)
    return found


class Freeze:
    """Hook of the training step that keeps some rows of the weights fixed.

    It has no state to save: the rows it keeps are those of the first frozen step, or those with
    which a later step was resumed, and these are equal.
    """

    def __init__(self, model: nn.Module, config: TrainConfig):
        """
        Raises:
            ValueError: the model has no attention, so that freezing separates nothing.
        """
        self.start = config.freeze_at
        self.rows = {} if config.freeze == "none" else frozen_rows(model, config.freeze)
        self.kept: dict[str, Tensor] = {}
        if config.freeze != "none" and not frozen_rows(model, "routing"):
            raise ValueError(
                f"freeze {config.freeze} needs a model with attention, whose queries and keys "
                f"(routing) are compared with values and MLPs (content); {config.model} has none"
            )

    def applies(self, step: int) -> bool:
        """Return whether the step-th update (from 0) is frozen."""
        return bool(self.rows) and step >= self.start

    @torch.no_grad()
    def begin(self, weights: dict[str, Tensor], optimizer: Optimizer) -> None:
        """Prepare the first frozen step. Frozen rows lose their momentum: Muon makes the rows of a
        matrix orthogonal, so that it would turn the steps of the others."""
        self.kept = {name: weights[name][rows].clone() for name, rows in self.rows.items()}
        for name, rows in self.rows.items():
            if name in optimizer.weights:
                for x in optimizer.state(name).values():
                    if x.ndim:  # the number of steps is not one of them
                        x[rows].zero_()

    def clear_gradients(self, weights: dict[str, Tensor]) -> None:
        """Set the gradients of frozen rows to zero, before gradients are clipped."""
        for name, rows in self.rows.items():
            if (gradient := weights[name].grad) is not None:
                gradient[rows].zero_()

    def restore(self, *copies: dict[str, Tensor]) -> None:
        """Put frozen rows back after a step, as weight decay changes rows without gradients, and
        in averaged weights, which may have begun earlier."""
        for name, rows in self.rows.items():
            for weights in copies:
                if weights:
                    weights[name][rows].copy_(self.kept[name])
