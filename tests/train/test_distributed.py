"""Training in two processes: what they draw, how they stop, and that they resume without a
difference."""

import dataclasses
import os
import subprocess
import sys

import pytest
import torch
from helpers import ROOT
from helpers.same_runs import losses, same_files

from bwt import streams, train
from bwt.runs.checkpoints import load_state, load_weights
from bwt.runs.config import TrainConfig
from bwt.runs.directory import RunDirectory
from bwt.runs.files import RunError
from bwt.train import distributed


def torchrun(folder, *words):
    """Two processes on the CPU, whatever GPUs there are."""
    command = [sys.executable, "-P", "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    run = [*command, *map(str, words)]
    return subprocess.run(run, capture_output=True, text=True, env=environment, cwd=folder)


TWO = ["train", "bijection", "--preset", "quick", "--device", "cpu", "--threads", "1"]
TWO += ["--steps", "8", "--evaluations", "2", "--eval-sequences", "32", "--num-symbols", "4"]
TWO += ["--width", "16", "--batch-size", "8"]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A run of two processes, and what they said."""
    folder = tmp_path_factory.mktemp("two")
    done = torchrun(folder, "-m", "bwt", *TWO, "--out", "run")
    assert done.returncode == 0, done.stderr
    return RunDirectory.open(folder / "run"), done.stdout


def test_two_processes_equal_one_that_draws_from_both_streams(two, tmp_path, monkeypatch):
    """Within rounding: the gradients are sums in another order."""
    run, said = two
    for line in ("preset quick: 8 steps of 8 sequences\n", "its weights hold"):
        assert said.count(line) == 1  # one process speaks
    config = dataclasses.replace(TrainConfig.from_json(run.read_config()), batch_size=16)
    generators = [streams.generator("training", config.seed, rank=rank) for rank in range(2)]

    def sample(self, task):
        parts = [self.task.sample(8, generator=x, posterior=False) for x in generators]
        tokens, targets = (torch.cat([getattr(x, n) for x in parts]) for n in ("tokens", "targets"))
        return parts[0]._replace(tokens=tokens, targets=targets)

    monkeypatch.setattr(train.TrainStep, "sample", sample)
    one = train.train(config, tmp_path / "one").run
    assert [step for step, _ in losses(one)] == [step for step, _ in losses(run)]
    for (_, a), (_, b) in zip(losses(one), losses(run), strict=True):
        assert abs(a - b) < 1e-4
    assert one.read_metrics()[-1].sequences == run.read_metrics()[-1].sequences == 128


@pytest.mark.slow
def test_two_processes_stop_together_and_resume_without_a_difference(two, tmp_path):
    whole, _ = two
    words = [ROOT / "tests/helpers/interrupted.py", 1, 4, *TWO, "--out", "run"]
    assert torchrun(tmp_path, *words).returncode != 0
    run = RunDirectory.open(tmp_path / "run")
    step, state = load_state(run)
    assert step == 4
    assert len(state["generator"]) == 2 and not torch.equal(*state["generator"])
    with pytest.raises(RunError, match=r"data for 2 process\(es\) and there are 1"):
        train.resume(run.path)
    second = torchrun(tmp_path, "-m", "bwt", "train", "--resume", "run")
    assert second.returncode == 0, second.stderr
    run.weights_path(step).unlink()
    same_files(whole, run)


@pytest.mark.slow
def test_two_processes_freeze_the_same(two, tmp_path):
    free, _ = two
    frozen = ["--freeze", "routing", "--freeze-at", "4"]
    done = torchrun(tmp_path, "-m", "bwt", *TWO, *frozen, "--out", "run")
    assert done.returncode == 0, done.stderr
    run = RunDirectory.open(tmp_path / "run")
    name = "blocks.0.attn.qkv.weight"
    before, after, without = (
        load_weights(which, step)[name] for which, step in ((run, 4), (run, 8), (free, 8))
    )
    assert torch.equal(before[:32], after[:32]) and not torch.equal(before[32:], after[32:])
    assert not torch.equal(before[:32], without[:32])


@pytest.mark.slow
def test_two_processes_diverge_together(tmp_path):
    words = [ROOT / "tests/helpers/spoiled.py", 1, 5, *TWO, "--out", "run"]
    done = torchrun(tmp_path, *words)
    assert done.returncode != 0 and done.stderr.count("bwt: run diverged at step 5") == 1
    run = RunDirectory.open(tmp_path / "run")
    assert run.divergence["step"] == 5 and "the loss is nan" in run.divergence["message"]
    assert run.last_step() is None or run.last_step() < 5


def test_gradients_are_means_and_a_missing_one_counts_as_zero(monkeypatch):
    """Of two processes, the other one with gradients of one everywhere."""

    def all_reduce(message):
        message += 1

    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(distributed.dist, "all_reduce", all_reduce)
    first, idle = torch.zeros(2, 3, requires_grad=True), torch.zeros(4, requires_grad=True)
    first.grad = torch.full((2, 3), 5.0)
    distributed.mean_gradients([first, idle])
    assert torch.equal(first.grad, torch.full((2, 3), 3.0))
    assert torch.equal(idle.grad, torch.full((4,), 0.5))
