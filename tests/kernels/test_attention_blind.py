"""The Triton kernels of attention and rows without a finite score: of -inf alone they are zero, of
NaN they are NaN. Interpreted and as executed PTX, against NumPy in float64."""

import math

import numpy as np
import pytest
from helpers import triton_aot
from helpers.attention_triton import MODULE, bounds, compute, draw, example, expect, show

pytest.importorskip("triton", reason="Triton is not installed")

# In one tile, several heads in a tile, and streamed.
SHAPES = [(1, 2, 39, 39, 16), (3, 3, 7, 9, 16), (1, 1, 40, 280, 16)]


def check_blind_rows(call, shape, causal=True):
    """Products too large for float32; in float64 only an infinite query has such scores."""
    x, gradients = draw("fp32", shape)
    blind = np.arange(shape[2]) % 3 == 0
    x["k"][..., 0] = x["k"][..., 0].abs() + 10
    x["q"][..., 0] = 0.0
    ordinary = dict(x, q=x["q"].clone())
    x["q"][:, :, blind, 0] = -math.inf
    expected = expect(x, gradients, causal=causal)
    assert np.isneginf(expected["lse"][:, :, blind]).all()
    sizes = expect(ordinary, gradients, causal=causal)
    allowed = bounds("fp32", ordinary, gradients, sizes, causal=causal)
    x["q"][:, :, blind, 0] = -3e38
    found = compute(call, "fp32", x, gradients, causal=causal)
    for name, want in expected.items():
        got = found[name].double().numpy()
        np.testing.assert_allclose(got, want, rtol=0, atol=allowed[name], err_msg=name)


@pytest.mark.parametrize("shape", SHAPES, ids=show)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
def test_blind_rows(call, shape, causal):
    check_blind_rows(call, shape, causal)


@pytest.mark.parametrize("shape", SHAPES, ids=show)
@pytest.mark.parametrize("planted", [math.nan, math.inf])
def test_queries_of_nan(call, shape, planted):
    x, gradients = draw("fp32", shape)
    clean = compute(call, "fp32", x, gradients)
    row = shape[2] // 2
    x["q"][:, :, row] = planted
    found = compute(call, "fp32", x, gradients)
    others = [t for t in range(shape[2]) if t != row]
    for name in ("out", "lse", "entropy"):
        assert found[name][:, :, row].isnan().all(), name
        np.testing.assert_array_equal(found[name][:, :, others], clean[name][:, :, others], name)


EXECUTED = [(1, 1, 33, 39, 32), (1, 1, 20, 270, 16)]


@pytest.mark.emulated
@pytest.mark.parametrize("shape", EXECUTED, ids=show)
def test_ptx(compiler, monkeypatch, shape):
    call, _ = triton_aot.emulator(compiler, monkeypatch, MODULE)
    compiler.get(MODULE, "sm_80", **example("fp32", shape))
    check_blind_rows(call, shape)
