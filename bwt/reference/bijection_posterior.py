"""Exact posterior over bijections, written for reading."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


class BijectionPosterior(NamedTuple):
    """Arrays from bwt.reference, tensors from bwt.ops."""

    posterior: Any  # [B, K, V]  p(pi(keys[t]) = . | pairs before t)
    entropy: Any  # [B, K]  of each row, in bits
    log_evidence: Any  # [B, K]  log p(values[0..t] | keys[0..t]), natural log


def contradiction(sequence, step, key, value) -> str:
    return (
        f"bijection_posterior: sequence {sequence} contradicts itself at step {step}: "
        f"value {value} for key {key} has probability zero given the pairs before it; "
        "mend the pair, or give a channel under which it is possible"
    )


def bijection_posterior(keys, values, num_symbols, *, channel=None) -> BijectionPosterior:
    """See bwt.ops.bijection_posterior; arrays in, float64 arrays out."""
    keys, values = np.asarray(keys), np.asarray(values)
    batch, length = keys.shape
    posterior = np.zeros((batch, length, num_symbols))
    log_evidence = np.zeros((batch, length))
    for b in range(batch):
        known: Any = {} if channel is None else NoisyEvidence(np.asarray(channel, dtype=np.float64))
        log_total = 0.0
        for t, (key, value) in enumerate(zip(keys[b].tolist(), values[b].tolist(), strict=True)):
            if channel is None:
                posterior[b, t] = _noiseless_row(key, known, num_symbols)
                log_predictive = _log(posterior[b, t, value])
                known[key] = value
            else:
                posterior[b, t], log_predictive = known.row(key, value)
                known.observe(key, value)
            if log_predictive == -np.inf:
                raise ValueError(contradiction(b, t, key, value))
            log_total += log_predictive
            log_evidence[b, t] = log_total
    return BijectionPosterior(posterior, _entropy_bits(posterior), log_evidence)


def _noiseless_row(key, known, num_symbols) -> np.ndarray:
    """One-hot if the key was seen, else uniform over the values that were not."""
    row = np.zeros(num_symbols)
    if key in known:
        row[known[key]] = 1.0
    else:
        unused = sorted(set(range(num_symbols)) - set(known.values()))
        row[unused] = 1.0 / len(unused)
    return row


@dataclass(frozen=True)
class Scaled:
    """mantissa * 2^exponent. Likelihoods of many observations leave the range of float64, and
    their logarithms would lose digits as they grow."""

    mantissa: np.ndarray  # 0 or 0.5 <= . < 1
    exponent: np.ndarray

    def __getitem__(self, index) -> "Scaled":
        return Scaled(self.mantissa[index], self.exponent[index])

    def __setitem__(self, index, new: "Scaled") -> None:
        self.mantissa[index], self.exponent[index] = new.mantissa, new.exponent


BELOW_ALL = -(1 << 60)  # the exponent of zero, which never decides how a sum is aligned


def scaled(x, exponent=0) -> Scaled:
    mantissa, shift = np.frexp(x)
    return Scaled(mantissa, np.where(mantissa == 0.0, BELOW_ALL, exponent + shift.astype(int)))


def _product(a: Scaled, b: Scaled) -> Scaled:
    return scaled(a.mantissa * b.mantissa, a.exponent + b.exponent)


def _sum(x: Scaled) -> Scaled:
    """Over the first axis."""
    largest = x.exponent.max(axis=0)
    return scaled(_at_exponent(x, largest).sum(axis=0), largest)


def _plus(a: Scaled, b: Scaled) -> Scaled:
    largest = np.maximum(a.exponent, b.exponent)
    return scaled(_at_exponent(a, largest) + _at_exponent(b, largest), largest)


def _at_exponent(x: Scaled, exponent) -> np.ndarray:
    return np.ldexp(x.mantissa, np.clip(x.exponent - exponent, -4096, 4096))


class NoisyEvidence:
    """What a sequence of observations through a channel says of the bijection."""

    def __init__(self, channel):
        self.num_symbols = len(channel)
        self.channel = scaled(channel)
        self.likelihood = {}  # of a seen key's observations, by its value

    def observe(self, key, value) -> None:
        before = self.likelihood.get(key, scaled(np.ones(self.num_symbols)))
        self.likelihood[key] = _product(before, self.channel[:, value])

    def row(self, key, value) -> tuple[np.ndarray, float]:
        """p(pi(key) = v) ~ likelihood of the key's own observations at v, times the weight of all
        ways to give the other seen keys distinct values that leave v free. Also the logarithm of
        the probability that the key shows the value."""
        others = [like for other, like in self.likelihood.items() if other != key]
        weight = _subset_weights(others, self.num_symbols)
        subsets = np.arange(1 << self.num_symbols)
        free = [_sum(weight[subsets >> v & 1 == 0]) for v in range(self.num_symbols)]
        row = Scaled(np.array([x.mantissa for x in free]), np.array([x.exponent for x in free]))
        if key in self.likelihood:
            row = _product(self.likelihood[key], row)
        total, shown = _sum(row), _sum(_product(row, self.channel[:, value]))
        posterior = _at_exponent(row, total.exponent) / total.mantissa
        shift = shown.exponent - total.exponent
        return posterior, _log(shown.mantissa / total.mantissa) + np.log(2.0) * shift


def _subset_weights(likelihoods, num_symbols) -> Scaled:
    """The summed likelihood of giving each key its own value, using exactly the values in S, for
    every subset S (a bit mask)."""
    subsets = np.arange(1 << num_symbols)
    weight = scaled((subsets == 0).astype(float))
    for likelihood in likelihoods:
        grown = scaled(np.zeros(1 << num_symbols))
        for v in range(num_symbols):
            without = subsets[subsets >> v & 1 == 0]
            part = _product(weight[without], likelihood[v])
            grown[without | 1 << v] = _plus(grown[without | 1 << v], part)
        weight = grown
    return weight


def _log(x) -> float:
    return float(np.log(x)) if x > 0.0 else -np.inf


def _entropy_bits(p) -> np.ndarray:
    return 0.0 - (p * np.log2(np.where(p > 0.0, p, 1.0))).sum(axis=-1)  # never -0.0
