"""The recall task against a plain reading of its tokens."""

import math

import numpy as np
import pytest
import torch

from bwt import tasks

PAD, STORE, FILLER, QUERY, SEPARATOR = range(5)


def draw(task, batch_size, seed=0):
    return task.sample(batch_size, generator=torch.Generator().manual_seed(seed))


def parse(tokens, num_keys):
    """Stored pairs and questions (position of PAD, key) of one sequence, token by token."""
    stored, asked, at = {}, [], 0
    while at < len(tokens):
        if tokens[at] == STORE:
            assert tokens[at + 2] == SEPARATOR
            stored[tokens[at + 1] - 5] = tokens[at + 3] - 5 - num_keys
            at += 4
        elif tokens[at] == QUERY:
            assert tokens[at + 2] == PAD
            asked.append((at + 2, tokens[at + 1] - 5))
            at += 3
        else:
            assert tokens[at] == FILLER
            at += 1
    return stored, asked


@pytest.mark.parametrize("filler", [0, 1, 6])
@pytest.mark.parametrize("unseen", [0.0, 0.4])
def test_against_plain_reading(filler, unseen):
    options = dict(num_pairs=5, num_keys=12, num_values=9, num_queries=3)
    task = tasks.get("recall", filler=filler, unseen=unseen, **options)
    batch = draw(task, 100)
    misses = 0
    for tokens, targets, posterior in zip(
        *map(torch.Tensor.tolist, (batch.tokens, batch.targets, batch.posterior)), strict=True
    ):
        stored, asked = parse(tokens, 12)
        assert len(stored) == len(set(stored.values())) == 5
        assert len({key for _, key in asked}) == 3
        assert [position for position, _ in asked] == task.positions.tolist()
        assert tokens.count(FILLER) == filler + 2 * (filler // 2)
        for (_, key), target, row in zip(asked, targets, posterior, strict=True):
            free = set(range(9)) - set(stored.values())
            possible = {stored[key]} if key in stored else free
            misses += key not in stored
            assert target in possible
            expected = [(value in possible) / len(possible) for value in range(9)]
            np.testing.assert_allclose(row, expected, atol=1e-7)
    assert abs(misses / 300 - unseen) < 4 * math.sqrt(unseen * (1 - unseen) / 300) + 1e-9


def test_size_of_the_papers_code():
    task = tasks.get("recall", num_pairs=64, num_keys=256, num_values=256, num_queries=3, filler=32)
    assert task.seq_len == 329 and task.num_outcomes == 256


def test_unbound_floor():
    task = tasks.get("recall", num_pairs=3, num_keys=5, num_values=5, num_queries=2, unseen=0.5)
    batch = draw(task, 50)
    floor = task.floors(batch)["unbound"]
    known = batch.posterior.max(-1).values == 1
    assert 20 < known.sum() < 80
    # One who knows the set of stored values is one third sure, and right about keys not stored.
    hit = floor.gather(-1, batch.targets[..., None])[..., 0]
    torch.testing.assert_close(hit[known], torch.full_like(hit[known], 1 / 3))
    torch.testing.assert_close(floor[~known], batch.posterior[~known])
    assert ((floor > 0).sum(-1)[known] == 3).all()


def test_hypothesis_bits_by_counting():
    """2 of 3 keys, each set with an ordered choice of 2 of 4 values: 3 * 12."""
    task = tasks.get("recall", num_pairs=2, num_keys=3, num_values=4, num_queries=1)
    assert task.hypothesis_bits == pytest.approx(math.log2(36))
