"""The bijection task against enumeration of all permutations."""

import itertools
import math

import numpy as np
import pytest
import torch

from bwt import tasks
from bwt.tasks._base import shuffled


def draw(task, batch_size, seed=0):
    return task.sample(batch_size, generator=torch.Generator().manual_seed(seed))


def brute_force(tokens, V, noise):
    """[K, V] by summing over all V! bijections; tokens x1 y1 ... xK of one sequence."""
    keys, shown = tokens[0::2], tokens[1::2] - V
    rows = np.zeros((len(keys), V))
    for pi in itertools.permutations(range(V)):
        weight = 1.0
        for t, key in enumerate(keys):
            rows[t, pi[key]] += weight
            if t < len(shown):
                weight *= 1 - noise if shown[t] == pi[key] else noise / (V - 1)
    return rows / rows.sum(-1, keepdims=True)


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("noise", [0.0, 0.25])
def test_posterior(replacement, noise):
    task = tasks.get("bijection", num_symbols=4, num_pairs=4, replacement=replacement, noise=noise)
    batch = draw(task, 40)
    exact = np.stack([brute_force(tokens, 4, noise) for tokens in batch.tokens.numpy()])
    np.testing.assert_allclose(batch.posterior.numpy(), exact, atol=3e-7)


@pytest.mark.parametrize("replacement", [False, True])
def test_layout(replacement):
    task = tasks.get("bijection", num_symbols=7, num_pairs=6, replacement=replacement)
    assert (task.vocab_size, task.num_outcomes, task.seq_len) == (14, 7, 11)
    assert task.positions.tolist() == [0, 2, 4, 6, 8, 10]
    batch = draw(task, 200)
    keys, values = batch.tokens[:, 0::2], batch.tokens[:, 1::2]
    assert keys.max() == 6 and keys.min() == 0 and values.max() == 13 and values.min() == 7
    assert torch.equal(values - 7, batch.targets[:, :-1])
    for row, answers in zip(keys.tolist(), batch.targets.tolist(), strict=True):
        pairs = set(zip(row, answers, strict=True))
        assert len(pairs) == len(set(row)) == len(set(answers))  # a function, one to one
    assert any(len(set(row)) < 6 for row in keys.tolist()) == replacement


def test_noise_changes_what_is_shown_and_not_the_target():
    task = tasks.get("bijection", num_symbols=5, replacement=False, noise=0.4)
    batch = draw(task, 50_000)
    shown, true = batch.tokens[:, 1::2] - 5, batch.targets[:, :-1]
    counts = np.bincount(((shown - true) % 5).flatten().numpy(), minlength=5) / true.numel()
    np.testing.assert_allclose(counts, [0.6, 0.1, 0.1, 0.1, 0.1], atol=5e-3)
    assert all(len(set(row)) == 4 for row in batch.targets.tolist())


def test_entropy_falls_with_each_pair():
    posterior = draw(tasks.get("bijection", replacement=False), 4).posterior.double()
    entropy = torch.special.entr(posterior).sum(-1) / math.log(2)
    expected = torch.log2(20 - torch.arange(19, dtype=torch.float64)).expand(4, -1)
    torch.testing.assert_close(entropy, expected, atol=1e-6, rtol=0)


def test_shuffled_permutations_are_uniform():
    counts = {}
    generator = torch.Generator().manual_seed(0)
    for row in shuffled(24_000, 4, generator, torch.device("cpu")).tolist():
        counts[tuple(row)] = counts.get(tuple(row), 0) + 1
    assert len(counts) == 24
    statistic = sum((count - 1000) ** 2 / 1000 for count in counts.values())
    assert statistic < 49.7  # chi-square, 23 degrees of freedom, p = 0.001


def test_hypothesis_bits():
    assert tasks.get("bijection").hypothesis_bits == pytest.approx(math.log2(math.factorial(20)))


def floors_of(tokens, **options):
    """Floors [K, V] of one sequence; the last target is not looked at."""
    task = tasks.get("bijection", replacement=True, **options)
    tokens = torch.tensor([tokens])
    targets = torch.zeros(1, task.num_pairs, dtype=torch.int64)
    batch = tasks.Batch(tokens, None, task.positions, targets, None)
    return {name: floor[0].numpy() for name, floor in task.floors(batch).items()}


def test_floors():
    """Pairs (0, 2) (1, 3), then key 0 again, then key 2."""
    floors = floors_of([0, 6, 1, 7, 0, 6, 2], num_symbols=4, num_pairs=4)
    quarter = [0.25] * 4
    np.testing.assert_allclose(floors["lookup"], [quarter, quarter, [0, 0, 1, 0], quarter])
    unbound = [quarter, [1 / 3, 1 / 3, 0, 1 / 3], [0, 0, 0.5, 0.5], [0.5, 0.5, 0, 0]]
    np.testing.assert_allclose(floors["unbound"], unbound, atol=1e-7)


def test_noisy_lookup_floor():
    """Key 0 shown with 1, 1, 2: likelihoods .7 .7 .15 for value 1, .15 .15 .7 for 2."""
    floors = floors_of([0, 4, 0, 4, 0, 5, 0], num_symbols=3, num_pairs=4, noise=0.3)
    weights = np.array([0.15**3, 0.7**2 * 0.15, 0.15**2 * 0.7])
    np.testing.assert_allclose(floors["lookup"][3], weights / weights.sum(), rtol=1e-5)
    assert list(floors) == ["lookup", "latest"]


def last_showings(keys, shown, channel):
    """[K, V] by enumeration: of the pairs before each question, the last one of each key."""
    V = len(channel)
    found = np.zeros((len(keys), V))
    for t, asked in enumerate(keys):
        kept = dict(zip(keys[:t], shown[:t], strict=True))
        for pi in itertools.permutations(range(V)):
            found[t, pi[asked]] += math.prod(channel[pi[key], y] for key, y in kept.items())
    return found / found.sum(-1, keepdims=True)


@pytest.mark.parametrize("num_pairs", [1, 3, 9])  # fewer than there are keys, and more
def test_the_latest_floor_is_exact_from_the_last_showing_of_each_key(num_pairs):
    task = tasks.get("bijection", num_symbols=4, num_pairs=num_pairs, replacement=True, noise=0.3)
    batch = task.sample(20, generator=torch.Generator().manual_seed(0))
    floor = task.floors(batch)["latest"].numpy()
    channel = task.channel().double().numpy()
    for i in range(20):
        keys = batch.tokens[i, 0::2].tolist()
        shown = [*(batch.tokens[i, 1::2] - 4).tolist(), 0]
        np.testing.assert_allclose(floor[i], last_showings(keys, shown, channel), atol=1e-6)


def test_the_latest_floor_is_exact_where_no_key_is_shown_twice():
    task = tasks.get("bijection", num_symbols=6, num_pairs=4, replacement=True, noise=0.2)
    batch = task.sample(64, generator=torch.Generator().manual_seed(0))
    shown = batch.tokens[:, 0:-1:2].sort(1).values
    once = (shown.diff(dim=1) != 0).all(1)
    assert once.any() and not once.all()
    off = (task.floors(batch)["latest"] - batch.posterior).abs().amax((1, 2))
    assert off[once].max() < 1e-6 and off[~once].max() > 0.01


def test_a_task_too_large_for_the_latest_floor_has_the_others():
    task = tasks.get("bijection", num_symbols=11, num_pairs=3, replacement=True, noise=0.2)
    assert list(task.floors(task.sample(2, generator=torch.Generator()))) == ["lookup"]


def test_no_floor_without_repeated_keys():
    task = tasks.get("bijection", replacement=False)
    assert task.floors(draw(task, 3)) == {}
