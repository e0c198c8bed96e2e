"""The oracle of hmm_filter and hmm_smooth: by summing over all paths, and in exact arithmetic."""

import itertools

import numpy as np
import pytest
import torch
from helpers.hmm_exact import exact
from helpers.hmm_extremes import cases
from helpers.tolerances import hmm_relative_error

from bwt.reference.hmm_filter import hmm_filter, hmm_filter_log, hmm_smooth

SHAPES = [
    pytest.param(B, T, S, V, id=f"B{B}-T{T}-S{S}-V{V}")
    for B, T, S, V in [(1, 1, 1, 1), (2, 1, 3, 2), (3, 4, 2, 3), (2, 5, 3, 4), (2, 6, 2, 2)]
]
FILTERS = pytest.mark.parametrize("filtering", [hmm_filter, hmm_filter_log])


def draw(B, T, S, V, *, zeros=0.0, missing=0.0, shared=(False, False, False), seed=0):
    """observations and parameters; `zeros` is the share of impossible transitions and symbols."""
    rng = np.random.default_rng([B, T, S, V, seed])

    def rows(*shape):
        x = rng.dirichlet(np.ones(shape[-1]), size=shape[:-1]) * (rng.random(shape) >= zeros)
        x[..., -1] += x.sum(-1) == 0
        return x / x.sum(-1, keepdims=True)

    sizes = [(S,), (S, S), (S, V)]
    parameters = [
        rows(*size) if common else rows(B, *size)
        for size, common in zip(sizes, shared, strict=True)
    ]
    observations = rng.integers(V, size=(B, T))
    return np.where(rng.random((B, T)) < missing, -1, observations), *parameters


def by_paths(observations, initial, transition, emission):
    """filtered, predicted, smoothed and the likelihood of one sequence from its S^T paths."""
    T, S = len(observations), len(initial)
    filtered, predicted = np.zeros((T, S)), np.zeros((T, S))
    smoothed = np.zeros((T, S))

    def weight(path, seen):
        p = initial[path[0]]
        for before, after in itertools.pairwise(path):
            p *= transition[before, after]
        for state, y in zip(path[:seen], observations[:seen], strict=True):
            p *= 1.0 if y < 0 else emission[state, y]
        return p

    def ratio(x):
        return x / x.sum() if x.sum() > 0 else x

    before = 1.0
    for t in range(T):
        for path in itertools.product(range(S), repeat=t + 1):
            predicted[t, path[-1]] += weight(path, t)
            filtered[t, path[-1]] += weight(path, t + 1)
        predicted[t] = predicted[t] / before if before > 0 else 0 * predicted[t]
        before = filtered[t].sum()  # the likelihood so far
        filtered[t] = ratio(filtered[t])
    for path in itertools.product(range(S), repeat=T):
        for t, state in enumerate(path):
            smoothed[t, state] += weight(path, T)
    return filtered, predicted, np.array([ratio(row) for row in smoothed]), before


def expected(arguments, lengths):
    observations, *parameters = arguments
    B, T = observations.shape
    S = parameters[0].shape[-1]
    dims = (1, 2, 2)
    filtered, predicted, smoothed = np.zeros((3, B, T, S))
    log_likelihood = np.zeros(B)
    for b, length in enumerate(lengths):
        if length == 0:
            continue
        own = [x[b] if x.ndim > d else x for x, d in zip(parameters, dims, strict=True)]
        result = by_paths(observations[b, :length], *own)
        filtered[b, :length], predicted[b, :length], smoothed[b, :length] = result[:3]
        with np.errstate(divide="ignore"):
            log_likelihood[b] = np.log(result[3])
    return filtered, predicted, smoothed, log_likelihood


@FILTERS
@pytest.mark.parametrize("B,T,S,V", SHAPES)
@pytest.mark.parametrize("missing", [0.0, 0.4])
@pytest.mark.parametrize("zeros", [0.0, 0.5])
@pytest.mark.parametrize("shared", [(False,) * 3, (True,) * 3, (True, False, True)])
def test_is_the_sum_over_paths(filtering, B, T, S, V, missing, zeros, shared):
    arguments = draw(B, T, S, V, zeros=zeros, missing=missing, shared=shared)
    for lengths in ([T] * B, [max(T - 2 * b, 0) for b in range(B)]):
        filtered, predicted, smoothed, log_likelihood = expected(arguments, lengths)
        got = filtering(*arguments, lengths=lengths)
        np.testing.assert_allclose(got.filtered, filtered, atol=1e-13)
        np.testing.assert_allclose(got.predicted, predicted, atol=1e-13)
        np.testing.assert_allclose(got.log_likelihood, log_likelihood, atol=1e-12)
        found = hmm_smooth(*arguments, lengths=lengths)
        np.testing.assert_allclose(found.smoothed, smoothed, atol=1e-13)
        np.testing.assert_allclose(found.log_likelihood, log_likelihood, atol=1e-12)


def test_some_of_those_sequences_are_impossible():
    found = [
        hmm_filter(*draw(B, T, S, V, zeros=0.5)).log_likelihood
        for B, T, S, V in [(3, 4, 2, 3), (2, 5, 3, 4), (2, 6, 2, 2)]
    ]
    assert 0 < np.isneginf(np.concatenate(found)).sum() < 7


@FILTERS
def test_from_an_impossible_observation_on(filtering):
    stay, show = np.eye(2), np.array([[1.0, 0.0], [0.5, 0.5]])
    got = filtering([[0, 1, 0]], [1.0, 0.0], stay, show)
    np.testing.assert_array_equal(got.filtered[0], [[1, 0], [0, 0], [0, 0]])
    np.testing.assert_array_equal(got.predicted[0], [[1, 0], [1, 0], [0, 0]])
    assert got.log_likelihood[0] == -np.inf
    assert not hmm_smooth([[0, 1, 0]], [1.0, 0.0], stay, show).smoothed.any()


@FILTERS
def test_nothing_observed(filtering):
    _, initial, transition, emission = draw(1, 4, 3, 2)
    got = filtering(np.full((1, 4), -1), initial, transition, emission)
    np.testing.assert_allclose(got.filtered, got.predicted, atol=1e-15)
    np.testing.assert_allclose(got.log_likelihood, 0, atol=1e-14)
    marginal = initial[0] @ np.linalg.matrix_power(transition[0], 3)
    np.testing.assert_allclose(got.predicted[0, 3], marginal, atol=1e-15)


@FILTERS
@pytest.mark.parametrize("B,T", [(0, 3), (2, 0)])
def test_empty(filtering, B, T):
    arguments = draw(B, T, 3, 2, shared=(True,) * 3)
    got = filtering(*arguments)
    assert got.filtered.shape == got.predicted.shape == (B, T, 3)
    np.testing.assert_array_equal(got.log_likelihood, np.zeros(B))
    assert hmm_smooth(*arguments).smoothed.shape == (B, T, 3)


def test_both_recursions_agree_on_long_sequences():
    arguments = draw(2, 3000, 4, 5, missing=0.1)
    plain, logs = hmm_filter(*arguments), hmm_filter_log(*arguments)
    np.testing.assert_allclose(plain.filtered, logs.filtered, atol=1e-9)
    np.testing.assert_allclose(plain.predicted, logs.predicted, atol=1e-9)
    np.testing.assert_allclose(plain.log_likelihood, logs.log_likelihood, rtol=1e-12)


EXTREMES = {**cases(1e-300), **{f"{name}-32": model for name, model in cases(1e-35).items()}}


@pytest.mark.parametrize("name", EXTREMES)
def test_at_great_length_and_extreme_values(name):
    """Against integers of any length; each step has relative errors of a few roundings."""
    y, *parameters = EXTREMES[name]
    want = exact(y, *parameters)
    bound = hmm_relative_error(torch.float64, len(parameters[0]), len(y))
    for filtering in (hmm_filter, hmm_filter_log):
        got = filtering(y[None], *parameters)
        # A logarithm has a rounding error of its own size, be it of the likelihood or of a state.
        logs = np.log(want.filtered, where=want.filtered > 0, out=np.zeros_like(want.filtered))
        finite = want.log_likelihood if np.isfinite(want.log_likelihood) else 0.0
        loose = bound * (1 - min(finite, logs.min()) if filtering is hmm_filter_log else 1)
        for output in ("filtered", "predicted"):
            found, expected = getattr(got, output)[0], getattr(want, output)
            np.testing.assert_allclose(found, expected, rtol=loose, atol=5e-324, err_msg=output)
        np.testing.assert_allclose(got.log_likelihood, want.log_likelihood, rtol=bound)
    smooth = hmm_smooth(y[None], *parameters)
    np.testing.assert_allclose(smooth.smoothed[0], want.smoothed, rtol=bound, atol=5e-324)
    np.testing.assert_allclose(smooth.log_likelihood, want.log_likelihood, rtol=1e-14)


@pytest.mark.parametrize("seed", range(3))
def test_thousands_of_steps(seed):
    y, *parameters = (x[0] for x in draw(1, 2000, 3, 4, zeros=0.2, missing=0.1, seed=seed))
    want = exact(y, *parameters)
    got = hmm_filter(y[None], *parameters)
    bound = hmm_relative_error(torch.float64, 3, 2000)
    np.testing.assert_allclose(got.filtered[0], want.filtered, rtol=bound, atol=5e-324)
    np.testing.assert_allclose(got.log_likelihood, want.log_likelihood, rtol=1e-14)
    found = hmm_smooth(y[None], *parameters).smoothed[0]
    np.testing.assert_allclose(found, want.smoothed, rtol=bound, atol=5e-324)
