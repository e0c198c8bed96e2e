"""Helpers of the tests of hmm_filter: random models, comparison."""

import itertools

import numpy as np
import torch

DTYPES = [torch.float32, torch.float64]
# Of initial, transition and emission: whether each sequence has its own.
OWN, SHARED = (True,) * 3, (False,) * 3
MIXED = list(itertools.product([False, True], repeat=3))


def draw(B, T, S, V, dtype=torch.float64, *, own=OWN, missing=0.0, zeros=0.0, seed=0):
    """observations, initial, transition, emission."""
    rng = np.random.default_rng([B, T, S, V, seed])

    def rows(*shape):
        x = rng.standard_exponential(shape) * (rng.random(shape) >= zeros)
        x[..., -1] += x.sum(-1) == 0
        return torch.from_numpy(x / x.sum(-1, keepdims=True)).to(dtype)

    sizes = [(S,), (S, S), (S, V)]
    parameters = [
        rows(B, *size) if each else rows(*size) for size, each in zip(sizes, own, strict=True)
    ]
    y = rng.integers(V, size=(B, T))
    return torch.from_numpy(np.where(rng.random((B, T)) < missing, -1, y)), *parameters


def draw_lengths(B, T, seed=0):
    return torch.from_numpy(np.random.default_rng([B, T, seed]).integers(0, T + 1, size=B))


def arrays(tensors):
    return [
        x.detach().numpy() if x.dtype == torch.int64 else x.detach().double().numpy()
        for x in tensors
    ]


def assert_close(name, got, expected, bound):
    got = got.detach().double().numpy()
    infinite = np.isinf(expected)
    np.testing.assert_array_equal(got[infinite], expected[infinite], err_msg=name)
    finite = expected[~infinite]
    scale = max(1.0, np.abs(finite).max(initial=0.0))
    np.testing.assert_allclose(got[~infinite], finite, rtol=0, atol=bound * scale, err_msg=name)
