"""The oracles are themselves checked, by enumeration and closed forms."""

import itertools
import math

import numpy as np
import pytest

from bwt import reference


def enumerate_bijections(keys, values, channel):
    """The definition: sums over all V! bijections."""
    num_symbols = len(channel)
    bijections = np.array(list(itertools.permutations(range(num_symbols))))  # [V!, V]
    weight = np.full(len(bijections), 1.0 / len(bijections))
    posterior, log_evidence = [], []
    for key, value in zip(keys, values, strict=True):
        image = bijections[:, key]
        row = np.bincount(image, weights=weight, minlength=num_symbols)
        posterior.append(row / row.sum())
        weight = weight * channel[image, value]
        log_evidence.append(np.log(weight.sum()))
    return np.array(posterior), np.array(log_evidence)


def random_channel(rng, num_symbols):
    return rng.dirichlet(np.ones(num_symbols), size=num_symbols)


@pytest.mark.parametrize("num_symbols", range(1, 8))
def test_noisy_bijection_posterior_is_the_sum_over_bijections(num_symbols):
    rng = np.random.default_rng(num_symbols)
    channel = random_channel(rng, num_symbols)
    keys = rng.integers(num_symbols, size=(3, 2 * num_symbols))  # repeats for certain
    values = rng.integers(num_symbols, size=keys.shape)
    got = reference.bijection_posterior(keys, values, num_symbols, channel=channel)
    for b in range(len(keys)):
        posterior, log_evidence = enumerate_bijections(keys[b], values[b], channel)
        np.testing.assert_allclose(got.posterior[b], posterior, atol=1e-13)
        np.testing.assert_allclose(got.log_evidence[b], log_evidence, atol=1e-11)


@pytest.mark.parametrize("num_symbols", range(1, 8))
@pytest.mark.parametrize("replacement", [False, True])
def test_noiseless_bijection_posterior_is_the_sum_over_bijections(num_symbols, replacement):
    rng = np.random.default_rng(num_symbols)
    keys = np.stack(
        [
            rng.integers(num_symbols, size=2 * num_symbols)
            if replacement
            else rng.permutation(num_symbols)
            for _ in range(3)
        ]
    )
    values = np.stack([rng.permutation(num_symbols)[row] for row in keys])
    got = reference.bijection_posterior(keys, values, num_symbols)
    for b in range(len(keys)):
        posterior, log_evidence = enumerate_bijections(keys[b], values[b], np.eye(num_symbols))
        np.testing.assert_allclose(got.posterior[b], posterior, atol=1e-13)
        np.testing.assert_allclose(got.log_evidence[b], log_evidence, atol=1e-11)


def test_bijection_entropy_without_replacement_is_log2_of_what_is_left():
    keys = values = np.arange(20)[None]
    got = reference.bijection_posterior(keys, values, 20)
    np.testing.assert_allclose(got.entropy[0], np.log2(20 - np.arange(20)), atol=1e-14)
    np.testing.assert_allclose(got.log_evidence[0, -1], -math.lgamma(21), rtol=1e-14)


def test_bijection_contradiction_is_an_error():
    with pytest.raises(ValueError, match="sequence 0 contradicts itself at step 1"):
        reference.bijection_posterior(np.array([[0, 1]]), np.array([[2, 2]]), 3)
