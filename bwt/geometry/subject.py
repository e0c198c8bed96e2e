"""What is examined: a model, fresh sequences, and the exact answers to them."""

import inspect
from dataclasses import dataclass
from typing import Protocol, TypeGuard

import torch
from torch import Tensor, nn

from bwt import streams, taps
from bwt.evaluate import METRICS, entropy_bits, measure
from bwt.tasks import Batch, Task

CHUNK = 64  # sequences captured at once: attention maps of all layers are large


@dataclass(frozen=True)
class Subject:
    task: Task
    model: nn.Module
    batch: Batch
    exact: Tensor  # [B, P, O] float64
    entropy: Tensor  # [B, P] bits, of the exact posterior

    @classmethod
    def draw(
        cls,
        task: Task,
        model: nn.Module,
        sequences: int,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> "Subject":
        generator = streams.generator("diagnostics", seed, device)
        batch = task.sample(sequences, generator=generator, device=device)
        exact = batch.exact.double()
        exact = exact / exact.sum(-1, keepdim=True)
        return cls(task, model, batch, exact, entropy_bits(exact))

    def of(self, model: nn.Module) -> "Subject":
        """Another model on the same sequences."""
        return Subject(self.task, model, self.batch, self.exact, self.entropy)

    def part(self, rows: slice) -> "Subject":
        """Some of the sequences."""
        return Subject(
            self.task, self.model, rows_of(self.batch, rows), self.exact[rows], self.entropy[rows]
        )

    @property
    def positions(self) -> Tensor:
        return self.batch.positions

    def predict(self) -> Tensor:
        """Log-probabilities [B, P, O] in float64."""
        with torch.no_grad():
            logits = self.model(self.batch.tokens, self.batch.features)
        return logits[:, self.positions].double().log_softmax(-1)

    def look(self, *patterns: str) -> dict[str, Tensor]:
        """Captured values by name. Keys and values of attention are kept at all positions, all
        else at the supervised ones."""
        kept: dict[str, list[Tensor]] = {}
        for start in range(0, len(self.batch.tokens), CHUNK):
            batch = rows_of(self.batch, slice(start, start + CHUNK))
            with torch.no_grad(), taps.capture(self.model, *patterns) as trace:
                self.model(batch.tokens, batch.features)
            for name, value in trace.items():
                kept.setdefault(name, []).append(self._at_positions(name, value))
        return {name: torch.cat(values) for name, values in kept.items()}

    def _at_positions(self, name: str, value: Tensor) -> Tensor:
        head, _, tap = name.rpartition(".attn.")
        if head and tap in ("k", "v"):
            return value
        time = 2 if head and tap in ("q", "weights", "entropy", "out") else 1
        return value.index_select(time, self.positions)

    def kl(self, log_q: Tensor) -> Tensor:
        """[B, P] bits from the exact posterior to log-probabilities [B, P, O]."""
        return measure(log_q, self.exact, self.batch.targets)[METRICS.index("kl")]

    @property
    def guess(self) -> Tensor:
        """The log-probabilities [B, P, O] of a uniform guess."""
        return torch.zeros_like(self.exact).log_softmax(-1)

    def losses(self, log_q: Tensor) -> tuple[Tensor, Tensor]:
        """KL to the exact posterior and entropy error [B], in bits, means over positions."""
        metrics = measure(log_q, self.exact, self.batch.targets)
        kl, error = (metrics[METRICS.index(name)].mean(-1) for name in ("kl", "entropy_mae"))
        return kl, error


def rows_of(batch: Batch, rows: slice) -> Batch:
    def cut(x: Tensor | None) -> Tensor | None:
        return None if x is None else x[rows]

    return batch._replace(
        tokens=batch.tokens[rows],
        features=cut(batch.features),
        targets=batch.targets[rows],
        posterior=cut(batch.posterior),
    )


def stages(model: nn.Module) -> list[str]:
    """Names of the residual stream (or hidden state) from the input to the head: the embedding,
    then each block, with the value between its attention and its MLP if it has one."""
    known = set(taps.names(model))
    names = ["embed"]
    for index in range(len(blocks(model))):
        names += [name for name in (f"blocks.{index}.mid", f"blocks.{index}") if name in known]
    return names if blocks(model) else names + [name for name in ("hidden",) if name in known]


def blocks(model: nn.Module) -> list[nn.Module]:
    return list(getattr(model, "blocks", ()))


def is_residual(block: nn.Module) -> bool:
    """Whether a block adds to its input; a layer of an LSTM takes its place."""
    return getattr(block, "residual", True)


class Heads(Protocol):
    heads: int


class Attending(Protocol):
    """A block whose attention has heads."""

    attn: Heads


def attends(block: nn.Module) -> TypeGuard[Attending]:
    """Whether it has attention that can be looked into, as ours can."""
    return "weights" in getattr(getattr(block, "attn", None), "taps", ())


def has_attention(model: nn.Module) -> bool:
    return bool(blocks(model)) and all(attends(block) for block in blocks(model))


def lacks_states(model: nn.Module) -> str | None:
    """Why there are no states to look at, if so."""
    hidden = blocks(model) or "hidden" in taps.names(model)
    if hasattr(model, "embed") and hidden:
        return None
    return "the model has no modules `embed` and `blocks`, whose outputs are its states"


def lacks_blocks(model: nn.Module) -> str | None:
    if hasattr(model, "embed") and blocks(model):
        return None
    return "the model has no modules `embed` and `blocks`, which could be changed"


def lacks_head(model: nn.Module) -> str | None:
    head = getattr(model, "head", None)
    if head is not None and len(inspect.signature(head.forward).parameters) == 2:
        return lacks_states(model)
    return "the model has no head(x, embed) that could be applied to earlier states"


def lacks_norm(model: nn.Module) -> str | None:
    if "head.norm" in taps.names(model):
        return None
    return "the model has no module `head.norm`, in front of which beliefs lie"
