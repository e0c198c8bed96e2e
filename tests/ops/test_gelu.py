"""gelu on the CPU, against the NumPy float64 reference."""

import mpmath
import numpy as np
import pytest
import torch
from helpers.tolerances import gelu_error, gelu_tail_error, norm_error

from bwt import reference
from bwt.ops import gelu

BACKENDS = ["native", "torch"]
DTYPES = [torch.float32, torch.float64]
SHAPES = [(), (1,), (7,), (0, 3), (3, 0), (2, 3, 5), (129, 67), (40, 1001)]


def check(x, bias=None, backend="native"):
    """y and the gradients for a random one of y."""
    leaves = [None if t is None else t.detach().requires_grad_() for t in (x, bias)]
    y = gelu(*leaves, backend=backend)
    grad_y = torch.randn_like(y)
    found = torch.autograd.grad(y, [leaf for leaf in leaves if leaf is not None], grad_y)
    arrays = [None if t is None else t.detach().double().numpy() for t in (x, bias)]
    assert y.shape == x.shape and y.dtype == x.dtype
    largest = sum(np.abs(array).max(initial=0.0) for array in arrays if array is not None)
    bound = gelu_error(x.dtype, largest)
    error = np.abs(y.detach().numpy() - reference.gelu(*arrays))
    assert error.max(initial=0.0) <= bound
    wanted = reference.gelu_backward(arrays[0], grad_y.double().numpy(), arrays[1])
    wanted = [wanted] if bias is None else wanted
    bound = bound * max(1.0, float(grad_y.abs().amax()))
    assert np.abs(found[0].numpy() - wanted[0]).max(initial=0.0) <= bound
    if bias is not None:
        # A sum over rows, with rounding errors of its own.
        rows = x.shape[:-1].numel()
        bound = bound * rows**0.5 + norm_error(x.dtype, rows) * np.abs(wanted[1]).max()
        assert found[1].shape == bias.shape
        assert np.abs(found[1].numpy() - wanted[1]).max() <= bound


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if 0 not in shape])
def test_values_and_gradients(backend, dtype, shape):
    check(2 * torch.randn(shape, dtype=dtype), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape and 0 not in shape])
def test_values_of_sums(backend, dtype, shape):
    check(torch.randn(shape, dtype=dtype), torch.randn(shape[-1], dtype=dtype), backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_of_many_models(backend, dtype):
    """Each has a bias of its own, and rows that follow one another, whatever the axes."""
    for shape, models in [((6, 7), 3), ((3, 4, 5), 6), ((2, 3, 9), 2), ((200, 33), 2)]:
        check(torch.randn(shape, dtype=dtype), torch.randn(models, shape[-1], dtype=dtype), backend)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if 0 in shape])
def test_empty(shape):
    assert gelu(torch.zeros(shape)).shape == shape
    if shape[-1]:
        bias = torch.ones(shape[-1], requires_grad=True)
        gelu(torch.zeros(shape), bias).sum().backward()
        assert not bias.grad.any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_strides(dtype):
    x = torch.randn(6, 5, 8, dtype=dtype)
    for view in (x.transpose(0, 2), x[:, 1:4, 3:], x[::2], x[:1].expand(4, 5, 8)):
        check(view)
        check(view, torch.randn(view.shape[-1], 2, dtype=dtype)[:, 1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_digits_of_small_values(dtype):
    """Where 1 + erf has none left, down to the smallest normal numbers."""
    lowest = -13.0 if dtype == torch.float32 else -37.0
    x = torch.linspace(lowest, 0, 4001, dtype=dtype)[:-1].requires_grad_()
    y = gelu(x)
    (slope,) = torch.autograd.grad(y.sum(), x)
    array, bound = x.detach().double().numpy(), gelu_tail_error(dtype)
    expected = reference.gelu(array)
    np.testing.assert_allclose(y.detach(), expected, rtol=bound, atol=0)
    # The slope is a sum of Phi(x) and a term of the other sign.
    terms = np.abs(reference.gelu_backward(array, np.ones_like(array))) + expected / array
    error = slope.numpy() - reference.gelu_backward(array, np.ones_like(array))
    assert (np.abs(error) <= bound * terms).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_ends(dtype):
    """Far out it is 0 or x, with slope 0 or 1; what is not a number stays so."""
    huge = torch.finfo(dtype).max
    x = torch.tensor([-huge, -50.0, 50.0, huge, float("inf")], dtype=dtype, requires_grad=True)
    y = gelu(x)
    assert y.tolist() == [0, 0, *x.tolist()[2:]]
    (slope,) = torch.autograd.grad(y[:4].sum(), x)
    assert slope[:4].tolist() == [0, 0, 1, 1]
    assert gelu(torch.tensor([float("nan"), 1.0], dtype=dtype)).isnan().tolist() == [True, False]


def test_reference_is_the_definition():
    """Compare value and slope with 400 bits, also where exp(-z^2 / 2) is hard to compute."""
    x = np.linspace(-37.5, 10, 120)
    near = np.linspace(-1e-6, 1e-6, 20)
    x = np.concatenate([x, -36.5 + near, -12 + near])
    with mpmath.workprec(400):
        exact = [(z * mpmath.ncdf(z), mpmath.ncdf(z), z * mpmath.npdf(z)) for z in x.tolist()]
        value, slope = np.array([(y, p + rise) for y, p, rise in exact], np.float64).T
        terms = np.array([p + abs(rise) for _, p, rise in exact], np.float64)
    # A few roundings of each factor, and those of the two terms of the slope, which may cancel.
    bound = 8 * np.finfo(np.float64).eps
    np.testing.assert_allclose(reference.gelu(x), value, rtol=bound, atol=0)
    error = np.abs(reference.gelu_backward(x, np.ones_like(x)) - slope)
    assert (error <= bound * terms).all()


def test_gradcheck():
    x = torch.linspace(-4, 4, 11, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(gelu, x)


def test_second_derivative():
    x = torch.linspace(-4, 4, 11, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(gelu, x)


@pytest.mark.parametrize("bias", [None, torch.randn(5), torch.randn(3, 5)])
def test_opcheck(bias):
    x = torch.randn(3, 5, requires_grad=True)
    torch.library.opcheck(torch.ops.bwt.gelu.default, (x, bias))
    torch.library.opcheck(torch.ops.bwt.gelu_backward.default, (torch.ones(3, 5), x.detach(), bias))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_served_by_torch(dtype, monkeypatch):
    x = torch.randn(3, 5, dtype=dtype)
    assert torch.equal(gelu(x), torch.nn.functional.gelu(x))
    monkeypatch.setenv("BWT_BACKEND", "native")
    assert torch.equal(gelu(x), torch.nn.functional.gelu(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_of_halves_are_rounded_once(dtype):
    x = torch.randn(6, 5, dtype=dtype)
    for bias in (torch.randn(5), torch.randn(5, dtype=dtype), torch.randn(3, 5, dtype=dtype)):
        want = gelu(x.float(), bias.float(), backend="torch").to(dtype)
        assert torch.equal(gelu(x, bias), want)


def test_threads_change_no_bit():
    x = torch.randn(300, 1003, requires_grad=True)
    bias = torch.randn(3, 1003, requires_grad=True)
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        y = gelu(x, bias)
        results.append([gelu(x), y, *torch.autograd.grad(y.square().sum(), (x, bias))])
    torch.set_num_threads(before)
    assert all(map(torch.equal, results[0] * 2, results[1] + results[2]))


BAD_INPUT = {
    "list": ([1.0], {}, "x must be a floating-point tensor, got list"),
    "integers": (torch.arange(3), {}, "x must be a floating-point tensor, got torch.int64"),
    "half": (
        torch.zeros(3).half(),
        {"backend": "native"},
        "backend 'native' takes float32, float64, got",
    ),
    "backend": (torch.zeros(3), {"backend": "triton"}, "no backend 'triton'; choose one of"),
    "bias": (torch.zeros(2, 3), {"bias": torch.zeros(2)}, r"bias must be \[C\] = \[3\] as x says"),
    "scalar": (torch.zeros(()), {"bias": torch.zeros(1)}, r"x must be \[..., C\] with C >= 1"),
    "models": (
        torch.zeros(3, 2),
        {"bias": torch.zeros(2, 2)},
        "3 rows of x are not those of 2 models, as bias says",
    ),
    "dtypes": (
        torch.zeros(3),
        {"bias": torch.zeros(3).double()},
        "x and bias must agree in dtype and device",
    ),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_answered_with_one_clear_line(name):
    x, options, message = BAD_INPUT[name]
    with pytest.raises(ValueError, match=f"gelu: {message}") as caught:
        gelu(x, **options)
    assert "\n" not in str(caught.value)


def test_reference_backend():
    x = torch.randn(5, requires_grad=True)
    torch.testing.assert_close(gelu(x.detach(), backend="reference"), gelu(x.detach()))
    with pytest.raises(RuntimeError, match="backend 'reference' has no gradient"):
        gelu(x, backend="reference")
