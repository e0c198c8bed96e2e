"""A run that comes to nothing says so, stops, and keeps what was good."""

import dataclasses
import json
import math
import os
import signal

import pytest
import torch
from helpers.inline import Inline
from helpers.small_runs import crash, interrupt_at

from bwt import train
from bwt.cli import main
from bwt.cli.commands.train import DIVERGED
from bwt.runs.checkpoints import load_state, load_weights
from bwt.runs.config import TrainConfig
from bwt.runs.directory import RunDirectory
from bwt.runs.files import RunError
from bwt.sweep.cells import make_cell
from bwt.sweep.sweep import Sweep, status_line
from bwt.train import divergence
from bwt.train.divergence import HOPELESS, PATIENCE, DivergenceCheck
from bwt.train.optim import Optimizer
from bwt.train.schedule import log_spaced

CONFIG = TrainConfig(
    task="bijection",
    task_options=dict(num_symbols=4),
    model_options=dict(layers=1, heads=2, width=16),
    steps=40,
    batch_size=4,
    evaluations=4,
    eval_sequences=16,
)
FLAGS = ["--preset", "quick", "--num-symbols", "4", "--eval-sequences", "16", "--batch-size", "4"]


def strict(path):
    """Rows of metrics.jsonl, read by a parser that knows no NaN."""

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def spoil_at(step, monkeypatch, spoil):
    """Call `spoil` with the training step before that update."""
    update = train.TrainStep.update

    def patched(self, batch=None):
        if self.count == step - 1:
            spoil(self)
        update(self, batch)

    monkeypatch.setattr(train.TrainStep, "update", patched)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(divergence, "PATIENCE", 5)


@pytest.fixture
def rarely_looked_at(monkeypatch):
    """As on a GPU: where a line is logged, here every 8 steps, and where there is a checkpoint."""

    make = train.Run.__init__

    def rarely(self, *arguments):
        make(self, *arguments)
        self.logs = self.evaluations | set(range(0, 41, 8))
        self.reads_every_step = False

    monkeypatch.setattr(train.Run, "__init__", rarely)


def make_weights_nan(step):
    with torch.no_grad():
        next(iter(step.master.values())).fill_(math.nan)


def test_the_first_bad_step_is_named_and_the_last_checkpoint_kept(tmp_path, monkeypatch):
    spoil_at(23, monkeypatch, make_weights_nan)
    result = train.train(CONFIG, tmp_path / "run")
    assert result.evaluation is None and result.signal is None
    assert (result.divergence.step, result.step) == (23, 23)
    assert str(result.divergence) == "diverged at step 23: the loss is nan"
    run = RunDirectory.open(tmp_path / "run")
    assert run.last_step() == result.divergence.checkpoint < 23
    assert load_state(run)[0] == run.last_step()
    assert all(x.isfinite().all() for x in load_weights(run).values())
    assert max(row["step"] for row in strict(run.path / "metrics.jsonl")) < 23
    assert not (run.path / "evaluation.json").exists()


def test_on_a_gpu_it_is_noticed_at_the_next_look_and_the_step_is_exact(
    tmp_path, monkeypatch, rarely_looked_at
):
    spoil_at(23, monkeypatch, make_weights_nan)
    result = train.train(CONFIG, tmp_path / "run")
    assert result.divergence.step == 23 < result.step <= 31


def test_a_look_reads_the_losses_since_the_last_one():
    losses = torch.full((6,), math.inf)  # steps to come may hold anything
    check = DivergenceCheck(4, losses)
    for step in (2, 3, 5):
        losses[:step] = 1.0
        assert check.read(step) is None
    losses[2] = math.nan  # seen before
    losses[5] = math.nan
    assert check.read(6).step == 6


def test_what_is_hopeless():
    limit = HOPELESS * math.log2(20) * math.log(2)  # nats, of 20 outcomes
    for outcomes, losses, want in (
        (20, [1.01 * limit] * PATIENCE, PATIENCE),
        (20, [0.99 * limit] * 3 * PATIENCE, None),
        (20, [1e9] * (PATIENCE - 1) + [1.0] + [1e9] * (PATIENCE - 1), None),  # it recovered
        (20, [1.0] * 7 + [1e9] * 2 * PATIENCE, PATIENCE + 7),
        (20, [1.0, math.inf], 2),
        (1, [1e-3] * 3 * PATIENCE, None),  # a guess of one outcome costs nothing
    ):
        for every in (1, 64):
            check, found = DivergenceCheck(outcomes, torch.tensor(losses)), None
            for step in range(1, len(losses) + 1):
                if step % every == 0 or step == len(losses):
                    found = found or check.read(step)
            assert (found.step if found else None) == want


def test_a_hopeless_run_stops_long_before_its_end(tmp_path, capsys, impatient):
    out = str(tmp_path / "run")
    words = ["train", "bijection", *FLAGS, "--lr", "1e6", "--steps", "100000", "--out", out]
    assert main(words) == DIVERGED
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and "diverged at step" in captured.err
    assert "try a lower --lr" in captured.err and "--resume" not in captured.out + captured.err
    rows = strict(tmp_path / "run/metrics.jsonl")
    assert rows[-1]["step"] < 100
    for argv, complaint in (
        (["train", "--resume", out], "to resume it would repeat that"),
        (["report", out], "there is no evaluation to report"),
    ):
        assert main(argv) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and "diverged at step" in error and complaint in error


def test_as_json(tmp_path, monkeypatch, capsys):
    spoil_at(3, monkeypatch, make_weights_nan)
    out = str(tmp_path / "run")
    words = ["train", "bijection", *FLAGS, "--steps", "40", "--out", out, "--json"]
    assert main(words) == DIVERGED
    document = json.loads(capsys.readouterr().out)
    assert document["diverged"]["step"] == 3 and document["diverged"]["checkpoint"] is None


def test_a_page_of_its_last_checkpoint_says_that_it_diverged(tmp_path, monkeypatch, capsys):
    spoil_at(23, monkeypatch, make_weights_nan)
    train.train(CONFIG, tmp_path / "run")
    assert main(["eval", str(tmp_path / "run"), "--sequences", "16"]) == 0
    assert main(["report", str(tmp_path / "run")]) == 0
    assert "This run diverged at step 23" in (tmp_path / "run/report.html").read_text()


def test_going_on_if_asked_to(tmp_path, monkeypatch):
    spoil_at(23, monkeypatch, make_weights_nan)
    config = dataclasses.replace(CONFIG, on_divergence="continue")
    said = []
    result = train.train(config, tmp_path / "run", say=said.append)
    assert result.step == 40 and result.divergence.step == 23 and result.evaluation is None
    assert sum("diverged at step 23: the loss is nan; going on" in x for x in said) == 1
    run = RunDirectory(tmp_path / "run")
    assert run.last_step() < 23
    rows = strict(run.path / "metrics.jsonl")
    assert rows[-1]["step"] == 40 and rows[-1]["loss"] is None is rows[-1]["excess"]
    assert run.divergence["step"] == 23


@pytest.fixture
def always_above(monkeypatch):
    """Every loss counts as far above that of a uniform guess."""
    monkeypatch.setattr(divergence, "HOPELESS", 0)
    monkeypatch.setattr(divergence, "PATIENCE", 20)


@pytest.mark.parametrize("every_step", [True, False], ids=["cpu", "as-on-a-gpu"])
@pytest.mark.parametrize("end", ["interrupt", "crash"])
def test_a_resumed_run_diverges_at_the_step_of_the_uninterrupted(
    end, every_step, always_above, tmp_path, monkeypatch, request
):
    if not every_step:
        request.getfixturevalue("rarely_looked_at")
    assert train.train(CONFIG, tmp_path / "whole").divergence.step == 20
    with monkeypatch.context() as patch:
        if end == "interrupt":
            interrupt_at(13, lambda: os.kill(os.getpid(), signal.SIGTERM), patch)
            assert 13 <= train.train(CONFIG, tmp_path / "parts").step < 16
        else:
            interrupt_at(17, crash, patch)
            with pytest.raises(MemoryError):
                train.train(CONFIG, tmp_path / "parts")
    assert train.resume(tmp_path / "parts").divergence.step == 20


def test_one_that_recovers_is_a_result(tmp_path, monkeypatch):
    """A loss that is not finite once and leaves the weights alone."""
    read = DivergenceCheck.read

    def once(self, step):
        if step == 5:
            self.losses[4] = math.inf
        return read(self, step)

    monkeypatch.setattr(DivergenceCheck, "read", once)
    config = dataclasses.replace(CONFIG, on_divergence="continue")
    result = train.train(config, tmp_path / "run")
    assert result.divergence is None and result.evaluation is not None
    assert not (tmp_path / "run/diverged.json").exists()


def test_weights_that_the_loss_has_not_shown_yet_are_not_saved(tmp_path, monkeypatch):
    """Spoiled by the very update that a checkpoint follows."""
    step = sorted(log_spaced(40, 4, first=10))[1]
    optimizer_step = Optimizer.step

    def patched(self, factor):
        optimizer_step(self, factor)
        self.count = getattr(self, "count", 0) + 1
        if self.count == step:
            with torch.no_grad():
                next(iter(self.weights.values())).fill_(math.inf)

    monkeypatch.setattr(Optimizer, "step", patched)
    result = train.train(CONFIG, tmp_path / "run")
    assert result.divergence.step == step and "finite" in result.divergence.message
    assert result.run.last_step() == 10


def test_an_interrupted_run_with_bad_weights_is_not_saved(tmp_path, monkeypatch, rarely_looked_at):
    def spoil_and_stop(step):
        os.kill(os.getpid(), signal.SIGTERM)
        step.optimizer.state("head.weight")["exp_avg"].fill_(math.nan)

    spoil_at(13, monkeypatch, spoil_and_stop)  # before the last step
    result = train.train(CONFIG, tmp_path / "run")
    assert result.signal is None and result.divergence.message == "the weights are not finite"
    assert result.run.last_step() == 10


def test_a_sweep_counts_it_apart_and_goes_on(tmp_path, impatient):
    options = dict(num_symbols=4, steps=12, eval_sequences=16, batch_size=4, evaluations=2)
    cells = [
        make_cell(tmp_path, "quick", "bijection", "mlp", lr=lr, **options)
        for lr in (1e-3, 1e5, 2e-3)
    ]
    first = Inline()
    sweep = Sweep(tmp_path, cells, first)
    outcomes = sweep.run()
    assert [x.status for x in outcomes] == ["finished", "diverged", "finished"]
    assert outcomes[1].error.startswith("diverged at step")
    assert status_line(sweep) == "2 finished, 1 diverged"
    again = Inline()
    outcomes = Sweep(tmp_path, cells, again).run()
    assert [x.status for x in outcomes] == ["finished", "diverged", "finished"]
    assert again.started == []


def test_a_sweep_with_a_diverged_cell_ends_well(tmp_path, capsys, monkeypatch, impatient):
    monkeypatch.setattr("bwt.cli.commands.sweep.workers", lambda arguments: Inline())
    words = ["sweep", "bijection", "--model", "mlp", *FLAGS, "--steps", "12", "--out"]
    assert main([*words, str(tmp_path), "--lr", "1e5", "0.001"]) == 0
    text = capsys.readouterr().out
    assert "diverged" in text and "failed" not in text


def test_a_damaged_record_of_it_is_one_line(tmp_path, monkeypatch):
    spoil_at(3, monkeypatch, make_weights_nan)
    run = train.train(CONFIG, tmp_path / "run").run
    (run.path / "diverged.json").write_text('{"step": "three"}')
    with pytest.raises(RunError, match="does not say at which step"):
        train.resume(run.path)
