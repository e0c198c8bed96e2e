"""Observations through channels that leave the range of a double, and what is exact for them."""

import numpy as np
import torch

from helpers.exact_bijections import exact, exact_gradient
from helpers.tolerances import rounding, running_sum, subset_slopes, subset_sums

TINY = float(np.finfo(np.float64).tiny)  # the smallest normal number


def flip_channel(num_symbols: int, noise: float) -> np.ndarray:
    channel = np.full((num_symbols, num_symbols), noise / (num_symbols - 1))
    np.fill_diagonal(channel, 1 - noise)
    return channel


def power_channel(rng, num_symbols: int, least: float, zeros: float = 0.0) -> np.ndarray:
    """Entries over all powers of ten down to `least`, one large one in each row."""
    channel = 10 ** rng.uniform(np.log10(least), 0, size=(num_symbols, num_symbols))
    channel[rng.random(channel.shape) < zeros] = 0.0
    channel[np.arange(num_symbols), rng.permutation(num_symbols)] = rng.uniform(0.1, 1)
    return channel / channel.sum(1, keepdims=True)


def draw_possible(rng, channel, steps: int, keys_used: int):
    """Keys, and values that a bijection can show, as likely as any other that it can."""
    num_symbols = len(channel)
    keys = rng.integers(keys_used, size=steps)
    bijection = rng.permutation(num_symbols)
    possible = [np.flatnonzero(channel[bijection[key]]) for key in keys]
    return keys, np.array([rng.choice(values) for values in possible], dtype=int)


def random_case(seed: int, zeros: float = 0.0):
    rng = np.random.default_rng(seed)
    num_symbols = int(rng.integers(2, 5))
    least = max(10.0 ** -rng.uniform(1, 307.6), TINY)
    channel = power_channel(rng, num_symbols, least, zeros)
    steps = int(rng.integers(2, 16))
    return *draw_possible(rng, channel, steps, int(rng.integers(1, num_symbols + 1))), channel


def hand_made(rng, num_symbols: int, noise: float, steps: int):
    """Values at random, so that every key contradicts itself again and again."""
    keys, values = rng.integers(num_symbols, size=(2, steps))
    return keys, values, flip_channel(num_symbols, noise)


CASES = {
    **{f"powers-{seed}": random_case(seed) for seed in range(40)},
    **{f"zeros-{seed}": random_case(seed, zeros=0.4) for seed in range(40)},
    **{
        f"flip-V{V}-{noise:.0e}": hand_made(np.random.default_rng(V), V, noise, steps)
        for V in (2, 3, 4)
        for noise, steps in [(1e-12, 60), (1e-120, 24), (1e-300, 16), ((V - 1) * TINY, 16)]
    },
    # One hypothesis falls 600 powers of ten behind and is then the only one left.
    "revived": (
        np.array([0, 0, 0, 1, 2]),
        np.array([0, 0, 2, 1, 0]),
        np.array([[1 - 1e-300, 1e-300, 0.0], [1e-300, 1 - 2e-300, 1e-300], [0.5, 0.25, 0.25]]),
    ),
    "revived beyond a double": (
        np.array([0, 0, 0, 1]),
        np.array([0, 0, 1, 0]),
        np.array([[1.0, 0.0], [1e-300, 1.0]]),
    ),
}


def assert_exact(got, keys, values, channel):
    """The fields of a result [1, K, ...], tensors or arrays."""
    steps, num_symbols = len(keys), len(channel)
    error = subset_sums(num_symbols, steps)
    for name, target in exact(keys, values, channel)._asdict().items():
        actual = torch.as_tensor(getattr(got, name))[0]
        scale = max(1.0, np.abs(target).max())
        bound = scale * error + rounding(actual.dtype, scale)
        if name == "log_evidence":
            bound += steps * error + running_sum(steps, scale)
        np.testing.assert_allclose(actual.numpy(), target, rtol=0, atol=bound, err_msg=name)


def gradient_weights(keys, channel) -> list[np.ndarray]:
    """Of posterior, entropy and log_evidence; small, lest they make more than a double can hold of
    a gradient that it just holds."""
    rng = np.random.default_rng(0)
    steps, num_symbols = len(keys), len(channel)
    return [1e-6 * rng.normal(size=shape) for shape in [(steps, num_symbols), steps, steps]]


def assert_exact_gradient(got, keys, values, channel, weights, *, at_zeros=True):
    """In proportion to the channel, as the gradient at an entry of 1e-300 may be 1e300; where an
    entry is zero, in proportion to the gradient, if a double can hold it."""
    expected = exact_gradient(keys, values, channel, *weights)
    checked = np.isfinite(expected) & (at_zeros | (channel > 0))
    assert checked[channel > 0].all()
    surprise = -np.log2(np.clip(exact(keys, values, channel).posterior, TINY, 1))
    scale = sum(np.abs(w).sum() for w in (weights[0], weights[1] * surprise.max(1)))
    scale += np.abs(weights[2][::-1].cumsum()).sum()
    bound = subset_slopes(len(channel), len(keys), scale) * np.where(
        channel > 0, 1.0, np.maximum(1.0, np.abs(expected) / scale)
    )
    with np.errstate(invalid="ignore"):
        error = np.abs(got * np.where(channel > 0, channel, 1.0) - expected)
    assert (error <= bound)[checked].all(), f"{error} exceeds {bound} of {expected}"
