"""Training steps as CUDA graphs: the same runs, with one launch from the host for each step."""

import dataclasses
import os
import signal

import pytest
import torch
from helpers.same_runs import same_files
from helpers.small_runs import interrupt_at

from bwt import train
from bwt.runs.config import TrainConfig
from bwt.train import graphs

pytestmark = pytest.mark.gpu

BASE = TrainConfig(
    task="bijection",
    task_options=dict(num_symbols=4, replacement=True),
    model_options=dict(width=16, layers=1, heads=2, token_shift="input"),
    optimizer="muon",
    steps=7,
    batch_size=4,
    evaluations=2,
    eval_sequences=4,
    average=0.3,  # another phase, and its weights have to be those of the moment
    device="cuda",
    graph="on",
)
HMM = dict(num_states=3, num_symbols=3, length=3)
VARIANTS = {
    "muon-averaged": {},
    "adamw": dict(optimizer="adamw", ema=0.9, weight_decay=0.1, clip=0.01),
    "posterior": dict(task="hmm", task_options=HMM, targets="posterior"),
    "noisy": dict(
        task_options=dict(num_symbols=3, replacement=True, noise=0.2), targets="posterior"
    ),
    "recall": dict(
        task="recall", task_options=dict(num_pairs=3, num_keys=6, num_values=6, num_queries=2)
    ),
    "frozen": dict(freeze="content", freeze_at=2, steps=8),
    "curriculum": dict(curriculum="replacement=false,true", curriculum_steps=6, steps=9),
    "penalty": dict(key_penalty=0.1),
    "bf16": dict(precision="bf16"),
    "mamba": dict(model="mamba", model_options=dict(width=8, layers=1, state=4)),
    "mlp": dict(model="mlp", model_options=dict(width=16, layers=1)),
}


@pytest.fixture(autouse=True)
def captured_early(monkeypatch):
    monkeypatch.setattr(graphs, "WARMUP", 1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_with_graphs_is_the_run_without(variant, tmp_path):
    """Bit for bit: a number of Python's that changes, a copy from the host or a draw that is not
    repeated would all show."""
    config = dataclasses.replace(BASE, **VARIANTS[variant])
    graphed = train.train(config, tmp_path / "graphed").run
    eager = train.train(dataclasses.replace(config, graph="off"), tmp_path / "eager").run
    same_files(graphed, eager)


def test_a_step_is_one_launch_and_the_host_neither_waits_nor_copies(emulated_device):
    config = dataclasses.replace(BASE, steps=20, average=0.0)
    step = train.build_step(config, torch.device("cuda"))
    for _ in range(3):
        step.update()
    launches, counts = emulated_device.launches(), emulated_device.counts()
    for _ in range(5):
        step.update()
    after = emulated_device.launches()
    assert (after.kernels - launches.kernels, after.graphs - launches.graphs) == (0, 5)
    assert emulated_device.counts() == counts
    assert step.count == step.schedule.step.item() == 8


def test_resumed_with_graphs_it_is_the_same_bit_for_bit(tmp_path, monkeypatch):
    whole = train.train(BASE, tmp_path / "whole").run
    with monkeypatch.context() as patch:
        interrupt_at(5, lambda: os.kill(os.getpid(), signal.SIGTERM), patch)
        run = train.train(BASE, tmp_path / "parts").run
    assert run.resumable_steps() == [5]
    train.resume(run.path)
    for step in set(run.steps()) - set(whole.steps()):
        run.weights_path(step).unlink()
    same_files(whole, run)


def test_a_step_that_cannot_be_captured_is_said_and_goes_on(tmp_path, monkeypatch):
    """By default; it is an error if graphs were asked for."""
    record = train.TrainStep._record

    def peeking(self, numbers):
        numbers.sum().item()
        record(self, numbers)

    monkeypatch.setattr(train.TrainStep, "_record", peeking)
    config = dataclasses.replace(BASE, graph="auto")
    with pytest.warns(RuntimeWarning, match="not captured as a CUDA graph.*not permitted"):
        spoiled = train.train(config, tmp_path / "auto").run
    with pytest.raises(RuntimeError, match="graph on: a step cannot be captured.*not permitted"):
        train.train(BASE, tmp_path / "on")
    monkeypatch.undo()
    same_files(spoiled, train.train(config, tmp_path / "eager").run)
