"""The excess of the training loss over the entropy of the exact posteriors."""

import dataclasses
import itertools
import math

import pytest
import torch
from helpers.small_runs import SMALL, crash, interrupt_at

from bwt import evaluate, tasks, train
from bwt.train.schedule import BLOCK
from bwt.train.step import cross_entropy

TASK = dict(num_symbols=6, num_pairs=9)


@pytest.fixture
def perfect(monkeypatch):
    """Training in which the predictions are the exact posterior, whatever the model."""

    def exact(logits, batch, targets):
        task = tasks.get("bijection", **TASK)
        return cross_entropy(
            task.posterior(batch).clamp_min(1e-30).log() + 0 * logits, batch, targets
        )

    monkeypatch.setattr("bwt.train.step.cross_entropy", exact)
    return dataclasses.replace(SMALL, task_options=TASK, lr=0.0, steps=40, batch_size=64)


def rows_of(config, out):
    return train.train(config, out).run.read_metrics()


def test_against_the_posteriors_of_the_batch_it_is_exact(perfect, tmp_path):
    for row in rows_of(dataclasses.replace(perfect, targets="posterior"), tmp_path / "run"):
        assert abs(row.excess) < 1e-5 and row.excess_se == 0


def test_during_a_curriculum_it_belongs_to_the_easier_task(perfect, tmp_path):
    # Of one pair the entropy is 2.6 bits, of nine 1.5: they take turns.
    config = dataclasses.replace(perfect, curriculum="num_pairs=1,9", curriculum_steps=40)
    rows = rows_of(config, tmp_path / "run")
    noise = 3 * 1.2 / math.sqrt(64 * 9)  # of 64 draws and a single step
    assert all(abs(row.excess) < 5 * noise for row in rows)
    first, second = rows[0].loss, rows[1].loss
    assert abs(first - math.log2(6)) < 1e-4 and second < 2.2


def test_the_expected_entropy_of_bijections_is_that_of_all_sequences():
    for V, K, replacement in ((2, 1, True), (2, 5, True), (3, 3, False), (3, 4, True)):
        task = tasks.get("bijection", num_symbols=V, num_pairs=K, replacement=replacement)
        draw = itertools.product(range(V), repeat=K)
        keys = [k for k in draw if replacement or len(set(k)) == K]
        entropies = [
            0.0 if key[t] in key[:t] else math.log2(V - len(set(key[:t])))
            for key in keys
            for t in range(K)
        ]
        assert task.expected_entropy() == pytest.approx(sum(entropies) / len(entropies), abs=1e-12)


@pytest.mark.parametrize(
    "task",
    [
        tasks.get("bijection", num_symbols=7),
        tasks.get("bijection", num_symbols=7, replacement=False),
        tasks.get("recall", num_pairs=4, num_keys=8, num_values=9, num_queries=3, unseen=0.3),
    ],
    ids=lambda task: task.name,
)
def test_closed_forms_agree_with_samples(task):
    batch = task.sample(4096, generator=torch.Generator().manual_seed(3), device="cpu")
    entropies = evaluate.entropy_bits(batch.exact.double()).mean(1)
    error = float(entropies.std()) / math.sqrt(4096)
    assert abs(task.expected_entropy() - float(entropies.mean())) < 5 * error + 1e-6
    assert evaluate.expected_entropy(task) == (task.expected_entropy(), 0.0)


def test_an_estimate_has_its_standard_error(monkeypatch):
    task = tasks.get("hmm", num_states=3, num_symbols=3, length=4)
    monkeypatch.setattr(evaluate, "ENTROPY_SECONDS", math.inf)
    monkeypatch.setattr(evaluate, "ENTROPY_ERROR", 4e-3)
    estimates = [evaluate.expected_entropy(task, seed=seed) for seed in range(20)]
    means = torch.tensor([mean for mean, _ in estimates])
    claimed = estimates[0][1]
    assert 2e-3 < claimed <= 4e-3
    assert claimed / 2 < float(means.std()) < claimed * 2


def test_a_resumed_run_keeps_its_estimate(tmp_path, monkeypatch):
    hmm = dict(num_states=3, num_symbols=3, length=4)
    config = dataclasses.replace(SMALL, task="hmm", task_options=hmm)
    monkeypatch.setattr(evaluate, "ENTROPY_SECONDS", 0.0)
    whole = rows_of(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        interrupt_at(11, crash, patch)
        with pytest.raises(MemoryError):
            train.train(config, tmp_path / "parts")
    monkeypatch.setattr(evaluate, "ENTROPY_SECONDS", 0.2)  # another machine samples more
    rows = train.resume(tmp_path / "parts").run.read_metrics()
    told = [(row.step, row.excess, row.excess_se) for row in whole]
    assert [(row.step, row.excess, row.excess_se) for row in rows] == told
    assert all(row.excess_se > 0 for row in rows)


def test_memory_does_not_grow_with_the_number_of_steps():
    config = dataclasses.replace(SMALL, steps=10**9)
    step = train.build_step(config, torch.device("cpu"))
    step.update()
    numbers = [x for x in (*vars(step).values(), *vars(step.schedule).values())]
    sizes = [x.numel() for x in numbers if isinstance(x, torch.Tensor)]
    assert max(sizes) == BLOCK and sum(sizes) < 4 * BLOCK
