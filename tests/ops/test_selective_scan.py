"""selective_scan on the CPU, against the NumPy float64 reference."""

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
    to_arrays,
)
from helpers.tolerances import scan_error
from hypothesis import given, settings
from hypothesis import strategies as st

from bwt import reference
from bwt.ops import selective_scan, selective_scan_states

BACKENDS = ["native", "torch"]
CASES = [
    pytest.param(*shape, id="B{}-L{}-E{}-N{}".format(*shape))
    for shape in [
        (1, 1, 1, 1),
        (2, 16, 8, 4),
        (3, 17, 9, 3),
        (2, 33, 21, 16),
        (1, 100, 5, 7),
        (2, 48, 70, 16),
        (70, 5, 3, 2),
        (1, 12, 4, 64),
    ]
]


def run(tensors, softplus, backend="native"):
    """y, a gradient for it, and the gradients of the arguments."""
    leaves = [None if x is None else x.detach().requires_grad_() for x in tensors]
    y = selective_scan(*leaves, delta_softplus=softplus, backend=backend)
    grad_y = torch.from_numpy(np.random.default_rng(1).normal(size=y.shape)).to(y.dtype)
    wanted = [x for x in leaves if x is not None]
    return y, grad_y, torch.autograd.grad(y, wanted, grad_y)


def check(tensors, softplus, backend="native"):
    y, grad_y, gradients = run(tensors, softplus, backend)
    assert_values(tensors, y, softplus)
    assert_gradients(tensors, grad_y, gradients, softplus)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("softplus", [False, True])
@pytest.mark.parametrize("B,L,E,N", CASES)
def test_values_and_gradients(backend, dtype, softplus, B, L, E, N):
    check(draw(B, L, E, N, dtype, softplus=softplus), softplus, backend)


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_skip(dtype):
    check(draw(2, 20, 10, 5, dtype, skip=False), True)


MODELS = [(1, 3), (3, 6), (4, 4), (2, 130), (5, 10)]  # and sequences; more than pieces of a sum


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("models,batch", MODELS)
def test_models_have_their_own_parameters(backend, dtype, models, batch):
    check(draw(batch, 19, 9, 5, dtype, models=models), True, backend)


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
@pytest.mark.parametrize("mixed", ["A", "D"])
def test_only_one_parameter_is_of_models(backend, mixed):
    """The other one is shared, and its gradient is the sum over the models."""
    tensors = draw(6, 18, 4, 3, models=3)
    shared = 5 if mixed == "A" else 2
    tensors[shared] = tensors[shared][0].clone()
    if backend == "reference":
        assert_values(tensors, selective_scan(*tensors, delta_softplus=True, backend=backend), True)
    else:
        check(tensors, True, backend)


def test_models_do_not_know_of_each_other():
    """Bit for bit what each computes alone, its gradients too."""
    tensors = draw(9, 20, 12, 8, torch.float32, models=3)
    y, grad_y, gradients = run(tensors, True)
    for m in range(3):
        own = [x[m] if i in (2, 5) else x[3 * m : 3 * m + 3] for i, x in enumerate(tensors)]
        leaves = [x.clone().requires_grad_() for x in own]
        alone = selective_scan(*leaves, delta_softplus=True)
        assert torch.equal(alone, y[3 * m : 3 * m + 3])
        found = torch.autograd.grad(alone, leaves, grad_y[3 * m : 3 * m + 3])
        for i, (got, all_of_them) in enumerate(zip(found, gradients, strict=True)):
            part = all_of_them[m] if i in (2, 5) else all_of_them[3 * m : 3 * m + 3]
            assert torch.equal(got, part)


def test_a_model_in_the_wrong_place_is_noticed():
    tensors = draw(6, 18, 4, 3, torch.float32, models=3)
    y, grad_y, gradients = run(tensors, True)
    turned = [x.roll(1, 0) if i in (2, 5) else x for i, x in enumerate(tensors)]
    with pytest.raises(AssertionError):
        assert_values(turned, y, True)
    turned = [x.roll(1, 0) if i in (2, 5) else x for i, x in enumerate(gradients)]
    with pytest.raises(AssertionError, match="gradient of A"):
        assert_gradients(tensors, grad_y, turned, True)


@pytest.mark.parametrize("wide", [True, False], ids=["float32 parameters", "halves"])
@pytest.mark.parametrize("models", [None, 2])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_halves(backend, dtype, models, wide):
    """Rounded once, against the reference on the rounded arguments."""
    tensors = draw(4, 37, 9, 5, dtype, models=models)
    if wide:
        tensors[2], tensors[5] = tensors[2].float(), tensors[5].float()
    check(tensors, True, backend)


@pytest.mark.parametrize("dtype", DTYPES)
def test_published_definition(dtype):
    """The recurrence of the Mamba paper (algorithm 2, zero-order hold for A and Euler for B),
    written down with scalars in plain loops."""
    u, delta, A, B, C, D = draw(2, 9, 3, 4, dtype)
    y = selective_scan(u, delta, A, B, C, D, delta_softplus=True)
    for b in range(2):
        for e in range(3):
            h = [0.0] * 4
            for t in range(9):
                step = float(torch.nn.functional.softplus(delta[b, t, e].double()))
                out = float(D[e]) * float(u[b, t, e])
                for n in range(4):
                    a_bar = np.exp(step * float(A[e, n]))
                    h[n] = a_bar * h[n] + step * float(B[b, t, n]) * float(u[b, t, e])
                    out += float(C[b, t, n]) * h[n]
                assert abs(float(y[b, t, e]) - out) < 100 * torch.finfo(dtype).eps


@pytest.mark.parametrize("backend", ["native", "torch", "reference"])
@pytest.mark.parametrize("models", [None, 2])
@pytest.mark.parametrize("dtype", [*DTYPES, *HALVES])
def test_states(backend, dtype, models):
    u, delta, A, B, _, _ = draw(4, 35, 11, 5, dtype, models=models)
    got = selective_scan_states(u, delta, A, B, delta_softplus=True, backend=backend)
    expected = reference.selective_scan_states(*to_arrays((u, delta, A, B)), delta_softplus=True)
    wide = torch.float32 if dtype in HALVES else dtype
    assert got.dtype == wide
    assert_close("states", got, expected, scan_error(wide, 35, 1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [200.0, 5000.0])
def test_factors_beyond_the_normal_numbers(dtype, size):
    """A state that is gone at once, next to some that are not; and back."""
    u, delta, A, B, C, D = draw(2, 40, 9, 6, dtype, softplus=False)
    A[:, 2] = -size
    delta[0, 5] = 30.0
    delta[1, 7, 3] = 0.0
    check([u, delta, A, B, C, D], False)


def test_softplus_of_large_and_small():
    u, delta, A, B, C, D = draw(2, 20, 9, 3, torch.float32)
    delta[0], delta[1, 4:] = 60.0, -60.0
    y, grad_y, gradients = run([u, delta, A, B, C, D], True)
    assert_values([u, delta, A, B, C, D], y, True)
    assert_gradients([u, delta, A, B, C, D], grad_y, gradients, True)
    # Relative precision where the step is as small as exp(-60).
    alone = [u[1:, 4:] * 0 + 1, delta[1:, 4:], A, B[1:, 4:], C[1:, 4:]]
    got = selective_scan(*alone, delta_softplus=True).double().numpy()
    expected = reference.selective_scan(*to_arrays(alone), delta_softplus=True)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-28)


def test_growing_states():
    tensors = draw(1, 30, 4, 3, torch.float64, softplus=False)
    tensors[2] = -tensors[2] / 10
    check(tensors, False)


@pytest.mark.parametrize("place", range(6))
def test_nan_is_passed_on(place):
    tensors = draw(1, 20, 9, 4, torch.float32)
    tensors[place][(0,) * tensors[place].ndim] = torch.nan
    y = selective_scan(*tensors, delta_softplus=True)
    assert y[0, 0, 0].isnan() and y[0, :, 1].isnan().any() == (place in (3, 4))


def test_a_perturbed_argument_is_noticed():
    tensors = draw(2, 20, 6, 4, torch.float32)
    y, grad_y, gradients = run(tensors, True)
    for place in range(6):
        moved = [x.clone() for x in tensors]
        moved[place][..., 3] += 3e-3
        with pytest.raises(AssertionError):
            assert_values(moved, y, True)
            assert_gradients(moved, grad_y, gradients, True)


LAYOUTS = ["as drawn", "transposed", "strided", "sliced", "expanded"]


def lay_out(x, layout):
    if x is None or x.numel() == 0:
        return x
    if layout == "transposed":
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "strided":
        wide = torch.full([2 * n + 1 for n in x.shape], torch.nan, dtype=x.dtype)
        return wide[tuple(slice(1, None, 2) for _ in x.shape)].copy_(x)
    if layout == "sliced":  # as a part of a fused projection
        wide = torch.full((*x.shape[:-1], x.shape[-1] + 5), torch.nan, dtype=x.dtype)
        return wide[..., 2:-3].copy_(x)
    if layout == "expanded":
        return x[:1].expand(x.shape)
    return x


@settings(deadline=None, max_examples=60)
@given(
    batch=st.integers(0, 4),
    steps=st.integers(0, 50),
    channels=st.integers(1, 40),
    states=st.integers(1, 20),
    models=st.sampled_from([None, 1, 2, 3]),
    dtype=st.sampled_from(DTYPES),
    layouts=st.tuples(*[st.sampled_from(LAYOUTS)] * 6),
    softplus=st.booleans(),
    skip=st.booleans(),
)
def test_any_shape_and_layout(
    batch, steps, channels, states, models, dtype, layouts, softplus, skip
):
    options = {"skip": skip, "softplus": softplus, "models": models}
    tensors = draw(batch * (models or 1), steps, channels, states, dtype, **options)
    check([lay_out(x, name) for x, name in zip(tensors, layouts, strict=True)], softplus)


def test_strided_incoming_gradient():
    tensors = [x.requires_grad_() for x in draw(2, 20, 6, 4)]
    y = selective_scan(*tensors, delta_softplus=True)
    grad_y = torch.randn(2, 6, 20, dtype=torch.float64).transpose(1, 2)
    assert_gradients(tensors, grad_y, torch.autograd.grad(y, tensors, grad_y), True)


def test_result_does_not_depend_on_threads():
    tensors, results = draw(67, 20, 12, 8, torch.float32), []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            y, _, gradients = run(tensors, True)
            results.append((y, *gradients))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


def test_a_sequence_in_two_parts():
    """The second part is moved by what the first leaves in the states, fading since."""
    u, delta, A, B, C, D = draw(2, 40, 6, 4, softplus=False)
    whole = selective_scan(u, delta, A, B, C, D)
    second = selective_scan(u[:, 23:], delta[:, 23:], A, B[:, 23:], C[:, 23:], D)
    left = selective_scan_states(u[:, :23], delta[:, :23], A, B[:, :23])[:, -1]  # [B, E, N]
    fading = (delta[:, 23:].cumsum(1).unsqueeze(-1) * A).exp() * left.unsqueeze(1)
    torch.testing.assert_close(whole[:, 23:], second + (fading * C[:, 23:, None]).sum(-1))


def test_nothing_is_saved_without_gradient():
    tensors = draw(1, 40, 3, 2)
    for every, shape in ((0, (1, 0, 2, 3)), (16, (1, 2, 2, 3))):
        _, states, last = torch.ops.bwt.selective_scan(*tensors, None, True, every, False)
        assert states.shape == shape and last.numel() == 0
    with pytest.raises(RuntimeError, match="every must be 0 to 16"):
        torch.ops.bwt.selective_scan(*tensors, None, True, 17, False)


@pytest.mark.slow
def test_mambapy_agrees():
    """Another public implementation: a Blelloch scan in torch with a gradient of its own."""
    mambapy = pytest.importorskip("mambapy.mamba", reason="a witness extra")
    block = mambapy.MambaBlock(mambapy.MambaConfig(d_model=6, n_layers=1, d_state=5))
    tensors = draw(3, 29, 12, 5, torch.float32, softplus=False)
    y, grad_y, gradients = run(tensors, False)
    leaves = [x.clone().requires_grad_() for x in tensors]
    theirs = block.selective_scan(*leaves)
    expected = torch.autograd.grad(theirs, leaves, grad_y)
    for got, want in zip((y, *gradients), (theirs, *expected), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
