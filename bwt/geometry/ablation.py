"""What breaks when a part is taken out, in bits.

`zero` removes what a part adds to the residual stream (of a whole block: skips it); `mean` replaces
it by its mean over sequences at the position, which keeps what does not depend on the sequence.
A layer of an LSTM has no stream to add to: its output is replaced, or its memory, the state it
carries from one position to the next.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from bwt.geometry.bar import Bar
from bwt.geometry.causal import interchange, removal
from bwt.geometry.intervene import Edit
from bwt.geometry.key_edits import EDITS, edit_keys, places
from bwt.geometry.recording import Recording
from bwt.geometry.stats import estimate
from bwt.geometry.subject import Subject, attends, blocks, is_residual
from bwt.models.lstm import Layer
from bwt.records.geometry import AblatedPart, Ablation

MODES = ("zero", "mean")


class Unit(NamedTuple):
    """A part that can be taken out."""

    layer: int
    part: str  # "block", the name of a sub-block, "head"; of an LSTM "layer", "memory"
    head: int | None
    path: str
    heads: int = 1  # of its attention


def units(model: nn.Module) -> Iterator[Unit]:
    for i, block in enumerate(blocks(model)):
        if not is_residual(block):
            yield Unit(i, "layer", None, f"blocks.{i}")
            if isinstance(block, Layer):
                yield Unit(i, "memory", None, f"blocks.{i}")
            continue
        yield Unit(i, "block", None, f"blocks.{i}")
        parts = [name for name, part in block.named_children() if _gives_a_tensor(name, part)]
        for part in parts:
            yield Unit(i, part, None, f"blocks.{i}.{part}")
        if attends(block):
            for head in range(block.attn.heads):
                yield Unit(i, "head", head, f"blocks.{i}.attn.proj", block.attn.heads)


def _gives_a_tensor(name: str, part: nn.Module) -> bool:
    """And more than a norm. Lists are never called, and some modules of torch return several."""
    called = type(part).forward is not nn.Module.forward
    several = isinstance(part, (nn.RNNBase, nn.MultiheadAttention))
    return called and not several and not name.startswith("norm")


def edit_for(unit: Unit, mode: str) -> Edit:
    def kept(update: Tensor) -> Tensor:
        """What remains of an update."""
        return update.mean(0, keepdim=True) if mode == "mean" else update.new_zeros(())

    def block(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return x + kept(y - x)

    def part(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return kept(y).expand_as(y)

    def memory(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        assert isinstance(module, Layer)  # see units
        return _forgetful(module, x, kept)

    if unit.head is not None:
        return _without_head(unit.head, unit.heads, kept)
    return {"block": block, "memory": memory}.get(unit.part, part)


def _without_head(head: int, heads: int, kept: Callable[[Tensor], Tensor]) -> Edit:
    """Of the projection behind attention: what is `kept` of the share that one head has in it."""

    def edit(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        size = x.shape[-1] // heads
        own = slice(head * size, (head + 1) * size)
        update = functional.linear(x[..., own], module.get_parameter("weight")[:, own])
        return y - (update - kept(update))

    return edit


def _forgetful(layer: Layer, x: Tensor, kept: Callable[[Tensor], Tensor]) -> Tensor:
    """The layer's output if only what is `kept` of its state reaches the next position."""
    state, outputs = layer.rest(len(x), x), []
    for now in x.split(1, 1):
        h, c = (kept(s).expand_as(s).contiguous() for s in state)
        outputs.append(layer.run(now, (h, c))[0])
        _, state = layer.run(now, state)
    return torch.cat(outputs, 1)


def ablate_parts(subject: Subject, tick: Callable[[], None] = lambda: None) -> list[AblatedPart]:
    """Every block, sub-block and head, by zero and by mean."""
    intact = Recording.of(subject)
    base_kl, base_error = subject.losses(intact.log_q)
    rows = []
    for unit in units(subject.model):
        for mode in MODES:
            kl, error = subject.losses(intact.predict(unit.path, edit_for(unit, mode)))
            rows.append(
                AblatedPart(
                    layer=unit.layer,
                    part=unit.part,
                    head=unit.head,
                    mode=mode,
                    kl_added=estimate(kl - base_kl),
                    entropy_mae_added=estimate(error - base_error),
                    entropy_mae_factor=(error.mean() / base_error.mean()).item(),
                )
            )
            tick()
    return rows


def ablation(subject: Subject, bar: Bar) -> Ablation:
    """All that changes the model: parts taken out, keys changed, subspaces removed, states
    interchanged."""
    kl, entropy_mae = subject.losses(subject.predict())
    bar.show("taking parts out")
    parts = ablate_parts(subject, bar.tick)
    bar.show("changing keys")
    keys = edit_keys(subject, bar.tick)
    bar.show("removing subspaces")
    removed = removal(subject, bar.tick)
    bar.show("interchanging states")
    return Ablation(
        kl=estimate(kl),
        entropy_mae=estimate(entropy_mae),
        parts=parts,
        sequences=len(subject.batch.tokens),
        removal=removed,
        interchange=interchange(subject, bar.tick),
        keys=keys,
    )


def work(subject: Subject) -> int:
    """How often that ticks."""
    parts = len(MODES) * len(list(units(subject.model)))
    return parts + len(EDITS) * len(places(subject)) + 2 * len(blocks(subject.model))
