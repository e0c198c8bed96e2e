"""bijection_posterior at great lengths and with extreme channels, against whole numbers."""

import numpy as np
import pytest
import torch
from helpers.exact_bijections import exact_rows
from helpers.extreme_channels import (
    CASES,
    TINY,
    assert_exact,
    assert_exact_gradient,
    draw_possible,
    gradient_weights,
    hand_made,
    power_channel,
)
from helpers.tolerances import subset_sums

from bwt import ops

BACKENDS = ["native", "torch", "reference"]


def call(keys, values, channel, backend, dtype=torch.float64):
    return ops.bijection_posterior(
        torch.from_numpy(np.asarray(keys))[None],
        torch.from_numpy(np.asarray(values))[None],
        len(channel),
        channel=torch.as_tensor(channel, dtype=dtype),
        backend=backend,
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_extreme_channels(name, backend):
    keys, values, channel = CASES[name]
    assert_exact(call(keys, values, channel, backend), keys, values, channel)


@pytest.mark.parametrize("backend", BACKENDS)
def test_extreme_channels_in_float32(backend):
    for seed in range(10):
        rng = np.random.default_rng(seed)
        channel = power_channel(rng, 3, 1e-37).astype(np.float32)
        keys, values = rng.integers(3, size=(2, 24))
        got = call(keys, values, channel, backend, torch.float32)
        assert_exact(got, keys, values, channel.astype(np.float64))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("num_symbols,steps", [(2, 3000), (3, 700)])
def test_every_row_of_a_long_sequence(backend, num_symbols, steps):
    rng = np.random.default_rng(0)
    keys, values, channel = hand_made(rng, num_symbols, 0.01, steps)
    assert_exact(call(keys, values, channel, backend), keys, values, channel)


@pytest.mark.parametrize("num_symbols,noise", [(2, 0.01), (3, 0.01), (2, 1e-300), (3, TINY)])
def test_a_hundred_thousand_steps(num_symbols, noise):
    """The evidence is balanced now and then, and there the rows are looked at."""
    rng = np.random.default_rng(1)
    steps = 100_000
    keys, values, channel = hand_made(rng, num_symbols, noise, steps)
    got = call(keys, values, channel, "native").posterior[0].numpy()
    undecided = np.flatnonzero(got.max(1) < 0.999)
    assert len(undecided) > 20
    picks = [*undecided[-12:], *rng.integers(steps, size=4), steps - 1]
    expected = exact_rows(keys, values, channel, picks)
    bound = subset_sums(num_symbols, steps)
    np.testing.assert_allclose(got[picks], expected, rtol=0, atol=bound)


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_extreme_channels(name, backend):
    # At zeros of an extreme channel the torch backend promises nothing.
    assert_gradient(*CASES[name], backend, at_zeros=backend == "native")


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("seed", range(20))
def test_gradients_at_zeros_of_a_channel(seed, backend):
    rng = np.random.default_rng(seed)
    channel = power_channel(rng, 4, 1e-3, zeros=0.4)
    assert_gradient(*draw_possible(rng, channel, 12, 3), channel, backend)


def assert_gradient(keys, values, channel, backend, *, at_zeros=True):
    weights = gradient_weights(keys, channel)
    parameter = torch.from_numpy(channel.copy()).requires_grad_()
    outputs = call(keys, values, parameter, backend)
    loss = sum(
        (torch.from_numpy(weight) * output[0]).sum()
        for weight, output in zip(weights, outputs, strict=True)
    )
    (got,) = torch.autograd.grad(loss, parameter)
    assert_exact_gradient(got.numpy(), keys, values, channel, weights, at_zeros=at_zeros)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wide", [False, True], ids=["plain", "extreme"])
def test_a_true_contradiction_is_found_where_it_is(backend, wide):
    """Key 0 is 0 or 1, key 1 is 0 or 1, so key 2 cannot show what only 0 and 1 show."""
    small = 1e-300 if wide else 0.25
    channel = np.array([[1 - small, small, 0.0], [small, 1 - small, 0.0], [0.0, 0.0, 1.0]])
    keys, values = [0, 1, 0, 1, 0, 2], [0, 0, 1, 1, 0, 1]
    with pytest.raises(ValueError, match="sequence 0 contradicts itself at step 5"):
        call(keys, values, channel, backend)
    assert_exact(call(keys[:-1], values[:-1], channel, backend), keys[:-1], values[:-1], channel)
