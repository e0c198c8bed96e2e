"""Linear probes: what can be read off the residual stream, layer by layer.

A ridge regression is fitted on half of the sequences and scored on the other half. R2 is measured
against the mean (`r2`) and, with each position's mean taken away from states and targets alike,
against one who knows the position (`within`). Two controls: labels of other sequences at the same
position (`shuffled`, within position), and the same model with random weights.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from bwt.geometry.stats import estimate, ratio, varies_within
from bwt.geometry.subject import Subject, stages
from bwt.records.estimates import Estimate
from bwt.records.geometry import Probes, ProbeScores, ProbeTarget

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


def fit(x: Tensor, y: Tensor, *, within: bool, order: Tensor | None = None) -> Probe:
    """x [B, P, C] -> y [B, P, K]. order: a permutation of the sequences of the first half, to give
    each the labels of another."""
    x, y = x.double(), y.double()
    half = len(x) // 2
    axes = 0 if within else (0, 1)
    noise = x[:half].square().mean() * ROUNDING**2
    x = x - x[:half].mean(axes)
    mean = y[:half].mean(axes)
    y = y - mean
    train_x, train_y = x[:half], y[:half] if order is None else y[:half][order]
    train_x, train_y = train_x.flatten(0, 1), train_y.flatten(0, 1)
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
    generator = torch.Generator().manual_seed(0)
    half = len(subject.batch.tokens) // 2
    order = torch.randperm(half, generator=generator).to(subject.positions.device)
    names = stages(subject.model)
    wanted = targets(subject)
    states, control = (s.look(*names) for s in (subject, untrained))
    return Probes(
        stages=names,
        targets={
            target: ProbeTarget(
                varies_within=differs_within(y),
                stages=[_scores(states[n], control[n], y, order) for n in names],
            )
            for target, y in wanted.items()
        },
        sequences=len(subject.batch.tokens),
    )


def differs_within(y: Tensor) -> bool:
    """Whether a target [B, P, K] is more than a function of the position."""
    return y.shape[-1] > 1 or varies_within(y[..., 0])


def _scores(x: Tensor, untrained: Tensor, y: Tensor, order: Tensor) -> ProbeScores:
    plain = fit(x, y, within=False)
    scores = ProbeScores(plain.r2(), fit(untrained, y, within=False).r2())
    if differs_within(y):
        scores = replace(
            scores,
            within=fit(x, y, within=True).r2(),
            untrained_within=fit(untrained, y, within=True).r2(),
            shuffled_within=fit(x, y, within=True, order=order).r2(),
        )
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
