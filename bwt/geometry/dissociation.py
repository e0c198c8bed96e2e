"""Frame and precision: does attention settle before the predictions are precise?

Over the checkpoints, on the same sequences: how far the attention maps are from those of two late
checkpoints, the references (see bwt/geometry/settling.py), how far the predictions are from exact
Bayes, and how the states of the last layer spread out. Heads count by what they are worth, in bits
lost with their keys alike at the end: one that nothing depends on may drift for ever. Where none is
worth anything, or keys cannot be changed, all count alike.

    distance    1 - CKA to the states of the references, the mean of both
    spread      scatter of the most certain quarter of the states about its own centre, as a share
                of the scatter of all states: small when confident states are bunched together
    pc1         variance along the first principal component
    entropy_r2  how well the best linear coordinate gives the posterior entropy, on other sequences
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor, nn

from bwt.geometry import stats
from bwt.geometry.probes import fit
from bwt.geometry.settling import slopes
from bwt.geometry.subject import Subject, blocks, has_attention, stages
from bwt.records.estimates import mean_of
from bwt.records.geometry import Checkpoint, Dissociation, Slopes

WORTHLESS = 1e-3  # bits: what the dearest head must cost for heads to be told apart


def dissociation(
    subject: Subject,
    steps: list[int],
    load: Callable[[int], nn.Module],
    tick: Callable[[], None],
    decay: str | None = None,
    worth: Tensor | None = None,
) -> Dissociation:
    """load: gives the model as it was at a step. The first step is 0, before training; the last two
    of the others are the references. worth: of each head at the end, see
    key_edits.worth_of_heads."""
    late = steps[1:][-2:]
    references = _References([_Snapshot(subject.of(load(step))) for step in late])
    shares = _shares(worth)
    rows, ways, kl = [], [], []
    for step in steps:
        snapshot = _Snapshot(subject.of(load(step)))
        row = _describe(step, snapshot, subject)
        if step not in late:
            row = replace(row, distance=references.states_to(snapshot))
            if snapshot.maps:
                ways.append(references.maps_to(snapshot))
                row = replace(
                    row,
                    attention=stats.estimate(_by(shares, ways[-1])),
                    attention_layers=ways[-1].mean((0, 2)).tolist(),
                )
        rows.append(row)
        kl.append(snapshot.kl)
        tick()
    found = Dissociation(rows, late, len(subject.batch.tokens), decay=decay)
    if not ways or len(late) < 2:
        return found
    guess, _ = subject.losses(subject.guess)
    scaled = no_worse_than(guess, torch.stack(kl, 1))

    def slopes_by(shares: Tensor | None) -> Slopes | None:
        distance = torch.stack([_by(shares, way) for way in ways], 1)
        return slopes(steps, distance, scaled, references.tremor(shares))

    return replace(
        found,
        slopes=slopes_by(shares),
        slopes_alike=slopes_by(None),
        shares=None if shares is None else shares.tolist(),
        floor=references.tremor(shares),
    )


def _shares(worth: Tensor | None) -> Tensor | None:
    """[layers, heads] of what all heads are worth together; None: all count alike."""
    if worth is None or not worth.max() > WORTHLESS:
        return None
    return worth / worth.sum()


def _by(shares: Tensor | None, ways: Tensor) -> Tensor:
    """[B] of [B, layers, heads]."""
    return ways.mean((1, 2)) if shares is None else (ways * shares).sum((1, 2))


def no_worse_than(guess: Tensor, kl: Tensor) -> Tensor:
    """KL [B, n] with columns scaled down to the mean of a uniform guess [B] where theirs is above:
    to come down from wild predictions to that guess is not to learn."""
    return kl * (guess.mean() / kl.mean(0)).clamp_max(1)


class _Snapshot:
    def __init__(self, subject: Subject):
        last = stages(subject.model)[-1]
        patterns = [last]
        if has_attention(subject.model):
            patterns += [f"blocks.{i}.attn.weights" for i in range(len(blocks(subject.model)))]
        trace = subject.look(*patterns)
        self.states = trace.pop(last)
        self.maps: list[Tensor] = list(trace.values())  # [B, H, P, T] each
        self.kl, self.entropy_mae = subject.losses(subject.predict())


class _References:
    """Two late checkpoints, or the only one there is as both."""

    def __init__(self, late: list[_Snapshot]):
        self.first, self.second = late[0], late[-1]

    @cached_property
    def between(self) -> Tensor:
        """[B, layers, heads] bits from one to the other."""
        return _divergence(self.first, self.second)

    def maps_to(self, now: _Snapshot) -> Tensor:
        """[B, layers, heads] bits: the product of the ways to both."""
        ways = _divergence(now, self.first) + _divergence(now, self.second)
        return (ways - self.between) / 2

    def states_to(self, now: _Snapshot) -> float:
        alike = [stats.cka(now.states, x.states) for x in (self.first, self.second)]
        return 1 - sum(alike) / 2

    def tremor(self, shares: Tensor | None) -> float:
        """The variance of the maps about one place, if that is all the two differ by; they differ
        by twice as much."""
        return _by(shares, self.between).mean().item() / 2


def _divergence(a: _Snapshot, b: _Snapshot) -> Tensor:
    """Jensen-Shannon, [B, layers, heads], mean over questions."""
    pairs = zip(a.maps, b.maps, strict=True)
    return torch.stack([stats.jensen_shannon(x, y).mean(2) for x, y in pairs], 1)


def _describe(step: int, now: _Snapshot, subject: Subject) -> Checkpoint:
    r2 = None
    if subject.entropy.std() > 1e-6:
        r2 = fit(now.states, subject.entropy[..., None], within=False).r2()
    return Checkpoint(
        step=step,
        kl=stats.estimate(now.kl),
        entropy_mae=stats.estimate(now.entropy_mae),
        distance=None,
        spread=spread(now.states, subject.entropy),
        pc1=stats.pca(now.states).share[0].item(),
        entropy_r2=mean_of(r2),
    )


def spread(states: Tensor, entropy: Tensor) -> float:
    x, entropy = states.flatten(0, 1).double(), entropy.flatten()
    certain = x[entropy.argsort(stable=True)[: max(2, len(x) // 4)]]
    scatter = [(z - z.mean(0)).square().sum(-1).mean() for z in (certain, x)]
    return (scatter[0] / scatter[1]).sqrt().item() if scatter[1] > 0 else 0.0
