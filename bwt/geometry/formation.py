"""How a look-up comes about in training.

Nothing helps a model on its way: who knows which values were seen, or whether this key was, and not
both, can only guess. After m of V values an answer is one of them with probability m / V if keys
are drawn uniformly, so that each value, seen or not, has 1 / V; any other share of repeated keys
makes the values seen worth something by themselves. A look-up takes a value that knows its key
(from a head that looks from the value to the key beside it, or from a token shift, which does it
for free) and a question that finds the value whose key is its own. At each checkpoint: how much
attention the best head of each layer gives to the one and to the other, and the bits lost on
questions whose key was shown before and on those about new keys.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bwt import taps
from bwt.geometry.attention import mass_on
from bwt.geometry.stats import pooled, ratio
from bwt.geometry.subject import CHUNK, Subject, blocks, rows_of
from bwt.records.estimates import Estimate
from bwt.records.geometry import Formation, FormationRow, Skipped


def formation(
    subject: Subject, steps: list[int], load: Callable[[int], nn.Module], tick: Callable[[], None]
) -> Formation | Skipped:
    """load: gives the model as it was at a step."""
    if subject.task.pairs is None:
        return Skipped("the task has no pairs of keys and values to look up")
    matching = subject.task.roles(subject.batch).get("matching")  # [B, P, T]
    if matching is None:
        return Skipped("the task has no group `matching`, of the pairs that answer a question")
    known = matching.any(-1)
    if not bool(known.any()):
        return Skipped("no key is asked about that was shown before")
    values, keys = (x.to(known.device) for x in subject.task.pairs)
    places = Places(values, keys, matching, known)
    rows = []
    for step in steps:
        rows.append(_row(step, subject.of(load(step)), places))
        tick()
    share = matching[..., values].sum(-1) / (subject.positions + 1)
    return Formation(
        rows=rows,
        uniform_known=_known(subject.kl(subject.guess), places).mean,
        uniform_binding=(1 / (values + 1.0)).mean().item(),
        uniform_answer=share[known].mean().item(),
        sequences=len(subject.batch.tokens),
    )


class Places(NamedTuple):
    values: Tensor  # [n] positions
    keys: Tensor  # [n] of the keys they belong to
    matching: Tensor  # [B, P, T] the pairs that answer a question
    known: Tensor  # [B, P] the questions that have one


def _row(step: int, subject: Subject, places: Places) -> FormationRow:
    kl = subject.kl(subject.predict())
    new = ratio(*_sums(kl, ~places.known))
    return FormationRow(step, _known(kl, places), new, *attention_of(subject, places))


def _known(kl: Tensor, places: Places) -> Estimate:
    """There are such questions: without any, nothing is formed."""
    return pooled(*_sums(kl, places.known))


def _sums(kl: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Of each sequence: the bits of these questions, and how many there are."""
    return (kl * mask).sum(-1), mask.sum(-1).double()


def attention_of(subject: Subject, places: Places) -> tuple[list[float], list[float], list[float]]:
    """For each layer, of its best head: attention from values to their keys, and from questions
    that can be answered to their keys of before and to the answers."""
    nothing = places.matching.new_zeros((), dtype=torch.float64)
    layers = len(blocks(subject.model))
    bound, same, answered = ([nothing] * layers for _ in range(3))  # [H] each, in the end
    for rows, weights in _maps(subject):
        matching, known = places.matching[rows], places.known[rows, None]
        for i, w in enumerate(weights):
            bound[i] = bound[i] + w[:, :, places.values, places.keys].double().mean(-1).sum(0)
            asked = w[:, :, subject.positions]  # [B, H, P, T]
            for total, at in ((same, places.keys), (answered, places.values)):
                mass = mass_on(asked[..., at], matching[..., at])  # [B, H, P]
                total[i] = total[i] + (mass * known).sum((0, 2))
    sequences, questions = len(places.known), places.known.sum()

    def best(totals: list[Tensor], count: int | Tensor) -> list[float]:
        return [(x / count).max().item() for x in totals]

    return best(bound, sequences), best(same, questions), best(answered, questions)


def _maps(subject: Subject) -> Iterator[tuple[slice, list[Tensor]]]:
    """Attention weights [B, H, T, T] of every layer, for some sequences at a time."""
    names = [f"blocks.{i}.attn.weights" for i in range(len(blocks(subject.model)))]
    for start in range(0, len(subject.batch.tokens), CHUNK):
        rows = slice(start, start + CHUNK)
        batch = rows_of(subject.batch, rows)
        with torch.no_grad(), taps.capture(subject.model, *names) as trace:
            subject.model(batch.tokens, batch.features)
        yield rows, [trace[name] for name in names]
