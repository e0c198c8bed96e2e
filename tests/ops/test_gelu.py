"""gelu on the CPU, against the NumPy float64 reference."""

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from tolerances import gelu_error, gelu_tail_error

from bwt import reference
from bwt.ops import gelu

BACKENDS = ["native", "torch"]
DTYPES = [torch.float32, torch.float64]
SHAPES = [(), (1,), (7,), (0, 3), (3, 0), (2, 3, 5), (129, 67), (40, 1001)]


def check(x, backend="native"):
    """y and the gradient for a random one of y."""
    x = x.detach().requires_grad_()
    y = gelu(x, backend=backend)
    grad_y = torch.randn_like(y)
    (grad_x,) = torch.autograd.grad(y, x, grad_y)
    array = x.detach().double().numpy()
    assert y.shape == x.shape and y.dtype == x.dtype
    largest = np.abs(array).max(initial=0.0)
    error = np.abs(y.detach().numpy() - reference.gelu(array))
    assert error.max(initial=0.0) <= gelu_error(x.dtype, largest)
    error = np.abs(grad_x.numpy() - reference.gelu_backward(array, grad_y.double().numpy()))
    assert error.max(initial=0.0) <= gelu_error(x.dtype, largest) * max(1.0, grad_y.abs().amax())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if 0 not in shape])
def test_values_and_gradients(backend, dtype, shape):
    check(2 * torch.randn(shape, dtype=dtype), backend)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if 0 in shape])
def test_empty(shape):
    assert gelu(torch.zeros(shape)).shape == shape


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_strides(dtype):
    x = torch.randn(6, 5, 8, dtype=dtype)
    for view in (x.transpose(0, 2), x[:, 1:4, 3:], x[::2], x[:1].expand(4, 5, 8)):
        check(view)


@pytest.mark.parametrize("dtype", DTYPES)
def test_digits_of_small_values(dtype):
    """Where 1 + erf has none left."""
    x = torch.linspace(-12, 0, 4001, dtype=dtype)[:-1]
    array = x.double().numpy()
    error = np.abs(gelu(x).numpy() / reference.gelu(array) - 1)
    assert (error <= gelu_tail_error(dtype, array)).all()


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
    x = np.linspace(-30, 10, 2001)
    np.testing.assert_allclose(reference.gelu(x), x * ndtr(x), rtol=1e-12, atol=1e-300)
    step = 1e-5
    slope = (reference.gelu(x + step) - reference.gelu(x - step)) / (2 * step)
    np.testing.assert_allclose(reference.gelu_backward(x, np.ones_like(x)), slope, atol=1e-9)


def test_gradcheck():
    x = torch.linspace(-4, 4, 11, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(gelu, x)


def test_second_derivative():
    x = torch.linspace(-4, 4, 11, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(gelu, x)


@pytest.mark.parametrize("slope", [False, True])
def test_opcheck(slope):
    x = torch.randn(3, 5, requires_grad=slope)
    torch.library.opcheck(torch.ops.bwt.gelu.default, (x, slope))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_served_by_torch(dtype, monkeypatch):
    x = torch.randn(3, 5, dtype=dtype)
    assert torch.equal(gelu(x), torch.nn.functional.gelu(x))
    monkeypatch.setenv("BWT_BACKEND", "native")
    assert torch.equal(gelu(x), torch.nn.functional.gelu(x))


def test_slopes_only_for_gradients():
    assert torch.ops.bwt.gelu(torch.randn(4), False)[1].numel() == 0
    x = torch.randn(4, requires_grad=True)
    with torch.no_grad():
        assert not gelu(x).requires_grad


def test_threads_change_no_bit():
    x = torch.randn(300, 1003)
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(gelu(x))
    torch.set_num_threads(before)
    assert all(torch.equal(results[0], result) for result in results)


BAD_INPUT = {
    "list": ([1.0], {}, "x must be a floating-point tensor, got list"),
    "integers": (torch.arange(3), {}, "x must be a floating-point tensor, got torch.int64"),
    "half": (
        torch.zeros(3).half(),
        {"backend": "native"},
        "backend 'native' takes float32, float64, got",
    ),
    "backend": (torch.zeros(3), {"backend": "triton"}, "no backend 'triton'; choose one of"),
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
