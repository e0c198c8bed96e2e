"""Filtering and smoothing of hidden Markov models, written for reading."""

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
    """See bwt.ops.hmm_filter; arrays in, float64 arrays out."""
    model = _Model(observations, initial, transition, emission, lengths)
    predicted = np.zeros((model.batch, model.steps, model.states))
    filtered = np.zeros_like(predicted)
    log_likelihood = np.zeros(model.batch)
    for t in range(model.steps):
        active = model.lengths > t
        if t == 0:
            predicted[:, 0] = model.initial
        else:
            predicted[:, t] = np.einsum("bi,bij->bj", filtered[:, t - 1], model.transition)
        predicted[~active, t] = 0
        joint = predicted[:, t] * model.emissions(t)
        evidence = joint.sum(axis=-1)
        possible = evidence > 0
        filtered[possible, t] = joint[possible] / evidence[possible, None]
        log_likelihood[active & ~possible] = -np.inf
        log_likelihood[possible] += np.log(evidence[possible])
    return HMMFilterOutput(filtered, predicted, log_likelihood)


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
    filtered, _, log_likelihood = hmm_filter(
        observations, initial, transition, emission, lengths=lengths
    )
    smoothed = np.zeros_like(filtered)
    # future: proportional to p(y_t+1..T | z_t), scaled to a largest entry of 1
    future = np.ones((model.batch, model.states))
    possible = log_likelihood > -np.inf
    for t in reversed(range(model.steps)):
        active = possible & (model.lengths > t)
        if t + 1 < model.steps:
            step = np.einsum("bij,bj->bi", model.transition, model.emissions(t + 1) * future)
            continued = possible & (model.lengths > t + 1)
            future[continued] = step[continued] / step[continued].max(axis=-1, keepdims=True)
        joint = filtered[active, t] * future[active]
        smoothed[active, t] = joint / joint.sum(axis=-1, keepdims=True)
    return HMMSmoothOutput(smoothed, log_likelihood)


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
