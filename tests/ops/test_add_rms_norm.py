"""add_rms_norm on the CPU, against the NumPy float64 reference."""

import math

import numpy as np
import pytest
import torch
from helpers.tolerances import norm_error, rounding

from bwt import reference
from bwt.ops import add_rms_norm

BACKENDS = ["native", "torch"]
DTYPES = [torch.float32, torch.float64]
CASES = [
    *(((5,), ()), ((1, 1), ()), ((3, 2, 7), ()), ((70, 33), ()), ((500, 192), ()), ((9, 1001), ())),
    *(((6, 7), (3,)), ((3, 4, 5), (6,)), ((200, 33), (2,))),
]


def assert_close(got, want, bound, terms=None):
    """Within the bound relative to the largest entry, or to the largest of the terms it sums."""
    assert got.shape == want.shape
    largest = np.abs(want if terms is None else terms).max()
    assert np.abs(got.detach().numpy() - want).max() <= bound * largest


def check(x, branch, weight, bias=None, backend="native", **options):
    """Both outputs, and the gradients for random ones of them."""
    leaves = [t.detach().requires_grad_() for t in (x, branch, weight, bias) if t is not None]
    outputs = add_rms_norm(*leaves, **options, backend=backend)
    grads = [torch.randn_like(output) for output in outputs]
    found = torch.autograd.grad(tuple(outputs), leaves, grads)
    arrays = [leaf.detach().double().numpy() for leaf in leaves]
    wanted = reference.add_rms_norm(*arrays, **options)
    assert outputs.total.dtype == outputs.normalised.dtype == x.dtype
    few, rows = norm_error(x.dtype, x.shape[-1]), norm_error(x.dtype, x.shape[:-1].numel())
    assert_close(outputs.total, wanted.total, 2 * rounding(x.dtype))
    # A total is rounded, and its row may be smaller than its terms.
    smallest = np.sqrt((wanted.total**2).mean(-1).min() + options.get("epsilon", 1e-6))
    few, rows = (error * max(1.0, 1 / smallest) for error in (few, rows))
    assert_close(outputs.normalised, wanted.normalised, few)
    incoming = [grad.double().numpy() for grad in grads]
    wanted = reference.add_rms_norm_backward(*arrays[:3], *incoming, *arrays[3:], **options)
    terms = np.abs(incoming[0]) + np.abs(arrays[2]).max() * np.abs(incoming[1]) / smallest
    for got, want in zip(found[:2], wanted[:2], strict=True):
        assert_close(got, want, few, terms)
    assert_close(found[2], wanted[2], rows)
    if bias is not None:
        assert_close(found[3], wanted[3], rows)


def draw(shape, models, dtype):
    rows = [torch.randn(shape, dtype=dtype) for _ in range(2)]
    return [*rows, *(torch.randn(*models, shape[-1], dtype=dtype) for _ in range(2))]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape,models", CASES)
def test_values_and_gradients(backend, dtype, shape, models):
    inputs = draw(shape, models, dtype)
    check(*inputs, backend=backend)
    check(*inputs[:3], backend=backend, epsilon=0.5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_strides(dtype):
    x, branch = torch.randn(2, 6, 5, 8, dtype=dtype)
    weight, bias = torch.randn(6, 2, dtype=dtype).t()
    check(x.transpose(0, 2), branch.transpose(0, 2), weight, bias)
    check(x[:, 1:4, 2:], branch[:, :3, :6], weight, bias)
    check(x[0, :1].expand(4, 8)[:, :6], branch[0, :4, ::2].repeat(1, 2)[:, :6], weight, bias)


@pytest.mark.parametrize("unused", ["total", "normalised"])
def test_values_of_one_output_alone(unused):
    x, branch, weight, bias = draw((9, 7), (), torch.float64)
    leaves = [t.requires_grad_() for t in (x, branch, weight, bias)]
    used = getattr(add_rms_norm(*leaves), {"total": "normalised", "normalised": "total"}[unused])
    grad = torch.randn(9, 7, dtype=torch.float64)
    found = torch.autograd.grad(used, leaves, grad, allow_unused=True)
    incoming = (
        [torch.zeros_like(grad), grad] if unused == "total" else [grad, torch.zeros_like(grad)]
    )
    arrays = [t.detach().numpy() for t in (*leaves[:3], *incoming, bias)]
    for got, want in zip(found, reference.add_rms_norm_backward(*arrays), strict=True):
        got = torch.zeros(want.shape) if got is None else got
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_empty():
    x = torch.zeros(0, 3, 4, requires_grad=True)
    weight, bias = torch.ones(2, 4).unbind()
    weight, bias = weight.requires_grad_(), bias.requires_grad_()
    total, y = add_rms_norm(x, x.detach(), weight, bias)
    (total + y).sum().backward()
    assert y.shape == x.grad.shape == (0, 3, 4)
    assert weight.grad.tolist() == bias.grad.tolist() == [0] * 4


def test_reference_gradient_is_that_of_the_reference():
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=size) for size in ((4, 3), (4, 3), (2, 3), (2, 3))]
    grads = rng.normal(size=(2, 4, 3))
    found = reference.add_rms_norm_backward(*inputs[:3], *grads, inputs[3], epsilon=0.1)
    for array, gradient in zip(inputs, found, strict=True):
        for index in np.ndindex(array.shape):
            sides = []
            for step in (1e-6, -1e-6):
                array[index] += step
                sides.append((reference.add_rms_norm(*inputs, epsilon=0.1) * grads).sum())
                array[index] -= step
            assert abs((sides[0] - sides[1]) / 2e-6 - gradient[index]) < 1e-8


def test_reference_is_the_definition():
    got = reference.add_rms_norm([[1.0, 5.0]], [[1.0, -1.0]], [1.0, 2.0], [1.0, 0.0], epsilon=12.5)
    np.testing.assert_allclose(got.total, [[3, 4]], rtol=1e-15)
    np.testing.assert_allclose(got.normalised, [[3 / 5, 2 * 4 / 5]], rtol=1e-15)


def test_opcheck():
    x, branch, weight, bias = (t.requires_grad_() for t in draw((4, 5), (2,), torch.float32))
    torch.library.opcheck(torch.ops.bwt.add_rms_norm.default, (x, branch, weight, bias, 1e-6))
    inner = (torch.ones(4, 5), torch.ones(4, 5), x.detach(), weight.detach(), torch.ones(4))
    for with_bias in (False, True):
        torch.library.opcheck(torch.ops.bwt.add_rms_norm_backward.default, (*inner, with_bias))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("models", [(), (2,)])
def test_halves_are_rounded_after_each_output(dtype, models):
    inputs = [t.to(dtype) for t in draw((4, 5), models, torch.float32)]
    total, y = add_rms_norm(*inputs)
    x, branch, weight, bias = (t.float() for t in inputs)
    want = add_rms_norm(x, branch, weight, bias, backend="torch").total.to(dtype)
    assert torch.equal(total, want) and y.dtype == dtype
    want = add_rms_norm(want.float(), torch.zeros(4, 5), weight, backend="torch").normalised
    assert (y - want).abs().max() <= torch.finfo(dtype).eps * want.abs().max()


def test_threads_change_no_bit():
    leaves = [t.requires_grad_() for t in draw((500, 131), (2,), torch.float32)]
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        total, y = add_rms_norm(*leaves)
        loss = total.square().sum() + y.sin().sum()
        results.append([total, y, *torch.autograd.grad(loss, leaves)])
    torch.set_num_threads(before)
    assert all(map(torch.equal, results[0] * 2, results[1] + results[2]))


X, WEIGHT = torch.zeros(2, 3), torch.ones(3)
BAD_INPUT = {
    "list": (([1.0], X, WEIGHT), {}, "x must be a floating-point tensor, got list"),
    "dtypes": ((X, X.double(), WEIGHT), {}, "x and branch must agree in dtype and device"),
    "scalar": ((X[0, 0], X[0, 0], WEIGHT), {}, r"x must be \[..., C\] with C >= 1"),
    "branch": ((X, X[:1], WEIGHT), {}, r"branch must have the shape of x, \[2, 3\], got \[1, 3\]"),
    "weight": ((X, X, WEIGHT[:2]), {}, r"weight must be \[C\] = \[3\] as x says, .* got \[2\]"),
    "bias": (
        (X, X, WEIGHT, WEIGHT.expand(2, 3)),
        {},
        r"bias must have the shape of weight, \[3\], got \[2, 3\]",
    ),
    "half": (
        (X.half(), X.half(), WEIGHT.half()),
        {"backend": "native"},
        "backend 'native' takes float32, float64, got",
    ),
    "negative": ((X, X, WEIGHT), {"epsilon": -1e-6}, "epsilon must be at least 0, got -1e-06"),
    "nan": ((X, X, WEIGHT), {"epsilon": math.nan}, "epsilon must be at least 0, got nan"),
    "backend": ((X, X, WEIGHT), {"backend": "cuda"}, "no backend 'cuda'; choose one of"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_answered_with_one_clear_line(name):
    inputs, options, message = BAD_INPUT[name]
    with pytest.raises(ValueError, match=f"add_rms_norm: {message}") as caught:
        add_rms_norm(*inputs, **options)
    assert "\n" not in str(caught.value)


def test_reference_backend():
    inputs = draw((4, 3), (), torch.float32)
    found, wanted = add_rms_norm(*inputs, backend="reference"), add_rms_norm(*inputs)
    torch.testing.assert_close(tuple(found), tuple(wanted))
    with pytest.raises(RuntimeError, match="backend 'reference' has no gradient"):
        add_rms_norm(inputs[0].requires_grad_(), *inputs[1:], backend="reference")
