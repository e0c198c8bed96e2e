"""Training, evaluation and diagnostics never see each other's sequences."""

import dataclasses

import pytest
import torch
from helpers.small_runs import SMALL

from bwt import evaluate, geometry, streams, tasks, train
from bwt.cli import main
from bwt.runs.presets import resolve

PYTHON = dataclasses.replace(SMALL, steps=2, eval_sequences=4)
SMALL_MODELS = dict(transformer=dict(heads=1), mamba={}, lstm={})


def seeds_of(call, monkeypatch):
    """Return the seeds, as the CPU's generator sees them, of all sequences that a call draws."""
    seeds, draw = set(), tasks.TASKS["bijection"].draw

    def recorded(self, batch_size, generator, device):
        seeds.add(generator.initial_seed() % 2**32)
        return draw(self, batch_size, generator, device)

    with monkeypatch.context() as patch:
        patch.setattr(tasks.TASKS["bijection"], "draw", recorded)
        call()
    return seeds


def test_purposes_do_not_share_seeds():
    ranges = sorted((first, first + count) for first, count, _ in streams.PURPOSES.values())
    assert ranges[0][0] == 0 and ranges[-1][1] == 2**32
    assert all(end == start for (_, end), (start, _) in zip(ranges, ranges[1:], strict=False))
    for purpose, (first, count, _) in streams.PURPOSES.items():
        for seed in (0, 1, 1_000_003, 2**29, 2**31 - 1, 2**32, -1, -1_000_003):
            for rank in (0, 1, 1000):
                drawn = streams.generator(purpose, seed, rank=rank).initial_seed()
                assert first <= drawn < first + count, (purpose, seed, rank)


def test_ranks_and_seeds_differ():
    pairs = [(seed, rank) for seed in range(8) for rank in range(8)]
    seeds = {streams.generator("training", s, rank=r).initial_seed() for s, r in pairs}
    assert len(seeds) == len(pairs)


def test_published_evaluations_can_be_repeated():
    drawn = torch.rand(4, generator=streams.generator("evaluation", 5))
    assert torch.equal(drawn, torch.rand(4, generator=torch.Generator().manual_seed(1_000_008)))


def evaluate_untrained(config):
    task = tasks.get(config.task, **config.task_options)
    size = config.batch_size
    guess = lambda batch: torch.zeros(size, len(task.positions), task.num_outcomes).log_softmax(-1)  # noqa: E731
    evaluate.evaluate(guess, task, num_sequences=size, batch_size=size)


@pytest.mark.parametrize("model", SMALL_MODELS)
def test_evaluation_in_python_does_not_see_the_training_data(model, tmp_path, monkeypatch):
    config = resolve(
        "bijection",
        model,
        "authors",
        settings=dict(steps=2, eval_sequences=256, evaluations=1),
        model_options=dict(layers=1, width=8, **SMALL_MODELS[model]),
    )
    run = seeds_of(lambda: train.train(config, tmp_path / "run"), monkeypatch)
    evaluation = seeds_of(lambda: evaluate_untrained(config), monkeypatch)
    assert evaluation == {1_000_003} and len(run) == 2 and evaluation < run


def test_the_command_line_and_python_draw_the_same_separate_streams(tmp_path, monkeypatch):
    out = str(tmp_path / "run")
    run = seeds_of(lambda: train.train(PYTHON, out), monkeypatch)
    evaluation = seeds_of(lambda: main(["eval", out, "--sequences", "4"]), monkeypatch)
    looked = ["geometry", out, "--sequences", "16"]
    by_command = seeds_of(lambda: main(looked), monkeypatch)
    in_python = seeds_of(lambda: geometry.examine(out, sequences=16), monkeypatch)
    training = run - evaluation
    diagnostics = by_command - evaluation  # longer sequences are an evaluation
    assert len(training) == len(evaluation) == len(diagnostics) == 1
    assert len(training | evaluation | diagnostics) == 3
    assert in_python == by_command


def test_patched_sequences_have_donors_of_their_own(monkeypatch, tmp_path):
    out = str(tmp_path / "run")
    run = seeds_of(lambda: train.train(PYTHON, out), monkeypatch)
    seeds = seeds_of(lambda: main(["ablate", out, "--sequences", "16"]), monkeypatch)
    diagnostics = streams.generator("diagnostics", 0).initial_seed()
    assert diagnostics in seeds and not seeds & run
