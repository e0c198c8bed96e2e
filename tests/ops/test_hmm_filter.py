"""hmm_filter and hmm_smooth on the CPU, against the NumPy float64 reference."""

import math

import numpy as np
import pytest
import torch
from helpers.hmm_models import DTYPES, MIXED, OWN, SHARED, arrays, assert_close, draw, draw_lengths
from helpers.tolerances import hmm_error
from hypothesis import given, settings
from hypothesis import strategies as st

from bwt.ops.hmm_filter import hmm_filter
from bwt.ops.hmm_smooth import hmm_smooth
from bwt.reference.hmm_filter import hmm_filter as reference_filter
from bwt.reference.hmm_filter import hmm_smooth as reference_smooth

BACKENDS = ["native", "torch"]


def assert_agrees(arguments, lengths=None, backend="native"):
    y, initial, *_ = arguments
    steps, states, dtype = y.shape[1], initial.shape[-1], initial.dtype
    got = hmm_filter(*arguments, lengths=lengths, backend=backend)
    smooth = hmm_smooth(*arguments, lengths=lengths, backend=backend)
    plain = None if lengths is None else lengths.numpy()
    expected = reference_filter(*arrays(arguments), lengths=plain)
    bound = hmm_error(dtype, states)
    assert_close("filtered", got.filtered, expected.filtered, bound)
    assert_close("predicted", got.predicted, expected.predicted, bound)
    long_bound = hmm_error(dtype, states, steps)
    assert_close("log_likelihood", got.log_likelihood, expected.log_likelihood, long_bound)
    expected = reference_smooth(*arrays(arguments), lengths=plain)
    assert_close("smoothed", smooth.smoothed, expected.smoothed, 4 * bound)
    assert torch.equal(smooth.log_likelihood, got.log_likelihood)
    assert (smooth.smoothed >= 0).all() and (got.filtered >= 0).all()
    return got


CASES = [
    pytest.param(*shape, id="B{}-T{}-S{}-V{}".format(*shape))
    for shape in [
        (1, 1, 1, 1),
        (3, 5, 1, 4),
        (5, 7, 2, 3),
        (9, 50, 5, 5),
        (16, 130, 5, 7),
        (17, 33, 8, 11),
        (4, 20, 9, 3),
        (7, 12, 16, 40),
        (5, 11, 23, 5),
        (8, 9, 64, 17),
        (2, 70, 37, 6),
        (3, 6, 128, 10),
    ]
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("own", [OWN, SHARED, (True, False, True)])
@pytest.mark.parametrize("B,T,S,V", CASES)
def test_forward(backend, dtype, own, B, T, S, V):
    arguments = draw(B, T, S, V, dtype, own=own, missing=0.1)
    assert_agrees(arguments, backend=backend)
    assert_agrees(arguments, draw_lengths(B, T), backend)


@pytest.mark.parametrize("dtype", DTYPES)
def test_forward_native_past_the_cache(dtype):
    """Outputs of more than 16 MB with rows of whole cache lines are written past the cache."""
    B, T, S = 80, 500, 64
    y, *parameters = draw(B, T, S, 5, dtype, own=SHARED, missing=0.1)
    lengths = draw_lengths(B, T)
    whole = hmm_filter(y, *parameters, lengths=lengths)
    assert 2 * whole.filtered.nbytes > 16 << 20
    for rows in (slice(0, 3), slice(B - 3, B)):
        part = assert_agrees((y[rows], *parameters), lengths[rows])
        for all_rows, some in zip(whole, part, strict=True):
            assert_close("rows", all_rows[rows], some.double().numpy(), hmm_error(dtype, S, T))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("S", [3, 12])
@pytest.mark.parametrize("own", MIXED)
def test_any_parameter_may_be_shared(dtype, S, own):
    assert_agrees(draw(11, 9, S, 4, dtype, own=own))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("S", [4, 13])
@pytest.mark.parametrize("dtype", DTYPES)
def test_impossible_observations(backend, dtype, S):
    arguments = draw(40, 12, S, 6, dtype, zeros=0.4 if S == 4 else 0.65, missing=0.1)
    got = assert_agrees(arguments, backend=backend)
    impossible = got.log_likelihood.isneginf()
    assert 3 < impossible.sum() < 37
    for b in impossible.nonzero()[:, 0].tolist():
        alive = got.filtered[b].sum(-1) > 0
        step = int(alive.sum())
        assert alive[:step].all() and got.predicted[b, step].sum() > 0
        assert not got.predicted[b, step + 1 :].any()


def test_one_perturbed_parameter_is_noticed():
    y, initial, transition, emission = draw(4, 20, 5, 5, torch.float32)
    got = hmm_filter(y, initial, transition, emission)
    transition = transition.clone()
    transition[2, 3, 1] += 3e-3
    expected = reference_filter(*arrays([y, initial, transition, emission]))
    with pytest.raises(AssertionError):
        assert_close("filtered", got.filtered, expected.filtered, hmm_error(torch.float32, 5))
    with pytest.raises(AssertionError):
        bound = hmm_error(torch.float32, 5, 20)
        assert_close("log", got.log_likelihood, expected.log_likelihood, bound)


def near_deterministic(S, V, dtype, small=1e-12):
    """A cycle of states that show their own symbol, with tiny probabilities of all else."""
    cycle = torch.eye(S, dtype=torch.float64).roll(1, 1) + small
    show = torch.eye(S, V, dtype=torch.float64) + small
    return [(x / x.sum(-1, keepdim=True)).to(dtype) for x in (cycle, show)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("S", [5, 16])
def test_a_hundred_thousand_steps(dtype, S):
    """Neither under- nor overflow, although most of these observations are all but impossible."""
    T = 100_000
    transition, emission = near_deterministic(S, S, dtype)
    initial = torch.full((S,), 1 / S, dtype=dtype)
    y = torch.randint(S, (2, T))
    y[0] = torch.arange(T) % S
    leaves = [x.requires_grad_() for x in (initial, transition, emission)]
    got = hmm_filter(y, *leaves)
    smooth = hmm_smooth(y, *leaves)
    for x in (got.filtered, got.predicted, smooth.smoothed):
        assert (x.detach().double().sum(-1) - 1).abs().max() < 1e-6
    start = hmm_filter(y[:, :1000], *leaves).log_likelihood.detach().double()
    expected = reference_filter(*arrays([y[:, :1000], *leaves])).log_likelihood
    np.testing.assert_allclose(start, expected, rtol=1e-5)
    assert got.log_likelihood.isfinite().all()
    for gradient in torch.autograd.grad(got.log_likelihood[0], leaves):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("S", [2, 10])
def test_probabilities_below_the_smallest_float(backend, S):
    """A step of probability 1e-50 is possible in float32, too."""
    tiny = torch.full((S, S), 1e-25)
    transition = emission = torch.where(torch.eye(S) > 0, 1.0, tiny)
    initial = transition[0]
    y = torch.tensor([[0, 0, 1, 0, 1]])
    got = hmm_filter(y, initial, transition, emission, backend=backend)
    expected = reference_filter(*arrays([y, initial, transition, emission]))
    torch.testing.assert_close(
        got.log_likelihood.double(), torch.from_numpy(expected.log_likelihood), rtol=1e-6, atol=0
    )


LAYOUTS = ["contiguous", "int32", "transposed", "strided", "expanded"]


def lay_out(x, layout):
    if layout == "int32" and x.dtype == torch.int64:
        return x.int()
    if layout == "transposed" and x.ndim > 1:
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "strided":
        fill = 99 if x.dtype == torch.int64 else torch.nan
        wide = torch.full([2 * n + 1 for n in x.shape], fill, dtype=x.dtype)
        view = wide[tuple(slice(1, None, 2) for _ in x.shape)]
        return view.copy_(x)
    if layout == "expanded" and x.shape[0] > 0:
        return x[:1].expand(x.shape) if x.ndim > 1 else x
    return x


@settings(deadline=None, max_examples=60)
@given(
    batch=st.integers(0, 20),
    steps=st.integers(0, 70),
    states=st.integers(1, 20),
    symbols=st.integers(1, 9),
    own=st.sampled_from(MIXED),
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from(LAYOUTS),
    ragged=st.booleans(),
    missing=st.sampled_from([0.0, 0.3, 1.0]),
    zeros=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 3),
)
def test_any_shape_and_layout(
    batch, steps, states, symbols, own, dtype, layout, ragged, missing, zeros, seed
):
    arguments = draw(
        batch, steps, states, symbols, dtype, own=own, missing=missing, zeros=zeros, seed=seed
    )
    if layout == "expanded" and False in own:
        layout = "contiguous"  # the rows of a shared matrix are not alike
    y, *parameters = (lay_out(x, layout) for x in arguments)
    lengths = draw_lengths(batch, steps, seed) if ragged else None
    if ragged:
        beyond = torch.arange(steps) >= lengths[:, None]
        y = torch.where(beyond, 77, y)  # not read
    got = assert_agrees((y.long(), *parameters), lengths)
    leaves = [x.detach().requires_grad_() for x in parameters]
    again = hmm_filter(y, *leaves, lengths=None if lengths is None else lengths.int())
    assert all(torch.equal(one, two) for one, two in zip(got, again, strict=True))
    for x in torch.autograd.grad(again, leaves, [torch.ones_like(x) for x in again]):
        assert x.isfinite().all()


@pytest.mark.parametrize("S", [5, 24])
@pytest.mark.parametrize("own", [OWN, SHARED])
def test_result_does_not_depend_on_threads(S, own):
    y, *parameters = draw(67, 40, S, 7, torch.float32, own=own)
    leaves = [x.requires_grad_() for x in parameters]
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            got = hmm_filter(y, *leaves)
            gradients = torch.autograd.grad(got, leaves, [torch.ones_like(x) for x in got])
            results.append((*got, *gradients, hmm_smooth(y, *leaves).smoothed))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


@pytest.mark.parametrize("S", [4, 11])
def test_a_sequence_does_not_depend_on_its_batch(S):
    y, *parameters = draw(21, 30, S, 5, torch.float32)
    got = hmm_filter(y, *parameters)
    for b in (0, 7, 20):
        alone = hmm_filter(y[b : b + 1], *(x[b : b + 1] for x in parameters))
        for one, two in zip(got, alone, strict=True):
            torch.testing.assert_close(one[b : b + 1], two, rtol=0, atol=2e-6)


def test_relabelling_the_states():
    y, initial, transition, emission = draw(3, 25, 6, 4)
    order = torch.randperm(6)
    got = hmm_filter(y, initial, transition, emission)
    moved = hmm_filter(y, initial[:, order], transition[:, order][:, :, order], emission[:, order])
    torch.testing.assert_close(got.filtered[..., order], moved.filtered)
    torch.testing.assert_close(got.log_likelihood, moved.log_likelihood)


def test_a_sequence_in_two_parts():
    y, initial, transition, emission = draw(3, 25, 6, 4)
    whole = hmm_filter(y, initial, transition, emission)
    first = hmm_filter(y[:, :10], initial, transition, emission)
    start = (first.filtered[:, -1:] @ transition)[:, 0]
    second = hmm_filter(y[:, 10:], start, transition, emission)
    torch.testing.assert_close(whole.filtered[:, 10:], second.filtered)
    torch.testing.assert_close(whole.log_likelihood, first.log_likelihood + second.log_likelihood)


@pytest.mark.slow
def test_hmmlearn_agrees():
    hmm = pytest.importorskip("hmmlearn.hmm", reason="a witness extra")
    y, initial, transition, emission = draw(4, 60, 5, 6, own=SHARED)
    model = hmm.CategoricalHMM(n_components=5, n_features=6)
    model.startprob_, model.transmat_, model.emissionprob_ = arrays([initial, transition, emission])
    got = hmm_filter(y, initial, transition, emission)
    smooth = hmm_smooth(y, initial, transition, emission)
    for b in range(4):
        log_likelihood, posteriors = model.score_samples(y[b].numpy()[:, None])
        assert math.isclose(log_likelihood, got.log_likelihood[b], rel_tol=1e-10)
        np.testing.assert_allclose(smooth.smoothed[b], posteriors, atol=1e-10)


@pytest.mark.slow
def test_dynamax_agrees():
    inference = pytest.importorskip("dynamax.hidden_markov_model", reason="a witness extra")
    y, initial, transition, emission = draw(1, 60, 5, 6, own=SHARED)
    likelihoods = np.log(emission.numpy()[:, y[0].numpy()].T)
    found = inference.hmm_filter(initial.numpy(), transition.numpy(), likelihoods)
    got = hmm_filter(y, initial, transition, emission)
    # jax computes in float32.
    bound = hmm_error(torch.float32, 5, 60)
    np.testing.assert_allclose(got.filtered[0], found.filtered_probs, atol=bound)
    np.testing.assert_allclose(got.predicted[0], found.predicted_probs, atol=bound)
    np.testing.assert_allclose(got.log_likelihood[0], found.marginal_loglik, rtol=bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_outputs_are_those_of_parts(dtype):
    """Above 4 MB narrower vectors are used, which must not be seen in the results."""
    y, *parameters = draw(2100, 50, 5, 4, dtype)
    whole = hmm_filter(y, *parameters, backend="native")
    parts = [
        hmm_filter(y[part], *(x[part] for x in parameters), backend="native")
        for part in (slice(0, 1000), slice(1000, 2100))
    ]
    assert whole.filtered.nbytes * 2 > 4 << 20 > parts[0].filtered.nbytes
    for name in whole._fields:
        assert torch.equal(getattr(whole, name), torch.cat([getattr(x, name) for x in parts])), name
