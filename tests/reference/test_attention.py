"""The oracle of attention, by explicit loops and finite differences."""

import math

import numpy as np
import pytest

from bwt.reference.attention import attention, attention_backward

SHAPES = [
    pytest.param(B, H, T, S, D, id=f"B{B}-H{H}-T{T}-S{S}-D{D}")
    for B, H, T, S, D in [(1, 1, 1, 1, 1), (2, 1, 1, 5, 3), (1, 2, 4, 4, 2), (2, 2, 3, 7, 5)]
]
CAUSAL = pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
OUTPUTS = ("out", "weights", "entropy", "lse")
ASKED = ("received", "max_logit", "top_k")


def draw(B, H, T, S, D):
    rng = np.random.default_rng(B + H + T + S + D)
    return rng.normal(size=(B, H, T, D)), *rng.normal(size=(2, B, H, S, D))


def one_row(query, keys, values, scale):
    """out, lse, weights, entropy of one query that sees all of `keys`, term by term."""
    scores = [scale * sum(a * b for a, b in zip(query, key, strict=True)) for key in keys]
    total = sum(math.exp(score) for score in scores)
    weights = [math.exp(score) / total for score in scores]
    out = [
        sum(w * value[d] for w, value in zip(weights, values, strict=True))
        for d in range(len(query))
    ]
    return out, math.log(total), weights, -sum(w * math.log2(w) for w in weights)


@pytest.mark.parametrize("B,H,T,S,D", SHAPES)
@CAUSAL
@pytest.mark.parametrize("scale", [None, 0.7, -1.3])
def test_forward_is_the_definition(B, H, T, S, D, causal, scale):
    q, k, v = draw(B, H, T, S, D)
    got = attention(q, k, v, causal=causal, scale=scale, capture=("weights", "entropy"))
    factor = D**-0.5 if scale is None else scale
    for b, h, t in np.ndindex(B, H, T):
        seen = S - T + t + 1 if causal else S
        row = one_row(q[b, h, t], k[b, h, :seen], v[b, h, :seen], factor)
        np.testing.assert_allclose(got.out[b, h, t], row[0], atol=1e-14)
        np.testing.assert_allclose(got.lse[b, h, t], row[1], atol=1e-14)
        np.testing.assert_allclose(got.weights[b, h, t, :seen], row[2], atol=1e-14)
        np.testing.assert_array_equal(got.weights[b, h, t, seen:], 0)
        np.testing.assert_allclose(got.entropy[b, h, t], row[3], atol=1e-14)


@pytest.mark.parametrize("B,H,T,S,D", SHAPES)
@CAUSAL
def test_what_is_asked_of_weights_is_the_definition(B, H, T, S, D, causal):
    """By sorting each row of weights, with columns summed over the chosen queries."""
    q, k, v = draw(B, H, T, S, D)
    _, lse, weights, _ = attention(q, k, v, causal=causal, capture=("weights",))
    heads, queries = [-1], [T - 1, 0] if T > 1 else None
    n = 3
    got = attention(
        q,
        k,
        v,
        causal=causal,
        capture=("received", "max_logit", "argmax", f"top_k={n}"),
        capture_heads=heads,
        capture_queries=queries,
    )
    rows = [T - 1, 0] if T > 1 else [0]
    for b in range(B):
        total = sum(weights[b, -1, t] for t in rows)
        np.testing.assert_allclose(got.received[b, 0], total, atol=1e-14)
        for i, t in enumerate(rows):
            row, seen = weights[b, -1, t], S - T + t + 1 if causal else S
            order = sorted(range(seen), key=lambda j: (-row[j], j))[:n]
            missing = n - len(order)
            assert got.top_k.positions[b, 0, i].tolist() == order + [-1] * missing
            expected = [row[j] for j in order] + [0.0] * missing
            np.testing.assert_allclose(got.top_k.weights[b, 0, i], expected, atol=1e-14)
            assert got.argmax[b, 0, i] == order[0]
            largest = math.log(row[order[0]]) + lse[b, -1, t]
            np.testing.assert_allclose(got.max_logit[b, 0, i], largest, atol=1e-13)


def test_nothing_is_captured_unasked():
    got = attention(*draw(1, 1, 2, 3, 4))
    assert got.weights is None and got.entropy is None
    assert attention(*draw(1, 1, 2, 3, 4), capture=("entropy",)).weights is None


def test_entropy_of_equal_and_of_huge_scores():
    q, k, v = draw(1, 1, 3, 8, 4)
    got = attention(0 * q, k, v, causal=False, capture=("weights", "entropy"))
    np.testing.assert_allclose(got.entropy, 3.0, atol=1e-14)
    got = attention(1e6 * q, k, v, causal=False, capture=("weights", "entropy"))
    np.testing.assert_array_equal(got.weights.max(axis=-1), 1)
    np.testing.assert_allclose(got.entropy, 0, atol=1e-12)
    gradients = attention_backward(1e6 * q, k, v, grad_entropy=np.ones((1, 1, 3)))
    assert all(np.isfinite(g).all() for g in gradients)


def finite_differences(function, x, step=1e-5):
    gradient = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        shift = np.zeros_like(x)
        shift[place] = step
        gradient[place] = (function(x + shift) - function(x - shift)) / (2 * step)
    return gradient


@pytest.mark.parametrize("B,H,T,S,D", SHAPES)
@CAUSAL
@pytest.mark.parametrize(
    "names", [*((name,) for name in OUTPUTS + ASKED), OUTPUTS, OUTPUTS + ASKED], ids="+".join
)
def test_backward_is_the_slope(B, H, T, S, D, causal, names):
    arrays = draw(B, H, T, S, D)
    options = {"causal": causal, "scale": 0.8}
    if set(names) & set(ASKED):
        options |= {"capture_heads": [0], "capture_queries": [-1]}

    def outputs(*arrays):
        capture = ("weights", "entropy", "received", "max_logit", "top_k=2")
        found = attention(*arrays, capture=capture, **options)
        return found._asdict() | {"top_k": found.top_k.weights}

    rng = np.random.default_rng(0)
    incoming = {name: rng.normal(size=outputs(*arrays)[name].shape) for name in names}

    def loss(*arrays):
        found = outputs(*arrays)
        return sum((grad * found[name]).sum() for name, grad in incoming.items())

    got = attention_backward(
        *arrays, **{f"grad_{name}": grad for name, grad in incoming.items()}, **options
    )
    for i in range(3):
        expected = finite_differences(
            lambda x, i=i: loss(*arrays[:i], x, *arrays[i + 1 :]), arrays[i]
        )
        # Central differences: step^2 times a third derivative, plus rounding over step.
        np.testing.assert_allclose(got[i], expected, atol=2e-9)
