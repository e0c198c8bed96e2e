"""Entropy that is planted along the first component is found there, and elsewhere elsewhere."""

import pytest
import torch
from helpers.planted import transformer

from bwt import tasks
from bwt.geometry.alignment import align, alignments
from bwt.geometry.manifold import manifold
from bwt.geometry.subject import Subject
from bwt.records.base import plain
from bwt.records.geometry import Manifold
from bwt.report.diagnostics import manifold as shown

TASK = tasks.get("bijection", num_symbols=5, num_pairs=7, replacement=True)
HMM = tasks.get("hmm", num_states=3, num_symbols=3, length=6)
WIDTH = 12


def cloud(axis: int, size: float, *, by_position=False, sequences=400):
    """Entropies, and states with a strong first axis; the entropy moves one axis by `size`."""
    generator = torch.Generator().manual_seed(0)
    entropy = torch.randn(sequences, 6, dtype=torch.float64, generator=generator)
    if by_position:
        entropy = entropy[:1].expand(sequences, -1)
    x = torch.randn(sequences, 6, WIDTH, dtype=torch.float64, generator=generator)
    x[..., 0] *= 3
    x[..., axis] += size * entropy
    return x, entropy


def test_entropy_along_the_first_component():
    found = align(*cloud(0, 6.0))
    assert found.cosine.mean > 0.98 and found.cosine.se < 0.02
    assert found.first_r2 > 0.7 and found.first_r2 == pytest.approx(found.best_r2, abs=0.05)
    assert found.share == pytest.approx(found.first_share, abs=0.02) and found.plane > 0.98
    # Here the strong component draws labels of others to it, too: the R2 tells the difference.
    assert found.shuffled > 0.5 > found.random


def test_entropy_in_another_direction_than_the_first():
    found = align(*cloud(5, 1.0))
    assert found.cosine.mean < 0.3 and found.first_r2 < 0.01 and found.best_r2 > 0.4
    assert found.share < found.first_share / 2


def test_entropy_that_is_not_there():
    found = align(*cloud(0, 0.0))
    assert found.first_r2 < 0.01 and found.best_r2 < 0.02
    # Whatever the cosine, labels of others have one as high.
    assert found.shuffled > 0.5


def test_a_strong_component_of_the_position_does_not_count_where_entropy_varies_within():
    x, entropy = cloud(3, 4.0)
    x = x + 50 * torch.arange(6.0)[:, None] * torch.eye(WIDTH, dtype=torch.float64)[7]
    assert align(x, entropy).cosine.mean > 0.9


def test_entropy_that_the_position_determines_is_taken_as_it_is():
    found = align(*cloud(2, 8.0, by_position=True))
    assert found.cosine.mean > 0.95 and found.best_r2 > 0.9


@pytest.mark.parametrize("task", [TASK, HMM], ids=["bijection", "hmm"])
def test_all_clouds_and_the_values_are_compared_with_the_untrained_model(task):
    torch.manual_seed(0)
    subject, other = (Subject.draw(task, transformer(task, layers=2), 64) for _ in range(2))
    found = manifold(subject, other)
    names = {f"{x} {i}" for x in ("attention", "residual", "values") for i in range(2)}
    assert set(found.alignment) == names
    assert all(x.untrained_cosine is not None for x in found.alignment.values())
    assert Manifold.from_json(plain(found)) == found
    same = alignments(subject, subject, {"residual 0": "blocks.0"})["residual 0"]
    assert same.untrained_cosine == same.cosine.mean and same.untrained_best_r2 == same.best_r2
    assert any(card.name == "alignment" for card in shown.cards(found))


def test_states_that_never_change_have_no_direction():
    assert align(torch.ones(20, 6, 4, dtype=torch.float64), cloud(0, 1.0, sequences=20)[1]) is None


def test_entropy_that_varies_only_where_directions_are_found_cannot_be_read_elsewhere():
    x, entropy = cloud(0, 6.0, sequences=40)
    entropy[20:] = entropy[:20].mean(0)
    found = align(x, entropy)
    assert found.best_r2 == 0.0 and found.first_r2 == pytest.approx(0.0, abs=1e-12)
