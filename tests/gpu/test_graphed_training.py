"""Training steps as CUDA graphs: the same runs, with one launch from the host for each step."""

import dataclasses
import os
import signal

import pytest
import torch
from helpers.prepared_runs import prepared
from helpers.same_runs import same_files

from bwt import train
from bwt.runs.config import TrainConfig
from bwt.runs.directory import RunDirectory
from bwt.train import graphs, program

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


def test_runs_in_a_stack_are_those_without_graphs(tmp_path):
    found = {}
    for graph in ("on", "off"):
        configs = [
            dataclasses.replace(BASE, seed=seed, lr=1e-3 * (1 + seed), graph=graph)
            for seed in (0, 1)
        ]
        found[graph] = train.resume_together(prepared(tmp_path / graph, configs))
    for one, two in zip(found["on"], found["off"], strict=True):
        same_files(one.run, two.run)


def trainer_of(config, folder):
    run = RunDirectory.create(folder)
    return train.Trainer(config, run, torch.device("cuda"), lambda text: None)


def test_a_step_is_one_launch_and_the_host_neither_waits_nor_copies(tmp_path, emulated_device):
    trainer = trainer_of(dataclasses.replace(BASE, steps=20, average=0.0), tmp_path / "run")
    for _ in range(3):
        trainer.update(False)
    launches, counts = emulated_device.launches(), emulated_device.counts()
    for _ in range(5):
        trainer.update(False)
    after = emulated_device.launches()
    assert (after.kernels - launches.kernels, after.graphs - launches.graphs) == (0, 5)
    assert emulated_device.counts() == counts
    assert trainer.step == trainer.program.timetable.step.item() == 8


def test_resumed_with_graphs_it_is_the_same_bit_for_bit(tmp_path, monkeypatch):
    whole = train.train(BASE, tmp_path / "whole").run
    update = train.Trainer.update

    def stopping(self, wished):
        if self.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return update(self, wished)

    with monkeypatch.context() as patch:
        patch.setattr(train.Trainer, "update", stopping)
        run = train.train(BASE, tmp_path / "parts").run
    assert run.resumable_steps() == [5]
    train.resume(run.path)
    for step in set(run.steps()) - set(whole.steps()):
        run.weights_path(step).unlink()
    same_files(whole, run)


def test_a_step_that_cannot_be_captured_is_said_and_goes_on(tmp_path, monkeypatch):
    """By default; it is an error if graphs were asked for."""
    update = program.Program._update

    def peeking(self, phase, loss):
        loss.sum().item()
        update(self, phase, loss)

    monkeypatch.setattr(program.Program, "_update", peeking)
    config = dataclasses.replace(BASE, graph="auto")
    with pytest.warns(RuntimeWarning, match="not captured as a CUDA graph.*not permitted"):
        spoiled = train.train(config, tmp_path / "auto").run
    with pytest.raises(RuntimeError, match="graph on: a step cannot be captured.*not permitted"):
        train.train(BASE, tmp_path / "on")
    monkeypatch.undo()
    same_files(spoiled, train.train(config, tmp_path / "eager").run)
