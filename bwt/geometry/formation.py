"""How a look-up comes about in training.

Nothing helps a model on its way: who knows which values were seen, or whether this key was, and not
both, can only guess. A look-up takes a value that knows its key (from a head that looks from the
value to the key beside it, or from a token shift, which does it for free) and a question that finds
the value whose key is its own. At each checkpoint: how much attention the best head of each layer
gives to the one and to the other, and the bits lost on questions whose key was shown before and on
those about new keys.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from bwt import taps
from bwt.evaluate import METRICS, measure
from bwt.geometry.attention import mass_on
from bwt.geometry.stats import ratio
from bwt.geometry.subject import CHUNK, Subject, blocks, rows_of
from bwt.records.estimates import Estimate
from bwt.records.geometry import Formation, FormationRow, Skipped

KL = METRICS.index("kl")


def formation(
    subject: Subject, steps: list[int], load: Callable[[int], nn.Module], tick: Callable[[], None]
) -> Formation | Skipped:
    """load: gives the model as it was at a step."""
    if subject.task.pairs is None:
        return Skipped("the task has no pairs of keys and values to look up")
    matching = subject.task.roles(subject.batch)["matching"]  # [B, P, T]
    known = matching.any(-1)
    if not bool(known.any()):
        return Skipped("no key is asked about that was shown before")
    rows = []
    for step in steps:
        rows.append(_row(step, subject.of(load(step)), matching, known))
        tick()
    visible = torch.arange(subject.task.seq_len, device=known.device) <= subject.positions[:, None]
    share = (matching & visible).sum(-1) / visible.sum(-1)
    values, _ = subject.task.pairs
    return Formation(
        rows=rows,
        uniform_binding=(1 / (values + 1.0)).mean().item(),
        uniform_matching=share[known].mean().item(),
        sequences=len(subject.batch.tokens),
    )


def _row(step: int, subject: Subject, matching: Tensor, known: Tensor) -> FormationRow:
    kl = measure(subject.predict(), subject.exact, subject.batch.targets)[KL]
    binding, match = attention_of(subject, matching, known)
    return FormationRow(step, _where(kl, known), _where(kl, ~known), binding, match)


def _where(kl: Tensor, mask: Tensor) -> Estimate | None:
    return ratio((kl * mask).sum(-1), mask.sum(-1).double())


def attention_of(
    subject: Subject, matching: Tensor, known: Tensor
) -> tuple[list[float], list[float]]:
    """For each layer, of its best head: attention from values to their keys, and from questions
    that can be answered to the pairs that answer them."""
    values, keys = (x.to(known.device) for x in subject.task.pairs)
    layers = len(blocks(subject.model))
    bound, matched = [0.0] * layers, [0.0] * layers
    for rows, weights in _maps(subject):
        for i, w in enumerate(weights):
            bound[i] = bound[i] + w[:, :, values, keys].double().mean(-1).sum(0)  # [H]
            mass = mass_on(w[:, :, subject.positions], matching[rows])  # [B, H, P]
            matched[i] = matched[i] + (mass * known[rows, None]).sum((0, 2))
    sequences, questions = len(known), known.sum()
    return (
        [(x / sequences).max().item() for x in bound],
        [(x / questions).max().item() for x in matched],
    )


def _maps(subject: Subject) -> Iterator[tuple[slice, list[Tensor]]]:
    """Attention weights [B, H, T, T] of every layer, for some sequences at a time."""
    names = [f"blocks.{i}.attn.weights" for i in range(len(blocks(subject.model)))]
    for start in range(0, len(subject.batch.tokens), CHUNK):
        rows = slice(start, start + CHUNK)
        batch = rows_of(subject.batch, rows)
        with torch.no_grad(), taps.capture(subject.model, *names) as trace:
            subject.model(batch.tokens, batch.features)
        yield rows, [trace[name] for name in names]
