"""Triton kernels against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from .testing import from_bf16, run_triton, to_bf16

RNG = np.random.default_rng(8)


def test_triton_vector_add(triton_kernels):
    n = 700
    x, y = RNG.random((2, n), np.float32)
    out = np.zeros(n, np.float32)
    run_triton(triton_kernels["vector_add"], [x, y, out, n], grid=(3, 1, 1))
    np.testing.assert_array_equal(out, x + y)


@pytest.mark.parametrize("seed", range(3))
def test_triton_softmax(triton_kernels, seed):
    x = RNG.standard_normal((6, 300)).astype(np.float32)
    out = np.zeros_like(x)
    run_triton(triton_kernels["softmax_row"], [x, out, 300], grid=(6, 1, 1), seed=seed)
    np.testing.assert_allclose(out, _softmax(x.astype(np.float64)), rtol=1e-5)


def _softmax(x):
    weight = np.exp(x - x.max(axis=-1, keepdims=True))
    return weight / weight.sum(axis=-1, keepdims=True)


def test_triton_scan(triton_kernels):
    x = RNG.integers(-9, 9, 1024).astype(np.float32)
    out = np.zeros_like(x)
    run_triton(triton_kernels["running_sum"], [x, out], grid=(2, 1, 1))
    np.testing.assert_array_equal(out.reshape(2, 512), x.reshape(2, 512).cumsum(axis=1))


def test_triton_reductions(triton_kernels):
    x = RNG.permutation(32 * 64).astype(np.float32).reshape(32, 64)
    sums, places = np.zeros(64, np.float32), np.zeros(32, np.int32)
    transposed = np.ones((64, 32), np.float32)
    run_triton(triton_kernels["reductions"], [x, sums, places, transposed])
    np.testing.assert_array_equal(sums, x.sum(axis=0))
    np.testing.assert_array_equal(places, x.argmax(axis=1))
    np.testing.assert_array_equal(transposed, x.T + 1)


TOLERANCES = {"fp16": 2e-3, "bf16": 2e-2, "tf32": 2e-3, "fp32": 2e-6}


def stored(name, *arrays):
    """What the device holds, and the same numbers in float64."""
    if name == "bf16":
        bits = [to_bf16(a) for a in arrays]
        return bits, [from_bf16(b).astype(np.float64) for b in bits]
    held = [a.astype(np.float16 if name == "fp16" else np.float32) for a in arrays]
    return held, [h.astype(np.float64) for h in held]


@pytest.mark.parametrize("name", TOLERANCES)
def test_triton_dot(triton_kernels, name):
    (a, b), (left, right) = stored(
        name, RNG.standard_normal((32, 96)), RNG.standard_normal((96, 32))
    )
    if name == "tf32":  # this Triton passes float32 as it is, and the tensor core cuts it
        left, right = cut_to_tf32(a), cut_to_tf32(b)
    out = np.zeros((32, 32), np.float32)
    stats = run_triton(triton_kernels[f"dot_{name}"], [a, b, out, 96])
    np.testing.assert_allclose(out, left @ right, atol=2e-5)
    assert (stats.opcodes["mma.sync"] > 0) == (name != "fp32")


def cut_to_tf32(x):
    return (x.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64)


def _attention(q, k, v, scale):
    score = np.where(np.tri(len(q), dtype=bool), q @ k.T * scale, -np.inf)
    return _softmax(score) @ v


@pytest.mark.parametrize("name", TOLERANCES)
def test_triton_attention(triton_kernels, name):
    heads, length, size = 2, 100, 32
    arrays = RNG.standard_normal((3, heads, length, size))
    held, exact = stored(name, *arrays)
    out = np.zeros((heads, length, size), np.float32)
    args = [*held, out, length, size**-0.5]
    stats = run_triton(triton_kernels[f"attention_{name}"], args, grid=(2, heads, 1))
    reference = [_attention(*(e[h] for e in exact), size**-0.5) for h in range(heads)]
    np.testing.assert_allclose(out, reference, atol=TOLERANCES[name])
    assert stats.load_sectors == stats.load_sectors_ideal
