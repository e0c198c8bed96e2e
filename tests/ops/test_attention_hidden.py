"""What attention does with numbers that are not finite: hidden ones come to nothing, visible ones
stay in their row, and a row of scores -inf is zero. Against the NumPy float64 reference."""

import math

import numpy as np
import pytest
import torch
from helpers.attention_inputs import ALL, arrays, draw
from helpers.tolerances import attention_error

from bwt import ops, reference

BACKENDS = ["native", "torch"]
DTYPES = [torch.float32, torch.float64]
PLANTED = [math.nan, math.inf, -math.inf]
SHAPES = [(1, 1, 2, 2, 1), (1, 2, 7, 7, 5), (2, 1, 13, 16, 8), (1, 1, 39, 39, 32)]
SHAPES += [(1, 1, 6, 40, 16), (1, 1, 100, 101, 20), (1, 1, 33, 300, 33)]
CASES = [pytest.param(shape, id="B{}-H{}-T{}-S{}-D{}".format(*shape)) for shape in SHAPES]


def run(backend, inputs, incoming, causal=True, capture=ALL):
    """Outputs by name, then the gradients of q, k, v."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    got = ops.attention(*leaves, causal=causal, capture=capture, backend=backend)
    outputs = {name: x for name, x in got._asdict().items() if x is not None}
    gradients = torch.autograd.grad(
        list(outputs.values()), leaves, [incoming[name] for name in outputs]
    )
    found = outputs | dict(zip(("grad_q", "grad_k", "grad_v"), gradients, strict=True))
    return {name: x.detach().double().numpy() for name, x in found.items()}


def expect(inputs, incoming, causal=True):
    """The same by the reference, of finite numbers or in blind rows."""
    given = {f"grad_{name}": x.double().numpy() for name, x in incoming.items()}
    found = reference.attention(*arrays(inputs), causal=causal, capture=ALL)._asdict()
    gradients = reference.attention_backward(*arrays(inputs), causal=causal, **given)
    return found | dict(zip(("grad_q", "grad_k", "grad_v"), gradients, strict=True))


def draw_incoming(shape, dtype):
    B, H, T, S, D = shape
    sizes = {"out": (D,), "lse": (), "weights": (S,), "entropy": ()}
    return {name: torch.randn(B, H, T, *size).to(dtype) for name, size in sizes.items()}


def assert_agrees(found, expected, bound, rows=slice(None), keys=slice(None)):
    """At these rows of the outputs and of grad_q, these of grad_k and grad_v."""
    for name, x in found.items():
        place = keys if name in ("grad_k", "grad_v") else rows
        x, y = x[:, :, place], expected[name][:, :, place]
        finite = np.abs(y[np.isfinite(y)])
        atol = bound * max(1.0, finite.max(initial=0.0))
        np.testing.assert_allclose(x, y, rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("planted", PLANTED)
@pytest.mark.parametrize("shape", CASES)
def test_hidden_keys_and_values(backend, dtype, planted, shape):
    """Rows that do not see them are as if they were ordinary numbers."""
    T, S, D = shape[2:]
    clean, incoming = draw(*shape, dtype), draw_incoming(shape, dtype)
    expected = expect(clean, incoming)
    for back in sorted({1, 2, T // 3, T // 2, T - 1} - {0, T}):
        spoilt = [x.clone() for x in clean]
        for x in spoilt[1:]:
            x[:, :, S - back, back % D] = planted
        for capture in ((), ALL):
            found = run(backend, spoilt, incoming, capture=capture)
            if capture == ():  # without the gradients of what is not captured
                some = {name: incoming[name] for name in ("out", "lse")}
                target = expect(clean, some)
            else:
                target = expected
            # All keys are seen by rows that see the planted one.
            assert_agrees(found, target, attention_error(dtype, S, D), slice(T - back), slice(0))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("where", ["q", "grad_out", "grad_weights", "grad_lse", "grad_entropy"])
@pytest.mark.parametrize("shape", CASES)
def test_a_spoilt_query_spoils_only_what_it_sees(backend, dtype, where, shape):
    T, S, D = shape[2:]
    clean, incoming = draw(*shape, dtype), draw_incoming(shape, dtype)
    expected = expect(clean, incoming)
    for row in sorted({0, T // 2, T - 2}):
        inputs = [x.clone() for x in clean]
        given = {name: x.clone() for name, x in incoming.items()}
        spoilt = inputs[0] if where == "q" else given[where.removeprefix("grad_")]
        spoilt[:, :, row] = math.nan
        found = run(backend, inputs, given)
        bound = attention_error(dtype, S, D)
        hidden = slice(S - T + row + 1, None)
        assert_agrees(found, expected, bound, slice(row), hidden)
        assert_agrees(found, expected, bound, slice(row + 1, None), hidden)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", CASES)
def test_hidden_gradients_of_weights(backend, shape):
    T, S, D = shape[2:]
    inputs, incoming = draw(*shape), draw_incoming(shape, torch.float64)
    expected = expect(inputs, incoming)
    hidden = torch.ones(T, S, dtype=torch.bool).triu(S - T + 1)
    incoming["weights"] = incoming["weights"].masked_fill(hidden, math.nan)
    found = run(backend, inputs, incoming)
    assert_agrees(found, expected, attention_error(torch.float64, S, D))


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shape", CASES)
def test_what_is_seen_spreads_in_its_rows(backend, dtype, causal, shape):
    T, S, D = shape[2:]
    key = S - 1 - T // 2
    rows = slice(max(0, key - (S - T)), None) if causal else slice(0, None)
    for which, planted in ((1, math.nan), (2, math.nan), (2, math.inf)):
        inputs = draw(*shape, dtype)
        inputs[which][:, :, key, 0] = planted
        got = ops.attention(*inputs, causal=causal, capture=ALL, backend=backend)
        assert not torch.isfinite(got.out[:, :, rows, 0]).any()
        spoilt = torch.isnan(got.lse[:, :, rows]), torch.isnan(got.entropy[:, :, rows])
        assert all(x.all() if which == 1 else not x.any() for x in spoilt)
        assert torch.isfinite(got.out[:, :, : rows.start]).all()
        if causal:  # exactly zero where hidden, whatever the row holds
            hidden = torch.ones(T, S, dtype=torch.bool).triu(S - T + 1)
            assert not got.weights[:, :, hidden].any()


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("blinding", [-math.inf, "huge"])
@pytest.mark.parametrize("shape", CASES)
def test_blind_rows(backend, dtype, causal, blinding, shape):
    """Infinite queries, or products too large for the type."""
    if backend == "reference" and blinding == "huge" and dtype == torch.float32:
        pytest.skip("float64 holds these products")
    T, S, D = shape[2:]
    size = -(torch.finfo(dtype).max ** 0.75) if blinding == "huge" else blinding
    inputs, incoming = draw(*shape, dtype), draw_incoming(shape, dtype)
    inputs[1][..., 0] = inputs[1][..., 0].abs() + (abs(size) if blinding == "huge" else 1.0)
    others = torch.ones(T, dtype=torch.bool)
    others[:: max(1, T // 3)] = False
    inputs[0][..., 0] = 0.0
    inputs[0][:, :, ~others, 0] = size
    got = ops.attention(*inputs, causal=causal, capture=ALL, backend=backend)
    for name, value in {"out": 0, "weights": 0, "entropy": 0, "lse": -math.inf}.items():
        assert (getattr(got, name)[:, :, ~others] == value).all(), name
        assert torch.isfinite(getattr(got, name)[:, :, others]).all(), name
    if backend == "reference":
        return
    found = run(backend, inputs, incoming, causal)
    assert all(np.isfinite(found[name]).all() for name in ("grad_q", "grad_k", "grad_v"))
    assert not found["grad_q"][:, :, ~others.numpy()].any()
    # As if their rows were ordinary, but without gradients.
    ordinary = [x.clone() for x in inputs]
    ordinary[0][:, :, ~others, 0] = 0.0
    for x in incoming.values():
        x[:, :, ~others] = 0.0
    expected = run(backend, ordinary, incoming, causal)
    bound = attention_error(dtype, S, D)
    assert_agrees({name: found[name] for name in ("grad_q", "grad_k", "grad_v")}, expected, bound)


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_lowest_finite_scores_are_ordinary(backend, dtype):
    """Hidden keys must not look like them."""
    lowest = torch.finfo(dtype).min
    q, k = torch.ones(1, 1, 5, 1, dtype=dtype), torch.full((1, 1, 5, 1), lowest, dtype=dtype)
    got = ops.attention(q, k, torch.ones_like(k), scale=1.0, capture=ALL, backend=backend)
    count = torch.arange(1, 6, dtype=dtype)
    torch.testing.assert_close(got.entropy[0, 0], count.log2())
    torch.testing.assert_close(
        got.weights[0, 0], torch.ones(5, 5, dtype=dtype).tril() / count[:, None]
    )
    assert (got.lse == lowest).all()


def test_reference_gradients_of_blind_and_hidden_are_those_of_the_definition():
    """A blind row may as well not be there, and a hidden key be any number."""
    q, k, v = arrays(draw(1, 1, 5, 7, 3))
    grad_out = np.random.default_rng(0).normal(size=q.shape)
    k[..., 0] = np.abs(k[..., 0])
    expected = reference.attention_backward(q[:, :, 1:], k, v, grad_out=grad_out[:, :, 1:])
    q[:, :, 0, 0] = -np.inf
    found = reference.attention_backward(q, k, v, grad_out=grad_out)
    assert not found[0][:, :, 0].any()
    np.testing.assert_allclose(found[0][:, :, 1:], expected[0], atol=1e-14)
    for x, y in zip(found[1:], expected[1:], strict=True):
        np.testing.assert_allclose(x, y, atol=1e-14)
