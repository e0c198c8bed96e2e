"""What attention captures besides weights and entropy, against the NumPy float64 reference."""

import math

import numpy as np
import pytest
import torch
from helpers.attention_inputs import arrays, draw
from helpers.tolerances import attention_error

from bwt import ops, reference
from bwt.ops import AttentionOutput, CapturedAttention, TopK

BACKENDS = ["native", "torch"]
DTYPES = [torch.float32, torch.float64]
SHAPES = {
    "one key": (1, 1, 1, 1, 1),
    "few": (2, 3, 7, 9, 5),
    "one query": (2, 2, 1, 19, 16),
    "two blocks of queries": (1, 2, 130, 150, 20),
    "long": (1, 1, 33, 700, 16),
}
CHOICES = {
    "all": (None, None),
    "heads": ([-1], None),
    "queries": (None, [-1, 0]),
    "both": ([-1, 0], [-1, 0]),
}
SHAPE = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
CHOICE = pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
BACKEND = pytest.mark.parametrize("backend", BACKENDS)
DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
CAUSAL = pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])


def everything(count=5):
    """With the largest weights, of which a shape may have fewer."""
    return ("weights", "entropy", "received", "max_logit", "argmax", f"top_k={count}")


def options_of(shape, choice, **others):
    """Without what is there only once."""
    heads, queries = (
        chosen if chosen is None or size > 1 else None
        for chosen, size in zip(choice, shape[1:3], strict=True)
    )
    return {"capture_heads": heads, "capture_queries": queries} | others


def numbers(result):
    """Results that have gradients, by the names of their gradients."""
    rows = ("out", "lse", "weights", "entropy", "received", "max_logit")
    return {name: getattr(result, name) for name in rows} | {"top_k": result.top_k.weights}


def assert_agrees(got, expected, bound):
    assert type(got) is CapturedAttention
    for name, x in numbers(got).items():
        y = numbers(expected)[name]
        size = max(1.0, np.abs(y[np.isfinite(y)]).max(initial=0.0))
        np.testing.assert_allclose(x.detach(), y, rtol=0, atol=bound * size, err_msg=name)
    for x, y in ((got.argmax, expected.argmax), (got.top_k.positions, expected.top_k.positions)):
        assert x.dtype == torch.int64 and not x.requires_grad
        np.testing.assert_array_equal(x, y)


@BACKEND
@DTYPE
@CAUSAL
@SHAPE
@CHOICE
def test_values(backend, dtype, causal, shape, choice):
    inputs = draw(*shape, dtype)
    options = options_of(shape, choice, causal=causal, capture=everything())
    got = ops.attention(*inputs, backend=backend, **options)
    assert_agrees(got, reference.attention(*arrays(inputs), **options), bound(dtype, shape))


def bound(dtype, shape):
    """received sums over as many queries as there are."""
    return attention_error(dtype, shape[3], shape[4]) * max(1.0, shape[2] ** 0.5)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8, 9, 16])
@DTYPE
def test_every_number_of_largest_weights(count, dtype):
    inputs = draw(2, 2, 23, 37, 8, dtype)
    options = {"capture": (f"top_k={count}",)}
    got = ops.attention(*inputs, **options).top_k
    expected = reference.attention(*arrays(inputs), **options).top_k
    np.testing.assert_array_equal(got.positions, expected.positions)
    np.testing.assert_allclose(got.weights, expected.weights, atol=attention_error(dtype, 37, 8))


@BACKEND
@DTYPE
@CAUSAL
@SHAPE
@CHOICE
def test_gradients(backend, dtype, causal, shape, choice):
    inputs = [x.requires_grad_() for x in draw(*shape, dtype)]
    options = options_of(shape, choice, causal=causal)
    got = numbers(ops.attention(*inputs, backend=backend, capture=everything(), **options))
    incoming = {name: torch.randn_like(x) for name, x in got.items()}
    for names in [("received",), ("max_logit",), ("top_k",), tuple(got)]:
        outputs = [got[name] for name in names]
        given = [incoming[name] for name in names]
        found = torch.autograd.grad(
            outputs, inputs, given, retain_graph=True, materialize_grads=True
        )
        expected = reference.attention_backward(
            *arrays(inputs),
            **{f"grad_{name}": incoming[name].double().numpy() for name in names},
            **options,
        )
        for x, y in zip(found, expected, strict=True):
            atol = 4 * bound(dtype, shape) * max(1.0, np.abs(y).max())
            np.testing.assert_allclose(x, y, rtol=0, atol=atol, err_msg=str(names))


@BACKEND
@CHOICE
@pytest.mark.parametrize("capture", [("received",), ("max_logit",), ("top_k=3",), everything()])
def test_gradients_are_slopes(backend, choice, capture):
    inputs = [x.requires_grad_() for x in draw(1, 2, 3, 4, 2)]
    heads, queries = choice

    def outputs(q, k, v):
        got = ops.attention(
            q, k, v, capture=capture, capture_heads=heads, capture_queries=queries, backend=backend
        )
        top_k = () if got.top_k is None else (got.top_k.weights,)
        return tuple(x for x in (*got[:6], *top_k) if x is not None)

    assert torch.autograd.gradcheck(outputs, inputs)
    assert torch.autograd.gradgradcheck(outputs, inputs)


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
@DTYPE
def test_of_equal_scores_the_first_comes_first(backend, dtype):
    x = torch.zeros(1, 2, 20, 4, dtype=dtype)
    got = ops.attention(x, x, x, capture=("argmax", "top_k=3"), backend=backend)
    seen = torch.arange(20)[:, None] >= torch.arange(3)
    assert (got.argmax == 0).all()
    assert torch.equal(got.top_k.positions[0, 1], torch.where(seen, torch.arange(3), -1))
    torch.testing.assert_close(
        got.top_k.weights[0, 1], torch.where(seen, 1 / torch.arange(1.0, 21)[:, None], 0).to(dtype)
    )


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
def test_larger_scores_move_equal_ones_back(backend):
    """In every order of a few levels: [levels] are scores, and weights of a query that sees all."""
    levels = torch.randint(0, 3, (1, 40, 1, 33)).double()
    q = torch.ones(1, 40, 1, 1).double()
    got = ops.attention(
        q, levels.mT, levels.mT, scale=1.0, capture=("argmax", "top_k=16"), backend=backend
    )
    order = torch.from_numpy(np.argsort(-levels[0, :, 0].numpy(), axis=-1, kind="stable"))
    assert torch.equal(got.argmax[0, :, 0], order[:, 0])
    assert torch.equal(got.top_k.positions[0, :, 0], order[:, :16])


@BACKEND
def test_the_gradient_of_the_largest_score_goes_to_the_first_of_equal_ones(backend):
    q = torch.ones(1, 1, 3, 1, dtype=torch.float64)
    k = torch.zeros(1, 1, 3, 1, dtype=torch.float64, requires_grad=True)
    got = ops.attention(q, k, q, capture=("max_logit",), scale=1.0, backend=backend)
    got.max_logit.sum().backward()
    assert k.grad.flatten().tolist() == [3.0, 0.0, 0.0]


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
@DTYPE
def test_scores_of_minus_infinity(backend, dtype):
    """A row of nothing else, and one that has a finite score too."""
    q, k, v = draw(1, 1, 2, 5, 2, dtype)
    q[0, 0, :, 0], q[0, 0, :, 1] = 1.0, torch.tensor([-math.inf, 0.5])
    k[0, 0, :, 1] = 1.0
    k[0, 0, [0, 1, 3, 4], 0] = -math.inf
    if backend != "reference":
        q, k, v = (x.requires_grad_() for x in (q, k, v))
    got = ops.attention(q, k, v, capture=everything(3), backend=backend)
    assert got.max_logit[0, 0, 0] == -math.inf and got.max_logit[0, 0, 1].isfinite()
    assert got.argmax[0, 0].tolist() == [-1, 2]
    assert got.top_k.positions[0, 0].tolist() == [[-1, -1, -1], [2, -1, -1]]
    assert got.top_k.weights[0, 0].tolist() == [[0, 0, 0], [1, 0, 0]]
    assert got.received[0, 0].tolist() == [0, 0, 1, 0, 0]
    if backend != "reference":
        total = got.received.sum() + got.top_k.weights.sum() + got.max_logit[0, 0, 1]
        blind = torch.where(got.max_logit[0, 0, 0].isinf(), 0.0, got.max_logit[0, 0, 0])
        (grad_q,) = torch.autograd.grad(total + blind, (q,))
        assert not grad_q[0, 0, 0].any()


@BACKEND
@DTYPE
def test_hidden_keys_are_not_looked_at(backend, dtype):
    inputs = draw(1, 2, 9, 9, 4, dtype)
    clean = ops.attention(*inputs, capture=everything(), backend=backend, capture_queries=[1, 4])
    for x in inputs[1:]:
        x[:, :, 5:] = math.nan
    inputs[0][:, :, 5:] = math.inf
    got = ops.attention(*inputs, capture=everything(), backend=backend, capture_queries=[1, 4])
    for x, y in zip((*got[2:7], *got.top_k), (*clean[2:7], *clean.top_k), strict=True):
        assert torch.equal(x, y)


@BACKEND
def test_a_row_with_nan_has_no_largest_score_and_spoils_no_other(backend):
    inputs = draw(1, 1, 4, 4, 4, torch.float32)
    inputs[0][0, 0, 2, 1] = math.nan
    got = ops.attention(*inputs, capture=everything(2), backend=backend)
    assert got.max_logit[0, 0].isnan().tolist() == [False, False, True, False]
    positions = torch.stack((got.argmax[0, 0, 2], *got.top_k.positions[0, 0, 2]))
    assert ((positions >= -1) & (positions < 4)).all()


def test_a_choice_is_a_part_of_all():
    inputs = draw(2, 4, 12, 15, 8)
    whole = ops.attention(*inputs, capture=everything())
    heads, queries = [2, -4], [5, -1, 0]
    part = ops.attention(
        *inputs, capture=everything(), capture_heads=heads, capture_queries=queries
    )
    for name in ("weights", "entropy", "max_logit", "argmax"):
        expected = getattr(whole, name)[:, heads][:, :, queries]
        assert torch.equal(getattr(part, name), expected), name
    for x, y in zip(part.top_k, whole.top_k, strict=True):
        assert torch.equal(x, y[:, heads][:, :, queries])
    torch.testing.assert_close(part.received, part.weights.sum(-2))
    assert torch.equal(part.out, whole.out) and torch.equal(part.lse, whole.lse)
    again = ops.attention(*inputs, capture=everything(), capture_heads=range(4))
    assert all(torch.equal(x, y) for x, y in zip(again[:7], whole[:7], strict=True))


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
def test_what_is_returned(backend):
    inputs = draw(1, 2, 3, 4, 2)

    def of(*capture):
        return ops.attention(*inputs, capture=capture, backend=backend)

    assert type(of("weights")) is AttentionOutput
    assert type(of("weights", "entropy", "weights")) is AttentionOutput
    for name in ("received", "max_logit", "argmax", "top_k"):
        got = of(f"{name}=2" if name == "top_k" else name)
        assert type(got) is CapturedAttention
        assert [x for x in got._fields if getattr(got, x) is not None] == ["out", "lse", name]
    assert type(got.top_k) is TopK


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
def test_halves(dtype, backend):
    inputs = draw(2, 3, 5, 9, 8, dtype)
    expected = reference.attention(*arrays(inputs), capture=everything())
    got = ops.attention(*inputs, capture=everything(), backend=backend)
    assert (got.out.dtype, got.weights.dtype) == (dtype, dtype)
    for x in (got.entropy, got.received, got.max_logit, got.top_k.weights):
        assert x.dtype == torch.float32
    for name, x in numbers(got).items():
        y = numbers(expected)[name]
        error = attention_error(torch.float32, 9, 8) + torch.finfo(x.dtype).eps
        np.testing.assert_allclose(x.double(), y, atol=error * max(1.0, np.abs(y).max()))
    np.testing.assert_array_equal(got.top_k.positions, expected.top_k.positions)
    if backend in BACKENDS:
        inputs = [x.requires_grad_() for x in inputs]
        got = ops.attention(*inputs, capture=("received", "top_k=2"), backend=backend)
        value = got.received.square().sum() + got.top_k.weights.sum()
        grads = torch.autograd.grad(value, inputs, materialize_grads=True)
        assert all(x.dtype == dtype and x.isfinite().all() for x in grads)


def test_weights_are_kept_for_gradients_that_read_them_only():
    """The native gradient reads whole ones; chosen ones it computes again."""
    inputs = [x.requires_grad_() for x in draw(1, 2, 6, 7, 4)]

    def kept(**options):
        shapes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x: shapes.append(tuple(x.shape)) or x, lambda x: x
        ):
            ops.attention(*inputs, capture=("weights",), **options)
        return shapes

    assert (1, 2, 6, 7) in kept()
    assert not {(1, 1, 6, 7), (1, 2, 6, 7)} & set(kept(capture_heads=[1]))


def test_empty_batch():
    got = ops.attention(*draw(0, 2, 3, 4, 2), capture=everything(), capture_heads=[1])
    assert got.received.shape == (0, 1, 4) and got.top_k.positions.shape == (0, 1, 3, 5)


def test_result_does_not_depend_on_threads():
    inputs = [x.requires_grad_() for x in draw(5, 3, 40, 40, 16, torch.float32)]
    results, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            got = ops.attention(*inputs, capture=everything())
            grads = torch.autograd.grad(got.received.sum() + got.max_logit.sum(), inputs)
            results.append((*got[:7], *got.top_k, *grads))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


@pytest.mark.parametrize("heads,queries", [(None, None), ([1], [4, 0])])
@pytest.mark.parametrize("asked", [(True, False, 0), (False, True, 0), (False, False, 3)])
def test_opcheck(asked, heads, queries):
    inputs = [x.requires_grad_() for x in draw(2, 2, 5, 6, 8, torch.float32)]
    arguments = (*inputs, True, 0.3, True, True, *asked, heads, queries)
    torch.library.opcheck(torch.ops.bwt.attention.default, arguments)


def test_compiles_without_graph_break():
    def loss(q, k, v):
        got = ops.attention(q, k, v, capture=everything(), capture_heads=[1, 0])
        parts = (got.out, got.received, got.max_logit, got.top_k.weights)
        return sum(x.square().sum() for x in parts), got.argmax

    inputs = [x.requires_grad_() for x in draw(2, 2, 5, 6, 8)]
    results = []
    for compute in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        value, argmax = compute(*inputs)
        results.append((value, argmax, *torch.autograd.grad(value, inputs)))
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two)


X = torch.zeros(2, 3, 4, 8)
BAD_INPUT = {
    "no number": ({"capture": ("top_k=",)}, "capture takes any of .*, got"),
    "a word": ({"capture": ("top_k=four",)}, "capture takes any of"),
    "none": ({"capture": ("top_k=0",)}, "top_k takes 1 to 16 keys, got top_k=0"),
    "too many": ({"capture": ("top_k=17",)}, "top_k takes 1 to 16 keys, got top_k=17"),
    "two numbers": ({"capture": ("top_k=1", "top_k=2")}, "one top_k, got top_k=1 and top_k=2"),
    "head": (
        {"capture": ("argmax",), "capture_heads": [3]},
        r"capture_heads must be some of -3\.\.2, got 3",
    ),
    "query": ({"capture_queries": [-5]}, r"capture_queries must be some of -4\.\.3, got -5"),
    "no query": ({"capture_queries": []}, r"capture_queries must be some of -4\.\.3, got none"),
    "twice": ({"capture_heads": [1, -2]}, "capture_heads must not repeat an index, got 1, -2"),
    "a number": ({"capture_heads": 1}, "capture_heads must be None or a sequence of indices"),
    "not a number": ({"capture_queries": [0.5]}, "capture_queries must be None or a sequence"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_answered_with_one_clear_line(name):
    options, message = BAD_INPUT[name]
    with pytest.raises(ValueError, match=message) as caught:
        ops.attention(X, X, X, **options)
    assert str(caught.value).startswith("attention: ") and "\n" not in str(caught.value)
