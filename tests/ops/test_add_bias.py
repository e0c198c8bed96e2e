"""add_bias on the CPU, against the NumPy float64 reference."""

import numpy as np
import pytest
import torch
from helpers.tolerances import norm_error, rounding

from bwt import reference
from bwt.ops import add_bias, add_rms_norm, gelu

BACKENDS = ["native", "torch"]
DTYPES = [torch.float32, torch.float64]
CASES = [((5,), ()), ((2, 3, 7), ()), ((70, 33), ()), ((6, 7), (3,)), ((3, 4, 5), (6,))]


def check(x, bias, backend="native"):
    leaves = [tensor.detach().requires_grad_() for tensor in (x, bias)]
    y = add_bias(*leaves, backend=backend)
    grad_y = torch.randn_like(y)
    found = torch.autograd.grad(y, leaves, grad_y)
    arrays = [tensor.detach().double().numpy() for tensor in (x, bias)]
    want = reference.add_bias(*arrays)
    assert y.dtype == x.dtype and y.shape == want.shape
    assert np.abs(y.detach().numpy() - want).max() <= rounding(x.dtype) * np.abs(want).max()
    wanted = reference.add_bias_backward(*arrays, grad_y.double().numpy())
    assert np.array_equal(found[0].double().numpy(), wanted[0])
    assert found[1].shape == bias.shape
    bound = norm_error(x.dtype, x.shape[:-1].numel()) * np.abs(wanted[1]).max()
    assert np.abs(found[1].numpy() - wanted[1]).max() <= bound


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape,models", CASES)
def test_values_and_gradients(backend, dtype, shape, models):
    bias = torch.randn(*models, shape[-1], dtype=dtype)
    check(torch.randn(shape, dtype=dtype), bias, backend)


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_strides(dtype):
    x = torch.randn(6, 5, 8, dtype=dtype)
    for view in (x.transpose(0, 2), x[:, 1:4, 3:], x[:1].expand(4, 5, 8)):
        check(view, torch.randn(view.shape[-1], 2, dtype=dtype)[:, 1])


def test_empty():
    x, bias = torch.zeros(0, 3, 4, requires_grad=True), torch.ones(4, requires_grad=True)
    add_bias(x, bias).sum().backward()
    assert x.grad.shape == (0, 3, 4) and bias.grad.tolist() == [0] * 4


def test_takes_the_place_of_what_is_added_in_passing():
    """Bit for bit, gradients too, so that looking between two ops changes nothing."""
    x, branch, grad = torch.randn(3, 90, 67).unbind()
    weight, bias = torch.randn(2, 67).unbind()

    def gradients(apart: bool):
        leaves = [t.clone().requires_grad_() for t in (x, branch, weight, bias)]
        x_, branch_, weight_, bias_ = leaves
        if apart:
            total = x_ + add_bias(branch_, bias_)
            outputs = [total, torch.ops.bwt.rms_norm(total, weight_, 1e-6)[0]]
            outputs.append(gelu(add_bias(x_, bias_)))
        else:
            outputs = [*add_rms_norm(x_, branch_, weight_, bias_), gelu(x_, bias_)]
        # One after another: a sum of three gradients depends on its order.
        first = torch.autograd.grad(outputs[:2], leaves, [grad, grad.flip(0)])
        second = torch.autograd.grad(outputs[2], [x_, bias_], grad)
        return [*outputs, *first, *second]

    assert all(map(torch.equal, gradients(True), gradients(False)))


def test_reference_is_the_definition():
    got = reference.add_bias([[1.0], [2.0], [3.0], [4.0]], [[10.0], [20.0]])
    np.testing.assert_array_equal(got, [[11.0], [12.0], [23.0], [24.0]])
    _, grad_bias = reference.add_bias_backward(np.ones((4, 1)), [[0.0], [0.0]], np.ones((4, 1)))
    np.testing.assert_array_equal(grad_bias, [[2.0], [2.0]])


def test_opcheck():
    x, bias = torch.randn(4, 5, requires_grad=True), torch.randn(2, 5, requires_grad=True)
    torch.library.opcheck(torch.ops.bwt.add_bias.default, (x, bias))
    torch.library.opcheck(torch.ops.bwt.add_bias_backward.default, (x.detach(), bias.detach()))


def test_threads_change_no_bit():
    x, bias = torch.randn(500, 131), torch.randn(2, 131, requires_grad=True)
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        y = add_bias(x, bias)
        results.append([y, *torch.autograd.grad(y.square().sum(), bias)])
    torch.set_num_threads(before)
    assert all(map(torch.equal, results[0] * 2, results[1] + results[2]))


X, BIAS = torch.zeros(2, 3), torch.ones(3)
BAD_INPUT = {
    "list": (([1.0], BIAS), {}, "x must be a floating-point tensor, got list"),
    "dtypes": ((X, BIAS.double()), {}, "x and bias must agree in dtype and device"),
    "scalar": ((X[0, 0], BIAS), {}, r"x must be \[..., C\] with C >= 1"),
    "bias": ((X, BIAS[:2]), {}, r"bias must be \[C\] = \[3\] as x says, .* got \[2\]"),
    "models": ((X, BIAS.expand(4, 3)), {}, "2 rows of x are not those of 4 models"),
    "half": ((X.half(), BIAS.half()), {"backend": "native"}, "backend 'native' takes float32"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_answered_with_one_clear_line(name):
    inputs, options, message = BAD_INPUT[name]
    with pytest.raises(ValueError, match=f"add_bias: {message}") as caught:
        add_bias(*inputs, **options)
    assert "\n" not in str(caught.value)


def test_reference_backend():
    x, bias = torch.randn(4, 3), torch.randn(3)
    torch.testing.assert_close(add_bias(x, bias, backend="reference"), x + bias)
    with pytest.raises(RuntimeError, match="backend 'reference' has no gradient"):
        add_bias(x.requires_grad_(), bias, backend="reference")
