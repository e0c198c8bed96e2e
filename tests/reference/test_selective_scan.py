"""The oracle of selective_scan: by explicit sums over paths, and by finite differences."""

import math

import numpy as np
import pytest
from helpers.scan_inputs import NAMES, draw, to_arrays

from bwt import reference

SHAPES = [
    pytest.param(*shape, id="B{}-L{}-E{}-N{}".format(*shape))
    for shape in [(1, 1, 1, 1), (2, 5, 3, 2), (1, 7, 2, 4)]
]


def unrolled(u, delta, A, B, C, D, softplus):
    """y_t = sum_{s <= t} sum_n C_tn exp(A_n sum_{r in (s, t]} step_r) step_s B_sn u_s + D u_t: the
    recurrence solved, term by term."""
    y = np.zeros_like(u)
    for b, t, e in np.ndindex(u.shape):
        step = [math.log1p(math.exp(d)) if softplus else d for d in delta[b, :, e]]
        total = 0.0 if D is None else D[e] * u[b, t, e]
        for s in range(t + 1):
            passed = sum(step[s + 1 : t + 1])
            for n in range(A.shape[1]):
                factor = math.exp(A[e, n] * passed) * step[s] * B[b, s, n]
                total += C[b, t, n] * factor * u[b, s, e]
        y[b, t, e] = total
    return y


@pytest.mark.parametrize("softplus", [False, True])
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("B,L,E,N", SHAPES)
def test_forward_is_the_recurrence_solved(B, L, E, N, skip, softplus):
    arrays = to_arrays(draw(B, L, E, N, skip=skip, softplus=softplus))
    got = reference.selective_scan(*arrays, delta_softplus=softplus)
    np.testing.assert_allclose(got, unrolled(*arrays, softplus), atol=1e-13)


@pytest.mark.parametrize("models,batch", [(1, 2), (2, 4), (3, 3)])
def test_models_are_scans_of_their_own(models, batch):
    arrays = to_arrays(draw(batch, 5, 3, 2, models=models))
    grad_y = np.random.default_rng(0).normal(size=arrays[0].shape)
    y = reference.selective_scan(*arrays)
    gradients = reference.selective_scan_backward(grad_y, *arrays)
    for m in range(models):
        own = slice(m * batch // models, (m + 1) * batch // models)
        parts = [m if name in "AD" else own for name in NAMES]
        alone = [x[part] for x, part in zip(arrays, parts, strict=True)]
        np.testing.assert_allclose(y[own], unrolled(*alone, False), atol=1e-13)
        expected = reference.selective_scan_backward(grad_y[own], *alone)
        for name, got, part, want in zip(NAMES, gradients, parts, expected, strict=True):
            np.testing.assert_allclose(got[part], want, atol=1e-13, err_msg=name)


@pytest.mark.parametrize("softplus", [False, True])
def test_an_initial_state_is_what_steps_before_left(softplus):
    """Of 7 steps, the last 4 from the state after 3: as if the others had been taken, too."""
    u, delta, A, B, C, D = to_arrays(draw(2, 7, 3, 2, softplus=softplus))
    whole = unrolled(u, delta, A, B, C, D, softplus)
    options = {"delta_softplus": softplus, "return_last_state": True}
    y, state = reference.selective_scan(u[:, :3], delta[:, :3], A, B[:, :3], C[:, :3], D, **options)
    np.testing.assert_allclose(y, whole[:, :3], atol=1e-13)
    rest = u[:, 3:], delta[:, 3:], A, B[:, 3:], C[:, 3:], D
    y, last = reference.selective_scan(*rest, **options, initial_state=state)
    np.testing.assert_allclose(y, whole[:, 3:], atol=1e-13)
    states = reference.selective_scan_states(u, delta, A, B, delta_softplus=softplus)
    np.testing.assert_allclose(last, states[:, -1], atol=1e-13)


def test_no_steps_leave_the_state():
    u, delta, A, B, C, _ = to_arrays(draw(2, 0, 3, 4))
    state = np.random.default_rng(0).normal(size=(2, 3, 4))
    options = {"initial_state": state, "return_last_state": True}
    _, last = reference.selective_scan(u, delta, A, B, C, **options)
    np.testing.assert_array_equal(last, state)


def test_backward_between_states_is_the_slope():
    arrays = to_arrays(draw(2, 5, 3, 2))
    rng = np.random.default_rng(0)
    weights, start, end = rng.normal(size=(2, 5, 3)), *rng.normal(size=(2, 2, 3, 2))
    got = reference.selective_scan_backward(
        weights, *arrays, delta_softplus=True, initial_state=start, grad_last_state=end
    )
    for i, name in enumerate((*NAMES, "initial state")):
        slope = np.zeros_like((*arrays, start)[i])
        for place in np.ndindex(slope.shape):

            def loss(step, i=i, place=place):
                *moved, state = (x.copy() for x in (*arrays, start))
                (*moved, state)[i][place] += step
                options = {"initial_state": state, "return_last_state": True}
                y, last = reference.selective_scan(*moved, delta_softplus=True, **options)
                return (weights * y).sum() + (end * last).sum()

            slope[place] = (loss(1e-5) - loss(-1e-5)) / 2e-5
        np.testing.assert_allclose(got[i], slope, atol=1e-7, err_msg=name)


def test_states_are_what_is_read_out():
    u, delta, A, B, C, _ = to_arrays(draw(2, 6, 3, 4))
    states = reference.selective_scan_states(u, delta, A, B)
    assert states.shape == (2, 6, 3, 4)
    np.testing.assert_allclose(
        np.einsum("blen,bln->ble", states, C), reference.selective_scan(u, delta, A, B, C)
    )


def test_softplus_of_large_and_small():
    u, _, A, B, C, _ = to_arrays(draw(1, 3, 1, 1))
    delta = np.array([[[-800.0], [800.0], [0.0]]])
    got = reference.selective_scan(u, delta, A, B, C, delta_softplus=True)
    step = np.array([[[0.0], [800.0], [math.log(2)]]])
    np.testing.assert_allclose(got, reference.selective_scan(u, step, A, B, C), rtol=1e-12)


@pytest.mark.parametrize("softplus", [False, True])
@pytest.mark.parametrize("B,L,E,N", SHAPES)
def test_backward_is_the_slope(B, L, E, N, softplus):
    arrays = to_arrays(draw(B, L, E, N, softplus=softplus))
    weights = np.random.default_rng(0).normal(size=(B, L, E))
    got = reference.selective_scan_backward(weights, *arrays, delta_softplus=softplus)
    for i, name in enumerate(NAMES):
        slope = np.zeros_like(arrays[i])
        for place in np.ndindex(slope.shape):

            def loss(step, i=i, place=place):
                moved = [x.copy() for x in arrays]
                moved[i][place] += step
                return (weights * reference.selective_scan(*moved, delta_softplus=softplus)).sum()

            slope[place] = (loss(1e-5) - loss(-1e-5)) / 2e-5
        # Central differences: step^2 times a third derivative, plus rounding over step.
        np.testing.assert_allclose(got[i], slope, atol=1e-7, err_msg=name)
