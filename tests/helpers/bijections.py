"""Pairs of hidden bijections, channels, and what their posteriors must be."""

import itertools
import math

import numpy as np
import torch

from bwt import reference
from helpers.tolerances import rounding, running_sum, subset_sums


def draw(rng, batch, steps, num_symbols, *, replacement=True):
    """Keys and the values of a fresh bijection per sequence."""
    if replacement:
        keys = rng.integers(num_symbols, size=(batch, steps))
    else:
        keys = np.array([rng.permutation(num_symbols)[:steps] for _ in range(batch)])
        keys = keys.reshape(batch, steps)
    values = np.array([rng.permutation(num_symbols)[row] for row in keys]).reshape(batch, steps)
    return torch.from_numpy(keys), torch.from_numpy(values)


def draw_channel(rng, num_symbols, dtype=torch.float64):
    return torch.from_numpy(rng.dirichlet(np.ones(num_symbols), size=num_symbols)).to(dtype)


def symmetric_channel(num_symbols, noise, dtype=torch.float64):
    off = noise / max(num_symbols - 1, 1)
    return torch.full((num_symbols, num_symbols), off, dtype=dtype).fill_diagonal_(1 - noise)


def assert_agrees(got, keys, values, num_symbols, channel=None):
    expected = reference.bijection_posterior(
        keys.numpy(),
        values.numpy(),
        num_symbols,
        channel=None if channel is None else channel.numpy(),
    )
    error = 0.0 if channel is None else subset_sums(num_symbols, keys.shape[1])
    for name in ("posterior", "entropy", "log_evidence"):
        actual, target = getattr(got, name).double().numpy(), getattr(expected, name)
        scale = max(1.0, np.abs(target).max(initial=0.0))
        bound = rounding(getattr(got, name).dtype, scale) + scale * error
        if name != "posterior":  # sums over steps and, in the reference, over symbols
            bound += running_sum(keys.shape[1] if name == "log_evidence" else num_symbols, scale)
        np.testing.assert_allclose(actual, target, rtol=0, atol=bound, err_msg=name)


def enumerate_in_log_space(keys, values, channel):
    V = len(channel)
    bijections = torch.tensor(list(itertools.permutations(range(V))))  # [V!, V]
    log_weight = torch.full((len(keys), len(bijections)), -math.lgamma(V + 1)).double()
    rows, entropies, evidence = [], [], []
    for t in range(keys.shape[1]):
        image = bijections[:, keys[:, t]].t()  # [B, V!]
        log_row = torch.stack(
            [log_weight.masked_fill(image != v, -torch.inf).logsumexp(1) for v in range(V)], 1
        ).log_softmax(1)
        rows.append(log_row.exp())
        entropies.append(torch.special.entr(rows[-1]).sum(1) / math.log(2))
        log_weight = log_weight + channel.log()[image, values[:, t, None]]
        evidence.append(log_weight.logsumexp(1))
    return torch.stack(rows, 1), torch.stack(entropies, 1), torch.stack(evidence, 1)


def lay_out(ids, layout):
    if layout == "transposed":
        return ids.t().contiguous().t()
    if layout == "strided":
        spread = torch.full((2 * ids.shape[0], 3 * ids.shape[1]), -7, dtype=ids.dtype)
        spread[::2, ::3] = ids
        return spread[::2, ::3]
    if layout == "offset":
        wide = torch.full((ids.shape[0] + 1, ids.shape[1] + 2), -7, dtype=ids.dtype)
        wide[1:, 1:-1] = ids
        return wide[1:, 1:-1]
    return ids
