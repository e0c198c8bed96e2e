"""Filtering and smoothing of hidden Markov models, written for reading."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


class HMMFilterOutput(NamedTuple):
    """Arrays from bwt.reference, tensors from bwt.ops."""

    filtered: Any  # [B, T, S]  p(z_t | y_1..t)
    predicted: Any  # [B, T, S]  p(z_t | y_1..t-1); the first is the initial distribution
    log_likelihood: Any  # [B]  log p(y_1..T), natural log


class HMMSmoothOutput(NamedTuple):
    smoothed: Any  # [B, T, S]  p(z_t | y_1..T)
    log_likelihood: Any  # [B]


def hmm_filter(observations, initial, transition, emission, *, lengths=None) -> HMMFilterOutput:
    """See bwt.ops.hmm_filter; arrays in, float64 arrays out.

    The unnormalised p(z_t, y_1..t) are kept with an exponent for each state, so that neither
    length nor values can make them underflow: what is 0 is impossible.
    """
    model = _Model(observations, initial, transition, emission, lengths)
    predicted = np.zeros((model.batch, model.steps, model.states))
    filtered = np.zeros_like(predicted)
    matrix = _Wide.of(model.transition)
    before, evidence = _Wide.of(model.initial), _Wide.of(np.ones(model.batch))
    for t in range(model.steps):
        active = model.lengths > t
        predicted[active, t] = (before / evidence[:, None]).floats()[active]
        joint = before * _Wide.of(model.emissions(t))
        evidence = joint.sum(-1).where(active, evidence)
        filtered[active, t] = (joint / evidence[:, None]).floats()[active]
        before = (joint[:, :, None] * matrix).sum(1)
    return HMMFilterOutput(filtered, predicted, evidence.logs())


def hmm_filter_log(observations, initial, transition, emission, *, lengths=None) -> HMMFilterOutput:
    """The same from unnormalised log-probabilities log p(z_t, y_1..t), which nothing underflows."""
    model = _Model(observations, initial, transition, emission, lengths)
    predicted = np.zeros((model.batch, model.steps, model.states))
    filtered = np.zeros_like(predicted)
    log_likelihood = np.zeros(model.batch)
    with np.errstate(divide="ignore"):
        before, log_transition = np.log(model.initial), np.log(model.transition)
        joint = before
        for t in range(model.steps):
            if t > 0:
                before = np.logaddexp.reduce(joint[:, :, None] + log_transition, axis=1)
            joint = before + np.log(model.emissions(t))
            evidence = np.logaddexp.reduce(joint, axis=-1)
            seen = (model.lengths > t) & (log_likelihood > -np.inf)
            predicted[seen, t] = np.exp(before[seen] - log_likelihood[seen, None])
            possible = seen & (evidence > -np.inf)
            filtered[possible, t] = np.exp(joint[possible] - evidence[possible, None])
            log_likelihood[seen] = evidence[seen]
    return HMMFilterOutput(filtered, predicted, log_likelihood)


def hmm_smooth(observations, initial, transition, emission, *, lengths=None) -> HMMSmoothOutput:
    """See bwt.ops.hmm_smooth; arrays in, float64 arrays out."""
    model = _Model(observations, initial, transition, emission, lengths)
    matrix, joints = _Wide.of(model.transition), []
    before = _Wide.of(model.initial)
    for t in range(model.steps):
        joints.append(before * _Wide.of(model.emissions(t)))
        before = (joints[t][:, :, None] * matrix).sum(1)
    smoothed = np.zeros((model.batch, model.steps, model.states))
    future = _Wide.of(np.ones((model.batch, model.states)))  # p(y_t+1..T | z_t)
    evidence = _Wide.of(np.ones(model.batch))
    for t in reversed(range(model.steps)):
        joint = joints[t] * future
        active = model.lengths > t
        evidence = joint.sum(-1).where(active, evidence)  # the same at every step
        smoothed[active, t] = (joint / evidence[:, None]).floats()[active]
        step = (matrix * (_Wide.of(model.emissions(t)) * future)[:, None]).sum(-1)
        future = step.where(active[:, None], future)
    return HMMSmoothOutput(smoothed, evidence.logs())


class _Model:
    """The arguments in float64, one set of parameters for each sequence."""

    def __init__(self, observations, initial, transition, emission, lengths):
        self.observations = np.asarray(observations)
        self.batch, self.steps = self.observations.shape
        initial, transition, emission = (
            np.asarray(x, np.float64) for x in (initial, transition, emission)
        )
        self.states, self.symbols = emission.shape[-2:]
        B, S, V = self.batch, self.states, self.symbols
        self.initial = np.broadcast_to(initial, (B, S))
        self.transition = np.broadcast_to(transition, (B, S, S))
        self.emission = np.broadcast_to(emission, (B, S, V))
        self.lengths = np.full(B, self.steps) if lengths is None else np.asarray(lengths)

    def emissions(self, t) -> np.ndarray:
        """p(y_t | z_t = .) [B, S]; ones where y_t is missing."""
        y = self.observations[:, t]
        # Beyond a sequence's length anything may stand.
        missing = (y == -1) | (self.lengths <= t)
        found = self.emission[np.arange(self.batch), :, np.where(missing, 0, y)]
        return np.where(missing[:, None], 1.0, found)


@dataclass(frozen=True)
class _Wide:
    """Non-negative numbers mantissa * 2^exponent; the exponent of 0 is as good as -infinity."""

    mantissa: np.ndarray
    exponent: np.ndarray  # int64

    @staticmethod
    def of(numbers, exponent=0) -> "_Wide":
        mantissa, own = np.frexp(numbers)
        return _Wide(mantissa, np.where(mantissa > 0, own + np.int64(exponent), _NOTHING))

    def __getitem__(self, place) -> "_Wide":
        return _Wide(self.mantissa[place], self.exponent[place])

    def __mul__(self, other) -> "_Wide":
        return _Wide.of(self.mantissa * other.mantissa, self.exponent + other.exponent)

    def __truediv__(self, other) -> "_Wide":
        """0 where the other is 0."""
        divisor = np.where(other.mantissa > 0, other.mantissa, np.inf)
        return _Wide.of(self.mantissa / divisor, self.exponent - other.exponent)

    def sum(self, axis) -> "_Wide":
        largest = self.exponent.max(axis, keepdims=True)
        aligned = _scaled(self.mantissa, self.exponent - largest)
        return _Wide.of(aligned.sum(axis), largest.squeeze(axis))

    def where(self, mask, other) -> "_Wide":
        return _Wide(
            np.where(mask, self.mantissa, other.mantissa),
            np.where(mask, self.exponent, other.exponent),
        )

    def floats(self) -> np.ndarray:
        return _scaled(self.mantissa, self.exponent)

    def logs(self) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.where(
                self.mantissa > 0, np.log(self.mantissa) + self.exponent * np.log(2.0), -np.inf
            )


_NOTHING = np.int64(-(2**60))  # sums of two of them do not overflow


def _scaled(mantissa, exponent) -> np.ndarray:
    return np.ldexp(mantissa, np.clip(exponent, -3000, 3000).astype(np.int32))
