"""rms_norm on the CPU, against the NumPy float64 reference."""

import math

import numpy as np
import pytest
import torch
from helpers.tolerances import norm_error

from bwt import reference
from bwt.ops import rms_norm
from bwt.reference._rows import of_each_row

BACKENDS = ["native", "torch"]
DTYPES = [torch.float32, torch.float64]
SHAPES = [(1,), (5,), (1, 1), (3, 2, 7), (2, 64), (70, 33), (500, 192), (9, 1001)]


def assert_close(got, want, bound, terms=None):
    """Within the bound relative to the largest entry, or to the largest of the terms it sums."""
    assert got.shape == want.shape
    largest = np.abs(want if terms is None else terms).max()
    assert np.abs(got.detach().numpy() - want).max() <= bound * largest


def check(x, weight, backend="native", **options):
    """y and the gradients for a random one of y."""
    leaves = [tensor.detach().requires_grad_() for tensor in (x, weight)]
    y = rms_norm(*leaves, **options, backend=backend)
    grad_y = torch.randn_like(y)
    grad_x, grad_weight = torch.autograd.grad(y, leaves, grad_y)
    arrays = [tensor.detach().double().numpy() for tensor in (x, weight)]
    assert y.dtype == x.dtype
    assert_close(y, reference.rms_norm(*arrays, **options), norm_error(x.dtype, x.shape[-1]))
    grad_y = grad_y.double().numpy()
    wanted = reference.rms_norm_backward(*arrays, grad_y, **options)
    mean = (arrays[0] ** 2).mean(-1, keepdims=True)
    terms = of_each_row(arrays[1], grad_y) * grad_y / np.sqrt(mean + options.get("epsilon", 1e-6))
    assert_close(grad_x, wanted[0], norm_error(x.dtype, x.shape[-1]), terms)
    assert_close(grad_weight, wanted[1], norm_error(x.dtype, x.shape[:-1].numel()))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients(backend, dtype, shape):
    check(torch.randn(shape, dtype=dtype), torch.randn(shape[-1], dtype=dtype), backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_of_many_models(backend, dtype):
    """Each has a gain of its own, and rows that follow one another, whatever the axes."""
    for shape, models in [((6, 7), 3), ((3, 4, 5), 6), ((2, 3, 9), 2), ((200, 33), 2)]:
        check(torch.randn(shape, dtype=dtype), torch.randn(models, shape[-1], dtype=dtype), backend)


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_strides(dtype):
    x, weight = torch.randn(6, 5, 8, dtype=dtype), torch.randn(6, dtype=dtype)
    check(x.transpose(0, 2), weight)
    check(x[:, 1:4, 2:], weight)
    check(x[::2, :, :6], weight.expand(2, 6).T[:, 0])
    check(x[0, :1].expand(4, 8), torch.ones(1, dtype=dtype).expand(8))


@pytest.mark.parametrize("dtype", DTYPES)
def test_small_and_zero_rows(dtype):
    """Where epsilon decides."""
    x, weight = 1e-3 * torch.randn(4, 9, dtype=dtype), torch.randn(9, dtype=dtype)
    x[1] = 0
    for epsilon in (1e-6, 0.5):
        check(x, weight, epsilon=epsilon)
    assert (rms_norm(x, weight)[1] == 0).all()


def test_empty():
    x, weight = torch.zeros(0, 3, 4, requires_grad=True), torch.ones(4, requires_grad=True)
    y = rms_norm(x, weight)
    y.sum().backward()
    assert y.shape == x.grad.shape == (0, 3, 4) and weight.grad.tolist() == [0] * 4


def test_reference_gradient_is_that_of_the_reference():
    rng = np.random.default_rng(0)
    x, weight, grad_y = rng.normal(size=(2, 3)), rng.normal(size=3), rng.normal(size=(2, 3))
    found = reference.rms_norm_backward(x, weight, grad_y, epsilon=0.1)
    for array, gradient in zip((x, weight), found, strict=True):
        for index in np.ndindex(array.shape):
            sides = []
            for step in (1e-6, -1e-6):
                array[index] += step
                sides.append((reference.rms_norm(x, weight, epsilon=0.1) * grad_y).sum())
                array[index] -= step
            assert abs((sides[0] - sides[1]) / 2e-6 - gradient[index]) < 1e-8


def test_reference_is_the_definition():
    got = reference.rms_norm([[3.0, 4.0]], [1.0, 2.0], epsilon=12.5)
    np.testing.assert_allclose(got, [[3 / 5, 2 * 4 / 5]], rtol=1e-15)


def test_gradcheck():
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(rms_norm, (x, weight))


def test_second_derivative():
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(rms_norm, (x, weight))


def test_opcheck():
    x, weight = torch.randn(4, 5, requires_grad=True), torch.randn(5, requires_grad=True)
    torch.library.opcheck(torch.ops.bwt.rms_norm.default, (x, weight, 1e-6))
    arguments = (torch.ones(4, 5), x.detach(), weight.detach(), torch.ones(4))
    torch.library.opcheck(torch.ops.bwt.rms_norm_backward.default, arguments)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_served_by_torch_also_beside_a_weight_in_float32(dtype):
    x, weight = torch.randn(4, 5, dtype=dtype), torch.randn(5)
    want = torch.nn.functional.rms_norm(x, (5,), weight.to(dtype), 1e-6)
    for same in (weight, weight.to(dtype)):
        y = rms_norm(x, same)
        assert y.dtype == dtype and torch.equal(y, want)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_of_many_models_are_rounded_once(dtype):
    x, weight = torch.randn(6, 5, dtype=dtype), torch.randn(3, 5, dtype=dtype)
    want = rms_norm(x.float(), weight.float(), backend="torch").to(dtype)
    assert torch.equal(rms_norm(x, weight), want)


def test_threads_change_no_bit():
    x = torch.randn(500, 131, requires_grad=True)
    weight = torch.randn(131, requires_grad=True)
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        y = rms_norm(x, weight)
        results.append([y, *torch.autograd.grad(y.square().sum(), (x, weight))])
    torch.set_num_threads(before)
    assert all(map(torch.equal, results[0] * 2, results[1] + results[2]))


X, WEIGHT = torch.zeros(2, 3), torch.ones(3)
BAD_INPUT = {
    "list": (([1.0], WEIGHT), {}, "x must be a floating-point tensor, got list"),
    "integers": ((X.long(), WEIGHT), {}, "x must be a floating-point tensor, got torch.int64"),
    "dtypes": ((X, WEIGHT.double()), {}, "x and weight must agree in dtype and device"),
    "scalar": ((X[0, 0], WEIGHT), {}, r"x must be \[..., C\] with C >= 1"),
    "no channels": ((X[:, :0], WEIGHT[:0]), {}, r"x must be \[..., C\] with C >= 1"),
    "weight": ((X, WEIGHT[:2]), {}, r"weight must be \[C\] = \[3\] as x says, .* got \[2\]"),
    "models": ((X, WEIGHT.expand(4, 3)), {}, "2 rows of x are not those of 4 models"),
    "half": (
        (X.half(), WEIGHT.half()),
        {"backend": "native"},
        "backend 'native' takes float32, float64, got",
    ),
    "half weight": ((X, WEIGHT.half()), {}, "x and weight must agree in dtype and device"),
    "negative": ((X, WEIGHT), {"epsilon": -1e-6}, "epsilon must be at least 0, got -1e-06"),
    "nan": ((X, WEIGHT), {"epsilon": math.nan}, "epsilon must be at least 0, got nan"),
    "backend": ((X, WEIGHT), {"backend": "cuda"}, "no backend 'cuda'; choose one of"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_answered_with_one_clear_line(name):
    inputs, options, message = BAD_INPUT[name]
    with pytest.raises(ValueError, match=f"rms_norm: {message}") as caught:
        rms_norm(*inputs, **options)
    assert "\n" not in str(caught.value)


def test_reference_backend():
    x, weight = torch.randn(4, 3), torch.randn(3)
    torch.testing.assert_close(rms_norm(x, weight, backend="reference"), rms_norm(x, weight))
    with pytest.raises(RuntimeError, match="backend 'reference' has no gradient"):
        rms_norm(x.requires_grad_(), weight, backend="reference")
