"""Exact posterior over bijections, written for reading."""

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
        log_total = 0.0
        for t in range(length):
            pairs = list(zip(keys[b, :t].tolist(), values[b, :t].tolist(), strict=True))
            if channel is None:
                row = _noiseless_row(keys[b, t], pairs, num_symbols)
                predictive = row[values[b, t]]
            else:
                row = _noisy_row(keys[b, t], pairs, np.asarray(channel, dtype=np.float64))
                predictive = row @ np.asarray(channel, dtype=np.float64)[:, values[b, t]]
            if predictive == 0.0:
                raise ValueError(contradiction(b, t, keys[b, t], values[b, t]))
            log_total += np.log(predictive)
            posterior[b, t] = row
            log_evidence[b, t] = log_total
    return BijectionPosterior(posterior, _entropy_bits(posterior), log_evidence)


def _noiseless_row(key, pairs, num_symbols) -> np.ndarray:
    """One-hot if the key was seen, else uniform over the values that were not."""
    known = dict(pairs)
    row = np.zeros(num_symbols)
    if key in known:
        row[known[key]] = 1.0
    else:
        unused = sorted(set(range(num_symbols)) - set(known.values()))
        row[unused] = 1.0 / len(unused)
    return row


def _noisy_row(key, pairs, channel) -> np.ndarray:
    """p(pi(key) = v) ~ likelihood of the key's own observations at v, times the weight of all ways
    to give the other seen keys distinct values that leave v free."""
    num_symbols = len(channel)
    with np.errstate(divide="ignore"):
        log_channel = np.log(channel)
    log_likelihood = {}
    for seen, value in pairs:
        log_likelihood[seen] = log_likelihood.get(seen, 0.0) + log_channel[:, value]
    own = log_likelihood.pop(key, np.zeros(num_symbols))
    log_weight = _subset_log_weights(list(log_likelihood.values()), num_symbols)
    subsets = np.arange(1 << num_symbols)
    log_row = np.array(
        [own[v] + _logsumexp(log_weight[subsets >> v & 1 == 0]) for v in range(num_symbols)]
    )
    return np.exp(log_row - _logsumexp(log_row))


def _subset_log_weights(log_likelihoods, num_symbols) -> np.ndarray:
    """log of the summed likelihood of giving each key its own value, using exactly the values in
    S, for every subset S (a bit mask)."""
    subsets = np.arange(1 << num_symbols)
    log_weight = np.full(1 << num_symbols, -np.inf)
    log_weight[0] = 0.0
    for log_likelihood in log_likelihoods:
        grown = np.full(1 << num_symbols, -np.inf)
        for v in range(num_symbols):
            without = subsets[subsets >> v & 1 == 0]
            grown[without | 1 << v] = np.logaddexp(
                grown[without | 1 << v], log_weight[without] + log_likelihood[v]
            )
        log_weight = grown
    return log_weight


def _logsumexp(x) -> float:
    largest = x.max(initial=-np.inf)
    return largest if largest == -np.inf else largest + np.log(np.exp(x - largest).sum())


def _entropy_bits(p) -> np.ndarray:
    return (p * np.log2(1.0 / np.where(p > 0.0, p, 1.0))).sum(axis=-1)
