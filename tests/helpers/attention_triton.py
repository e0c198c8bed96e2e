"""Helpers of the tests of attention's Triton kernels: inputs, outputs, and bounds of each dtype."""

import importlib
import itertools
from functools import partial

import numpy as np
import torch

from helpers import triton_aot
from helpers.attention_inputs import apart
from helpers.triton_aot import DTYPES

# The package has a function of the module's name.
reference = importlib.import_module("bwt.reference.attention")

MODULE = "bwt.kernels.attention"
INCOMING = ("grad_out", "grad_weights", "grad_entropy", "grad_lse")
FORWARD = ("out", "lse", "weights", "entropy")
BACKWARD = ("grad_q", "grad_k", "grad_v")


def draw(mode, shape, incoming=INCOMING, magnitude=1.0, strided=False):
    """q, k, v and incoming gradients by name, in the dtype of `mode`. Code that is compiled ahead
    of time takes strides that 16 divides, or dense tensors."""
    B, H, T, S, D = shape
    generator = torch.Generator().manual_seed(sum(shape))
    dtype = DTYPES[mode]
    rows = torch.float64 if mode == "fp64" else torch.float32

    wider = itertools.count(1)

    def normal(*size, dtype=dtype):
        if strided and len(size) == 4:  # as a slice of a projection, heads after positions
            more = next(wider)  # each has its own strides
            wide = torch.randn((B, size[2], H + more, size[3] + more), generator=generator)
            return wide.to(dtype).transpose(1, 2)[:, more:, :, :-more]
        return torch.randn(size, generator=generator).to(dtype)

    tensors = [magnitude * normal(B, H, T, D), normal(B, H, S, D), normal(B, H, S, D)]
    if strided or D % 16 == 0:
        tensors = apart(tensors, room=3 if D % 16 else 16)
    x = dict(zip("qkv", tensors, strict=True))
    gradients = {
        "grad_out": normal(B, H, T, D),
        "grad_weights": normal(B, H, T, S),
        "grad_entropy": normal(B, H, T, dtype=rows),
        "grad_lse": normal(B, H, T, dtype=rows),
    }
    return x, {name: x if name in incoming else None for name, x in gradients.items()}


def compute(call, mode, x, gradients, causal=True, scale=None):
    """All outputs of the kernels by name."""
    options = {"causal": causal, "scale": scale, "precision": "tf32" if mode == "tf32" else "ieee"}
    found = call(
        "attention_forward", *x.values(), capture_weights=True, capture_entropy=True, **options
    )
    outputs = dict(zip(FORWARD, found[:4], strict=True))
    saved = (outputs["out"], outputs["lse"], outputs["entropy"])
    found = call("attention_backward", *gradients.values(), *x.values(), *saved, **options)
    return outputs | dict(zip(BACKWARD, found, strict=True))


def expect(x, gradients, **options):
    """The same by the reference."""
    x = {name: value.double().numpy() for name, value in x.items()}
    gradients = {n: None if g is None else g.double().numpy() for n, g in gradients.items()}
    found = reference.attention(**x, capture=("weights", "entropy"), **options)._asdict()
    backward = reference.attention_backward(**x, **gradients, **options)
    return found | dict(zip(BACKWARD, backward, strict=True))


def low_precision(mode, x, gradients, causal=True, scale=None):
    """The same maths in float64, every operand of a product rounded as tensor cores need it."""
    cut = partial(triton_aot.rounded, mode=mode)
    q, k, v = (cut(a.double().numpy()) for a in x.values())
    g = {n: 0.0 if a is None else a.double().numpy() for n, a in gradients.items()}
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    found = reference.attention(q, k, v, causal=causal, scale=scale, capture=("weights", "entropy"))
    w, log2w = found.weights, np.log2(np.maximum(found.weights, 1e-300))
    go = cut(np.broadcast_to(g["grad_out"], q.shape))
    gw = go @ v.swapaxes(-1, -2) + g["grad_weights"]
    gw = gw - np.asarray(g["grad_entropy"])[..., None] * log2w
    gs = w * (gw - (w * gw).sum(-1, keepdims=True) + np.asarray(g["grad_lse"])[..., None])
    return {
        "out": cut(cut(w) @ v),
        "lse": found.lse,
        "weights": cut(w),
        "entropy": found.entropy,
        "grad_q": cut(scale * cut(gs) @ k),
        "grad_k": cut(scale * cut(gs).swapaxes(-1, -2) @ q),
        "grad_v": cut(cut(w).swapaxes(-1, -2) @ go),
    }


def bounds(mode, x, gradients, expected, **options):
    """Largest allowed errors.

    A sum of n products has a relative error of up to n eps; scores have n = D and their error,
    which the exponential passes on, grows with their size; the other sums have n = S at most.
    In 16 bits and tf32 the operands' rounding dominates: twice what the same maths loses by it.
    """
    depth = x["q"].shape[-1] + x["k"].shape[-2]
    eps = np.finfo(np.float64 if mode == "fp64" else np.float32).eps
    size = {name: max(1.0, np.abs(a).max(initial=0.0)) for name, a in expected.items()}
    scores = 1.0 + np.abs(expected["lse"]).max(initial=0.0)
    allowed = {name: eps * depth * scores * s for name, s in size.items()}
    if mode not in ("fp32", "fp64"):
        low = low_precision(mode, x, gradients, **options)
        for name in allowed:
            allowed[name] += 2 * np.abs(low[name] - expected[name]).max(initial=0.0)
        for name in allowed.keys() - {"lse", "entropy"}:
            allowed[name] += size[name] * torch.finfo(DTYPES[mode]).eps
    return allowed


def assert_agrees(got, expected, allowed):
    for name, target in expected.items():
        actual = got[name].double().numpy()
        assert actual.shape == target.shape, name
        np.testing.assert_allclose(actual, target, rtol=0, atol=allowed[name], err_msg=name)
    hidden = expected["weights"] == 0
    np.testing.assert_array_equal(got["weights"].double().numpy()[hidden], 0)


def check(call, mode, shape, incoming=INCOMING, magnitude=1.0, strided=False, **options):
    x, gradients = draw(mode, shape, incoming, magnitude, strided)
    got = compute(call, mode, x, gradients, **options)
    expected = expect(x, gradients, **options)
    allowed = bounds(mode, x, gradients, expected, **options)
    assert_agrees(got, expected, allowed)
    return got, expected, allowed


def show(value):
    """Ids of parameters: B1-H2-T39-S39-D64."""
    if isinstance(value, str):
        return value
    return "-".join(f"{name}{size}" for name, size in zip("BHTSD", value, strict=True))


def example(mode, shape, **more):
    names = ("batch", "heads", "queries", "keys", "head_size")
    return {"mode": mode} | dict(zip(names, shape, strict=True)) | more
