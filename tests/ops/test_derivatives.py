"""Derivatives beyond the first in reverse mode, and torch.func, for every op in float64.

The oracles are finite differences, and first derivatives in reverse mode, which the tests of each
op compare with the NumPy reference.
"""

import itertools
import re
from functools import partial

import pytest
import torch
from torch import func
from torch.autograd import forward_ad

from bwt import ops

OUTPUTS = {"attention": ("out", "lse", "weights", "entropy")}


def attention(q, k, v, backend="auto"):
    return ops.attention(q, k, v, capture=("weights", "entropy"), backend=backend)


def attention_asked(q, k, v, backend="auto"):
    capture, options = ("received", "max_logit", "top_k=2"), {"capture_queries": [-1, 0]}
    got = ops.attention(q, k, v, capture=capture, backend=backend, **options)
    return got.out, got.received, got.max_logit, got.top_k.weights


def attention_of_all(q, k, v, backend="auto"):
    return ops.attention(q, k, v, causal=False, backend=backend)[:2]


def self_attention(x, backend="auto"):
    """One tensor for all: a query is also a key."""
    return ops.attention(x, x, x, capture=("entropy",), backend=backend).out


def gelu(x, backend="auto"):
    return ops.gelu(x, backend=backend)


def gelu_of_sum(x, bias, backend="auto"):
    return ops.gelu(x, bias, backend=backend)


def add_bias(x, bias, backend="auto"):
    return ops.add_bias(x, bias, backend=backend).square()


def add_rms_norm(x, branch, weight, bias, backend="auto"):
    return ops.add_rms_norm(x, branch, weight, bias, epsilon=0.1, backend=backend)


def add_rms_norm_of_models(x, branch, weight, backend="auto"):
    return ops.add_rms_norm(x, branch, weight, epsilon=0.1, backend=backend)


def rms_norm(x, weight, backend="auto"):
    return ops.rms_norm(x, weight, epsilon=0.1, backend=backend)


def hmm_filter(initial, transition, emission, backend="auto"):
    """Of logits, as distributions have to stay such; some observations are missing."""
    y = torch.tensor([[0, 1, 1, 0], [1, -1, 0, 1]])
    rows = [x.softmax(-1) for x in (initial, transition, emission)]
    lengths = torch.tensor([4, 3])
    return ops.hmm_filter(y, *rows, lengths=lengths, backend=backend)


def hmm_smooth(initial, transition, emission, backend="auto"):
    y = torch.tensor([[0, 1, 1, 0], [1, -1, 0, 1]])
    rows = [x.softmax(-1) for x in (initial, transition, emission)]
    return ops.hmm_smooth(y, *rows, backend=backend).log_likelihood


def bijection_posterior(channel, backend="auto"):
    keys, values = torch.tensor([[0, 1, 2], [2, 2, 1]]), torch.tensor([[1, 0, 2], [0, 0, 1]])
    return ops.bijection_posterior(keys, values, 3, channel=channel.softmax(-1), backend=backend)


def selective_scan(u, delta, A, B, C, D, backend="auto"):
    return ops.selective_scan(u, delta, -A.exp(), B, C, D, delta_softplus=True, backend=backend)


def selective_scan_of_states(u, delta, A, B, C, state, backend="auto"):
    options = {"initial_state": state, "return_last_state": True, "backend": backend}
    return ops.selective_scan(u, delta, -A.exp(), B, C, **options)


SIZES = {
    attention: [(1, 2, 3, 2), (1, 2, 4, 2), (1, 2, 4, 2)],
    attention_asked: [(1, 1, 3, 2), (1, 1, 3, 2), (1, 1, 3, 2)],
    attention_of_all: [(1, 1, 2, 3), (1, 1, 3, 3), (1, 1, 3, 3)],
    self_attention: [(1, 1, 4, 2)],
    gelu: [(2, 3)],
    gelu_of_sum: [(2, 2, 3), (3,)],
    add_bias: [(2, 2, 3), (2, 3)],
    add_rms_norm: [(2, 2, 3), (2, 2, 3), (3,), (3,)],
    add_rms_norm_of_models: [(2, 2, 3), (2, 2, 3), (2, 3)],
    rms_norm: [(2, 2, 3), (3,)],
    hmm_filter: [(3,), (3, 3), (2, 3, 2)],
    hmm_smooth: [(3,), (3, 3), (3, 2)],
    bijection_posterior: [(3, 3)],
    selective_scan: [(2, 3, 2), (2, 3, 2), (2, 2), (2, 3, 2), (2, 3, 2), (2,)],
    selective_scan_of_states: [(2, 3, 2), (2, 3, 2), (2, 2), (2, 3, 2), (2, 3, 2), (2, 2, 2)],
}
OPS = pytest.mark.parametrize("op", SIZES, ids=lambda op: op.__name__)


def draw(op, *more):
    return [torch.randn(*more, *size, dtype=torch.float64) for size in SIZES[op]]


def together(outputs):
    return (
        outputs if isinstance(outputs, torch.Tensor) else torch.cat([x.flatten() for x in outputs])
    )


def loss(op, backend="auto"):
    """A number of all outputs, none of them alike."""

    def compute(*inputs):
        flat = together(op(*inputs, backend=backend)).flatten()
        return (flat * torch.linspace(-1, 2, flat.numel(), dtype=flat.dtype)).sum()

    return compute


def gradients(op, inputs):
    """First derivatives of the native backend in reverse mode."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    return torch.autograd.grad(loss(op, "native")(*leaves), leaves)


def assert_close(found, expected):
    found, expected = tuple(found), tuple(expected)
    assert len(found) == len(expected)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-10)


def numbers(inputs):
    return tuple(range(len(inputs)))


@OPS
def test_second_derivatives_of_the_kernels(op):
    leaves = [x.requires_grad_() for x in draw(op)]

    def outputs(*inputs):
        return op(*inputs, backend="native")

    assert torch.autograd.gradgradcheck(outputs, leaves)


@OPS
def test_a_part_of_the_inputs_may_need_gradients(op):
    inputs = draw(op)
    inputs[-1].requires_grad_()
    found = []
    for backend in ("native", "torch"):
        value = loss(op, backend)(*inputs)
        for _ in range(2):
            (value,) = torch.autograd.grad(value.square().sum(), inputs[-1:], create_graph=True)
        found.append(value)
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


def test_third_derivatives():
    leaves = [x.requires_grad_() for x in draw(self_attention)]
    found = []
    for backend in ("native", "torch"):
        value = loss(self_attention, backend)(*leaves)
        for _ in range(3):
            (value,) = torch.autograd.grad(value.square().sum(), leaves, create_graph=True)
        found.append(value)
    torch.testing.assert_close(*found)


@OPS
def test_func_grad_and_jacrev(op):
    inputs = draw(op)
    assert_close(func.grad(loss(op), numbers(inputs))(*inputs), gradients(op, inputs))
    found = func.jacrev(lambda *x: together(op(*x)), numbers(inputs))(*inputs)
    expected = torch.autograd.functional.jacobian(
        lambda *x: together(op(*x, backend="native")), tuple(inputs)
    )
    assert_close(found, expected)


@OPS
def test_forward_mode(op):
    inputs, tangents = draw(op), draw(op)
    slope = sum((g * t).sum() for g, t in zip(gradients(op, inputs), tangents, strict=True))
    _, found = func.jvp(loss(op), tuple(inputs), tuple(tangents))
    torch.testing.assert_close(found, slope, rtol=1e-10, atol=1e-10)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x, t) for x, t in zip(inputs, tangents, strict=True)]
        found = forward_ad.unpack_dual(loss(op)(*duals)).tangent
    torch.testing.assert_close(found, slope, rtol=1e-10, atol=1e-10)


@OPS
def test_hessian(op):
    """Forward over reverse mode, against reverse over reverse mode of the kernels."""
    inputs = draw(op)
    found = func.hessian(loss(op), numbers(inputs))(*inputs)
    expected = torch.autograd.functional.hessian(loss(op, "native"), tuple(inputs))
    for x, y in zip(found, expected, strict=True):
        assert_close(x, y)


@OPS
@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_vectorized_hessian(op, strategy):
    """Of torch.autograd.functional, which has a vmap of its own."""
    inputs, options = tuple(draw(op)), {"vectorize": True, "outer_jacobian_strategy": strategy}
    found = torch.autograd.functional.hessian(loss(op), inputs, **options)
    expected = torch.autograd.functional.hessian(loss(op, "native"), inputs)
    for x, y in zip(found, expected, strict=True):
        assert_close(x, y)


@OPS
def test_vectorized_jacobian_in_forward_mode(op):
    inputs, options = tuple(draw(op)), {"vectorize": True, "strategy": "forward-mode"}

    def outputs(*inputs, backend="auto"):
        return together(op(*inputs, backend=backend))

    found = torch.autograd.functional.jacobian(outputs, inputs, **options)
    expected = torch.autograd.functional.jacobian(partial(outputs, backend="native"), inputs)
    assert_close(found, expected)


@OPS
def test_batched_jacobian(op):
    """The gradient formulas themselves are batched there."""
    inputs = tuple(draw(op))
    native = [
        torch.autograd.functional.jacobian(
            lambda *x: together(op(*x, backend="native")), inputs, vectorize=vectorize
        )
        for vectorize in (True, False)
    ]
    assert_close(*native)


def axes_of(inputs):
    """Each input batched or not, along any axis; all of them at least once."""
    yield (0,) * len(inputs)
    yield (-1,) * len(inputs)
    for i in range(len(inputs)):
        yield tuple(0 if i == j else None for j in numbers(inputs))


@OPS
def test_vmap(op):
    """Values by the kernels, and gradients outside."""
    several, one = draw(op, 3), draw(op)
    for axes in axes_of(one):
        inputs = [
            y if axis is None else x.movedim(0, axis).clone()
            for x, y, axis in zip(several, one, axes, strict=True)
        ]
        leaves = [x.requires_grad_() for x in inputs]
        batched = func.vmap(lambda *x: together(op(*x, backend="native")), in_dims=axes)
        expected = torch.stack(
            [
                together(
                    op(
                        *(
                            x if axis is None else x.select(axis, i)
                            for x, axis in zip(leaves, axes, strict=True)
                        ),
                        backend="native",
                    )
                )
                for i in range(3)
            ]
        )
        found = batched(*leaves)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
        weights = torch.randn_like(found)
        results = [
            torch.autograd.grad((x * weights).sum(), leaves, create_graph=True)
            for x in (found, expected)
        ]
        assert_close(*results)
        without_graph = torch.autograd.grad((found * weights).sum(), leaves)
        assert_close(without_graph, results[1])


@OPS
def test_nested_vmap(op):
    inputs = draw(op, 2, 3)
    found = func.vmap(func.vmap(lambda *x: together(op(*x, backend="native"))))(*inputs)
    for i, j in itertools.product(range(2), range(3)):
        expected = together(op(*(x[i, j] for x in inputs), backend="native"))
        torch.testing.assert_close(found[i, j], expected, rtol=1e-10, atol=1e-10)


@OPS
def test_gradients_of_each_sample(op):
    inputs = draw(op, 3)
    found = func.vmap(func.grad(loss(op), numbers(inputs)))(*inputs)
    for i in range(3):
        assert_close([x[i] for x in found], gradients(op, [x[i] for x in inputs]))


@OPS
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_a_named_backend_refuses_what_it_cannot(op, backend):
    inputs = draw(op)
    name = re.sub("self_|_asked|_of_(all|sum|models|states)", "", op.__name__)
    message = f"^{name}: backend '{backend}' knows no derivatives of forward mode or torch.func; "
    with pytest.raises(RuntimeError, match=message) as caught:
        func.grad(loss(op, backend))(*inputs)
    assert "\n" not in str(caught.value)
    with pytest.raises(RuntimeError, match=message):
        func.jvp(loss(op, backend), tuple(inputs), tuple(inputs))
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match=message):
        op(*(forward_ad.make_dual(x, x) for x in inputs), backend=backend)
    if backend == "reference":
        with pytest.raises(RuntimeError, match="'reference' cannot serve torch.func"):
            func.vmap(loss(op, backend))(*draw(op, 2))


def test_ids_are_batched():
    """What has no gradient: a noiseless posterior, and smoothing."""
    keys, values = (
        torch.tensor([[[0, 1, 2]], [[2, 1, 0]]]),
        torch.tensor([[[1, 0, 2]], [[1, 2, 0]]]),
    )

    def posterior(keys, values):
        return ops.bijection_posterior(keys, values, 3, backend="native")

    found = func.vmap(posterior)(keys, values)
    assert_close(found, [torch.stack(x) for x in zip(*map(posterior, keys, values), strict=True)])
    y = torch.tensor([[[0, 1, 1]], [[1, -1, 0]]])
    rows = [torch.randn(*size).softmax(-1) for size in ((2, 3), (3, 3), (3, 2))]

    def smooth(y, initial):
        return ops.hmm_smooth(y, initial, *rows[1:], backend="native").smoothed

    found = func.vmap(smooth)(y, rows[0])
    torch.testing.assert_close(found, torch.stack(list(map(smooth, y, rows[0]))))


def test_wrong_values_inside_vmap_are_not_taken():
    y = torch.tensor([[[0, 5]], [[1, 0]]])
    rows = [torch.randn(*size).softmax(-1) for size in ((3,), (3, 3), (3, 2))]
    with pytest.raises(RuntimeError, match="hmm_filter"):
        func.vmap(lambda y: ops.hmm_filter(y, *rows, backend="native").filtered)(y)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_keep_their_precision_in_forward_mode(dtype):
    q, k, v = (x.to(dtype) for x in draw(attention))
    plain = ops.attention(q, k, v, capture=("weights", "entropy"))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, torch.ones_like(q))
        got = ops.attention(dual, k, v, capture=("weights", "entropy"))
        for name in OUTPUTS["attention"]:
            x, y = forward_ad.unpack_dual(getattr(got, name)), getattr(plain, name)
            assert x.primal.dtype == x.tangent.dtype == y.dtype, name
            torch.testing.assert_close(x.primal, y)


@pytest.mark.parametrize("op", [gelu, rms_norm, self_attention], ids=lambda op: op.__name__)
def test_derivatives_inside_torch_compile(op):
    inputs = draw(op)
    compiled = torch.compile(
        lambda *x: func.grad(loss(op), numbers(inputs))(*x), backend="aot_eager", fullgraph=True
    )
    assert_close(compiled(*inputs), gradients(op, inputs))


@pytest.mark.parametrize(
    "op,options",
    [(gelu, {"backend": "native"}), (self_attention, {}), (hmm_filter, {})],
    ids=["gelu", "self_attention", "hmm_filter"],
)
def test_compiled_code_keeps_to_the_kernels(op, options):
    inputs = draw(op)
    output, graph = compiled_graph(lambda *x: together(op(*x, **options)), inputs)
    expected = together(op(*inputs, backend="native"))
    torch.testing.assert_close(output, expected, rtol=0, atol=0)
    assert "torch.ops.bwt." in graph


@pytest.mark.parametrize(
    "op", [gelu, gelu_of_sum, rms_norm, add_bias, add_rms_norm], ids=lambda op: op.__name__
)
def test_what_torch_can_fuse_is_left_to_it(op):
    inputs = draw(op)
    output, graph = compiled_graph(op, inputs)
    expected = op(*inputs, backend="torch")
    torch.testing.assert_close(together(output), together(expected), rtol=0, atol=0)
    assert "torch.ops.bwt." not in graph


def compiled_graph(function, inputs):
    """The output, and the one graph that torch.compile makes of a function."""
    graphs = []

    def backend(graph, _):
        graphs.append(graph.code)
        return graph

    output = torch.compile(function, backend=backend, fullgraph=True)(*inputs)
    [graph] = graphs
    return output, graph
