"""selective_scan from an initial state to the last one: against the reference, and segments that
hand their state on against the whole."""

import numpy as np
import pytest
import torch
from helpers.scan_inputs import (
    DTYPES,
    HALVES,
    assert_close,
    assert_gradients,
    assert_values,
    draw,
    draw_states,
    to_arrays,
)
from helpers.tolerances import scan_error

from bwt import reference
from bwt.ops import selective_scan, selective_scan_states

BACKENDS = ["native", "torch"]
SHAPES = [(1, 1, 1, 1), (3, 17, 9, 3), (2, 33, 21, 16), (2, 48, 70, 5)]
EACH_SHAPE = pytest.mark.parametrize("shape", SHAPES, ids="B{0[0]}-L{0[1]}-E{0[2]}-N{0[3]}".format)


def run(tensors, initial, grad_last, softplus, backend):
    leaves = [x.detach().requires_grad_() for x in (*tensors, initial)]
    *inputs, start = leaves
    options = {"delta_softplus": softplus, "initial_state": start, "return_last_state": True}
    y, last = selective_scan(*inputs, backend=backend, **options)
    grad_y = torch.from_numpy(np.random.default_rng(1).normal(size=y.shape)).to(y.dtype)
    return y, last, grad_y, torch.autograd.grad((y, last), leaves, (grad_y, grad_last))


def check(tensors, softplus=True, backend="native"):
    initial, grad_last = draw_states(tensors)
    y, last, grad_y, gradients = run(tensors, initial, grad_last, softplus, backend)
    assert_values(tensors, y, softplus, initial, last)
    assert_gradients(tensors, grad_y, gradients, softplus, initial, grad_last)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("softplus", [False, True])
@EACH_SHAPE
def test_values_and_gradients(backend, dtype, softplus, shape):
    check(draw(*shape, dtype, softplus=softplus), softplus, backend)


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_steps_leave_the_state(dtype):
    check(draw(2, 0, 3, 4, dtype))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("models", [2, 3])
def test_of_models(backend, models):
    check(draw(6, 19, 9, 5, models=models), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", HALVES)
def test_halves(backend, dtype):
    """The states are float32, and an initial one in half is taken too."""
    tensors = draw(4, 37, 9, 5, dtype)
    check(tensors, backend=backend)
    half = draw_states(tensors)[0].to(dtype)
    y = selective_scan(*tensors, delta_softplus=True, initial_state=half, backend=backend)
    assert_values(tensors, y, True, half)


def test_states_beyond_the_normal_numbers():
    """A state that is gone at once whatever it was, and one that stays."""
    u, delta, A, B, C, D = draw(2, 40, 9, 6, torch.float32, softplus=False)
    A[:, 2], A[:, 3] = -5000.0, 0.0
    delta[0, 0] = 30.0
    check([u, delta, A, B, C, D], False)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("cut", [1, 16, 21, 39])
def test_segments_are_the_whole(backend, cut):
    """Values and all gradients, those of the parameters summed."""
    tensors = [x.requires_grad_() for x in draw(2, 40, 9, 5)]
    initial, grad_last = draw_states(tensors)
    initial.requires_grad_()
    u, delta, A, B, C, D = tensors
    options = {"delta_softplus": True, "return_last_state": True, "backend": backend}
    ys, state = [], initial
    for part in (slice(0, cut), slice(cut, None)):
        rows = u[:, part], delta[:, part], A, B[:, part], C[:, part], D
        y, state = selective_scan(*rows, initial_state=state, **options)
        ys.append(y)
    y, grad_y = torch.cat(ys, 1), torch.ones_like(u)
    found = torch.autograd.grad((y, state), (*tensors, initial), (grad_y, grad_last))
    assert_values(tensors, y, True, initial, state)
    assert_gradients(tensors, grad_y, found, True, initial, grad_last)


@pytest.mark.parametrize("used", ["y", "last"])
def test_gradient_of_one_result_alone(used):
    tensors = [x.requires_grad_() for x in draw(2, 20, 6, 4)]
    initial, grad_last = draw_states(tensors)
    initial.requires_grad_()
    options = {"delta_softplus": True, "initial_state": initial, "return_last_state": True}
    y, last = selective_scan(*tensors, **options)
    grad_y = torch.ones_like(y) if used == "y" else torch.zeros_like(y)
    grad_last = None if used == "y" else grad_last
    outputs, incoming = (y, grad_y) if used == "y" else (last, grad_last)
    found = torch.autograd.grad(outputs, (*tensors, initial), incoming)
    assert_gradients(tensors, grad_y, found, True, initial, grad_last)


def test_gradient_of_the_initial_state_alone():
    tensors = draw(2, 20, 6, 4)
    initial, grad_last = draw_states(tensors)
    initial.requires_grad_()
    options = {"delta_softplus": True, "initial_state": initial, "return_last_state": True}
    _, last = selective_scan(*tensors, **options)
    (found,) = torch.autograd.grad(last, initial, grad_last)
    nothing = torch.zeros_like(tensors[0])
    *_, expected = reference.selective_scan_backward(
        *to_arrays([nothing, *tensors]),
        delta_softplus=True,
        initial_state=initial.detach().numpy(),
        grad_last_state=grad_last.numpy(),
    )
    assert_close("gradient of initial state", found, expected, scan_error(torch.float64, 20, 4))


@pytest.mark.parametrize("backend", ["native", "torch", "reference"])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16])
def test_all_states(backend, dtype):
    u, delta, A, B, C, _ = draw(4, 35, 11, 5, dtype)
    initial, _ = draw_states((u, delta, A))
    options = {"delta_softplus": True, "initial_state": initial}
    got = selective_scan_states(u, delta, A, B, backend=backend, **options)
    arrays, (start,) = to_arrays((u, delta, A, B)), to_arrays([initial])
    expected = reference.selective_scan_states(*arrays, delta_softplus=True, initial_state=start)
    assert_close("states", got, expected, scan_error(initial.dtype, 35, 1))
    _, last = selective_scan(u, delta, A, B, C, backend=backend, return_last_state=True, **options)
    torch.testing.assert_close(last, got[:, -1], rtol=0, atol=0)


def test_a_perturbed_state_is_noticed():
    tensors = draw(2, 20, 6, 4, torch.float32)
    initial, grad_last = draw_states(tensors)
    y, last, grad_y, gradients = run(tensors, initial, grad_last, True, "native")
    for moved, moved_grad in ((initial + 3e-3, grad_last), (initial, grad_last + 3e-3)):
        with pytest.raises(AssertionError):
            assert_values(tensors, y, True, moved, last)
            assert_gradients(tensors, grad_y, gradients, True, moved, moved_grad)
