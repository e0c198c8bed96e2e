"""Weights that stay as they are from some step on: the causal test of frame and precision.

`routing` is what decides where attention looks: the query and key rows of every block's qkv.weight.
`content` is what is done with what it finds: the value rows, attn.proj and the MLP of every block.
Embeddings, norms, token shifts and the head always train on. So frozen routing does not mean frozen
maps: what queries and keys are made from may still change.

How to read it. Until `freeze_at` a run is bit for bit the one without `freeze` of the same seed and
the same steps, so that runs with none, routing and content are branches of one trajectory:

    bwt train TASK --seed 0 --steps N --decay none --freeze routing --freeze-at S

What is still gained after S is log2(KL at S / KL at the end), for each branch. If attention is done
at S, the branch with frozen routing gains about what the free one does, and the one with frozen
content gains little; if that with frozen routing loses as much, precision came through routing,
too. Take a constant rate (`--decay none`): a falling one stills every branch. A branch evaluates
itself at S; the schedule and the steps of evaluation follow from N, which all have in common.
"""

import re

import torch
from torch import Tensor, nn

from bwt import models
from bwt.runs.config import TrainConfig
from bwt.tasks import Task
from bwt.train.optim import Optimizer
from bwt.train.weights import Place, Weights

QKV = re.compile(r"blocks\.\d+\.attn\.qkv\.weight")
REST = re.compile(r"blocks\.\d+\.(attn\.proj|mlp)\..*")


def entries(model: nn.Module, part: str) -> dict[str, slice]:
    """Name of a parameter -> its rows that belong to the part."""
    found = {}
    for name, p in model.named_parameters():
        if QKV.fullmatch(name):
            values = len(p) // 3 * 2  # after queries and keys
            found[name] = slice(values) if part == "routing" else slice(values, None)
        elif part == "content" and REST.fullmatch(name):
            found[name] = slice(None)
    return found


def check(config: TrainConfig, task: Task) -> None:
    """
    Raises:
        ValueError: the model has no attention, so that nothing is told apart by freezing.
    """
    if config.freeze == "none":
        return
    with torch.device("meta"):
        model = models.build_for(task, config.model, **config.model_options)
    if not entries(model, "routing"):
        raise ValueError(
            f"freeze {config.freeze} needs a model with attention, whose queries and keys "
            f"(routing) are set against values and MLPs (content); {config.model} has none"
        )


class Frozen:
    """Nothing, before its step. No state of its own to save: what is kept are the weights at the
    first step that is frozen, or at which a run goes on behind it, and these are the same."""

    def __init__(self, model: nn.Module, weights: Weights, config: TrainConfig):
        self.weights, self.start = weights, config.freeze_at
        chosen = {} if config.freeze == "none" else entries(model, config.freeze)
        self.columns = [
            _columns(weights.layout.places[name], rows) for name, rows in chosen.items()
        ]
        self.kept: list[Tensor] = []

    def applies(self, step: int) -> bool:
        """To the step-th update (from 0)."""
        return bool(self.columns) and step >= self.start

    @torch.no_grad()
    def begin(self, optimizer: Optimizer) -> None:
        """Before the first step that is frozen. What is frozen loses its momentum, too: it would
        turn the steps of others, as Muon makes the rows of a matrix orthogonal."""
        self.kept = [self.weights.master[:, columns].clone() for columns in self.columns]
        layout = self.weights.layout
        for columns in self.columns:
            for part, buffer in (
                (layout.adamw, optimizer.exp_avg),
                (layout.muon, optimizer.momentum),
            ):
                if part.start <= columns.start < part.stop:
                    buffer[:, columns.start - part.start : columns.stop - part.start] = 0

    def hold(self) -> None:
        """Before gradients are clipped: what is frozen has none."""
        for columns in self.columns:
            if columns.start < self.weights.layout.trained.stop:
                self.weights.gradient[:, columns].zero_()

    def put_back(self, mean: Tensor | None) -> None:
        """After the step: weight decay moves what has no gradient, too. And in the weights that are
        averaged, which may have begun before."""
        for columns, kept in zip(self.columns, self.kept, strict=True):
            self.weights.master[:, columns].copy_(kept)
            if mean is not None:
                mean[:, columns].copy_(kept)


def _columns(place: Place, rows: slice) -> slice:
    """Of a buffer, that hold these rows of a parameter."""
    start, stop, _ = rows.indices(place.shape[0])
    across = place.size // place.shape[0]
    return slice(place.start + start * across, place.start + stop * across)
