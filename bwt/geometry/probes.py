"""Linear probes: what can be read off the residual stream, layer by layer.

A ridge regression is fitted on half of the sequences and scored on the other half. R2 is measured
against the mean (`r2`) and, with each position's mean taken away from states and targets alike,
against one who knows the position (`within`). Two controls: the same model with random weights,
and no model at all (`history`): a probe of what was shown, counted. What that reads as well is a
sum of the inputs, and to find it in the states says nothing about inference.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from bwt.geometry.stats import estimate, ratio, varies_within
from bwt.geometry.subject import Subject, stages
from bwt.records.estimates import Estimate
from bwt.records.geometry import Probes, ProbeScores, ProbeTarget, Reading
from bwt.tasks import Batch

RIDGE = 1e-4  # of the mean variance of a coordinate
ROUNDING = 1e-7  # of the size of the states: what is smaller in float32 is not information


class Probe(NamedTuple):
    weight: Tensor  # [C, K]
    prediction: Tensor  # [B - half, P, K], of what differs from the mean
    target: Tensor  # [B - half, P, K]
    mean: Tensor  # of the targets, [K] or [P, K]

    def r2(self) -> Estimate | None:
        """None if the target does not vary."""
        total = self.target.square().sum((1, 2))
        error = (self.target - self.prediction).square().sum((1, 2))
        unexplained = ratio(error, total)
        return unexplained and Estimate(1 - unexplained.mean, unexplained.se)


def fit(x: Tensor, y: Tensor, *, within: bool) -> Probe:
    """x [B, P, C] -> y [B, P, K]."""
    x, y = x.double(), y.double()
    half = len(x) // 2
    axes = 0 if within else (0, 1)
    noise = x[:half].square().mean() * ROUNDING**2
    x = x - x[:half].mean(axes)
    mean = y[:half].mean(axes)
    y = y - mean
    train_x, train_y = x[:half].flatten(0, 1), y[:half].flatten(0, 1)
    gram = train_x.t() @ train_x
    ridge = RIDGE * gram.diagonal().mean() + len(train_x) * noise
    ridge = ridge.clamp_min(torch.finfo(torch.float64).tiny)
    weight = torch.linalg.lstsq(
        gram + ridge * torch.eye(len(gram), dtype=gram.dtype, device=gram.device),
        train_x.t() @ train_y,
    ).solution
    return Probe(weight, x[half:] @ weight, y[half:], mean)


def targets(subject: Subject) -> dict[str, Tensor]:
    """[B, P, K] each; those that vary at all."""
    targets = {
        "posterior": subject.exact,
        "entropy": subject.entropy[..., None],
        "eliminated": (subject.exact == 0).double(),
    }
    return {name: y for name, y in targets.items() if (y - y.mean((0, 1))).abs().max() > 1e-6}


def probes(subject: Subject, untrained: Subject) -> Probes:
    names = stages(subject.model)
    wanted = targets(subject)
    shown = history(subject.batch, subject.task.vocab_size)
    states, control = (s.look(*names) for s in (subject, untrained))
    return Probes(
        stages=names,
        targets={
            target: ProbeTarget(
                varies_within=differs_within(y),
                stages=[_scores(states[n], control[n], y) for n in names],
                history=_reads(shown, y),
            )
            for target, y in wanted.items()
        },
        sequences=len(subject.batch.tokens),
    )


def differs_within(y: Tensor) -> bool:
    """Whether a target [B, P, K] is more than a function of the position."""
    return y.shape[-1] > 1 or varies_within(y[..., 0])


def history(batch: Batch, vocab_size: int) -> Tensor:
    """[B, P, C]: the token at each question, how often each was shown before, and the header."""
    first = 0 if batch.features is None else batch.features.shape[1]
    here = functional.one_hot(batch.tokens, vocab_size).double()
    counts = torch.cat((here, here.cumsum(1) - here), -1)
    counts = functional.pad(counts, (0, 0, first, 0))[:, batch.positions]
    if batch.features is None:
        return counts
    header = batch.features.double().flatten(1)[:, None].expand(-1, counts.shape[1], -1)
    return torch.cat((counts, header), -1)


def _reads(x: Tensor, y: Tensor) -> Reading:
    within = fit(x, y, within=True).r2() if differs_within(y) else None
    return Reading(fit(x, y, within=False).r2(), within)


def _scores(x: Tensor, untrained: Tensor, y: Tensor) -> ProbeScores:
    plain = fit(x, y, within=False)
    control = _reads(untrained, y)
    scores = ProbeScores(plain.r2(), control.r2)
    if differs_within(y):
        within = fit(x, y, within=True).r2()
        scores = replace(scores, within=within, untrained_within=control.within)
    if bool(((y == 0) | (y == 1)).all()):
        scores = replace(scores, accuracy=accuracy(plain), majority=majority(y))
    return scores


def accuracy(probe: Probe) -> Estimate:
    """Share of yes-no targets that the probe gets right."""
    right = (probe.prediction + probe.mean > 0.5) == (probe.target + probe.mean > 0.5)
    return estimate(right.double().mean((1, 2)))


def majority(y: Tensor) -> float:
    """The same of one who knows the position and says what is more frequent there."""
    share = y.mean(0)
    return torch.maximum(share, 1 - share).mean().item()
