"""Runs that train together: each is the run trained alone."""

import dataclasses
import inspect
import json
import math
import os
import re
import signal

import pytest
import torch
from bwt.kernels import configs
from helpers.prepared_runs import prepared
from helpers.same_runs import losses, same_files
from helpers.tolerances import training_error

from bwt import train
from bwt.cli import main
from bwt.runs.checkpoints import load_weights
from bwt.runs.config import TrainConfig
from bwt.runs.directory import RunDirectory
from bwt.runs.files import RunError, read_json
from bwt.train.stacking import NUMBERS, TILE, why_not_stacked

BASE = TrainConfig(
    task="bijection",
    task_options=dict(num_symbols=4, replacement=True),
    model_options=dict(width=16, layers=1, heads=2, token_shift="input"),
    optimizer="muon",
    steps=6,
    batch_size=8,
    evaluations=2,
    eval_sequences=16,
    device="cpu",
)
HMM = dict(num_states=3, num_symbols=3, length=4)
VARIANTS = {
    "muon": {},
    "adamw-averaged": dict(optimizer="adamw", average=0.5, weight_decay=0.1),
    "features": dict(task="hmm", task_options=HMM, targets="posterior", ema=0.9),
    "rotary-frozen": dict(
        model_options=dict(width=16, layers=2, heads=2, positions="rotary"),
        freeze="routing",
        freeze_at=3,
    ),
    "curriculum": dict(curriculum="replacement=false,true", curriculum_steps=3),
    "fixed-keys": dict(model_options=dict(width=16, layers=1, heads=2, keys="orthogonal")),
    "mlp": dict(model="mlp", model_options=dict(width=16, layers=1)),
    "mamba": dict(model="mamba", model_options=dict(width=8, layers=1, state=4)),
    "plateau": dict(until="plateau", steps=24),
}
# Each run has numbers of its own.
OWN = [
    dict(seed=0),
    dict(seed=7, lr=3e-3, clip=0.05, warmup=0.5, decay="none"),
    dict(seed=0, muon_lr=0.003, beta1=0.5, beta2=0.9, weight_decay=0.3, clip=0.0, decay="cosine"),
]


def settings(**changes):
    return [dataclasses.replace(BASE, **{**changes, **own}) for own in OWN]


def agree(stacked, alone):
    """Up to sums in another order."""
    assert stacked.steps() == alone.steps()
    bound = training_error(torch.float32)
    for (step, one), (other, two) in zip(losses(stacked), losses(alone), strict=True):
        assert step == other and abs(one - two) <= bound * abs(two)
    one, two = load_weights(stacked), load_weights(alone)
    assert one.keys() == two.keys()
    scale = max(x.abs().max().item() for x in two.values())
    for name, x in one.items():
        # Adam divides by the size of the gradient: a weight without one moves as it pleases.
        assert (x - two[name]).norm() <= 8 * bound * scale * math.sqrt(x.numel()), name


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_run_is_the_run_alone(variant, tmp_path):
    found = settings(**VARIANTS[variant])
    results = train.resume_together(prepared(tmp_path / "stack", found))
    ends = set()
    for index, (config, result) in enumerate(zip(found, results, strict=True)):
        alone = train.train(config, tmp_path / f"alone{index}")
        agree(result.run, alone.run)
        assert result.step == alone.step and result.evaluation is not None
        files = {path.name for path in alone.run.path.iterdir()}
        assert {path.name for path in result.run.path.iterdir()} == files
        assert read_json(result.run.path / "environment.json")["stacked"] == 3
        ends.add(tuple(loss for _, loss in losses(result.run)))
    assert len(ends) == 3  # they are different runs


def test_interrupted_and_resumed_it_is_the_same_bit_for_bit(tmp_path, monkeypatch):
    found = settings()
    whole = train.resume_together(prepared(tmp_path / "whole", found))
    outs = prepared(tmp_path / "parts", found)
    update = train.Trainer.update

    def stopping(self, wished):
        if self.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return update(self, wished)

    with monkeypatch.context() as patch:
        patch.setattr(train.Trainer, "update", stopping)
        stopped = train.resume_together(outs)
    assert {(x.signal, x.step) for x in stopped} == {(signal.SIGTERM, 5)}
    for one, two in zip(whole, train.resume_together(outs), strict=True):
        two.run.weights_path(5).unlink()
        same_files(one.run, two.run)


def test_a_run_of_a_stack_can_go_on_alone(tmp_path, monkeypatch):
    outs = prepared(tmp_path / "stack", settings())
    update = train.Trainer.update
    with monkeypatch.context() as patch:
        patch.setattr(train.Trainer, "update", lambda self, x: update(self, x) or self.step == 4)
        train.resume_together(outs)
    result = train.resume(outs[1])
    agree_from_four = train.train(settings()[1], tmp_path / "alone")
    bound = training_error(torch.float32)
    one, two = losses(result.run)[-1], losses(agree_from_four.run)[-1]
    assert one[0] == two[0] == 6 and abs(one[1] - two[1]) <= bound * two[1]


def test_one_that_diverges_does_not_harm_the_others(tmp_path):
    found = settings(optimizer="adamw", steps=12)
    found[1] = dataclasses.replace(found[1], lr=1e30, clip=0.0)
    results = train.resume_together(prepared(tmp_path / "stack", found))
    assert [x.divergence is None for x in results] == [True, False, True]
    assert (results[1].run.path / "diverged.json").exists() and results[1].evaluation is None
    for index in (0, 2):
        agree(results[index].run, train.train(found[index], tmp_path / f"alone{index}").run)


def test_numbers_that_differ_are_fields():
    assert {x.name for x in dataclasses.fields(TrainConfig)} >= NUMBERS


@pytest.mark.parametrize(
    "change,complaint",
    [
        (dict(batch_size=16), "its batch_size is 16, not 8"),
        (dict(model="lstm", model_options={}), "torch's LSTM has one set of weights"),
        (dict(key_penalty=0.1), "key_penalty looks into the model"),
        (dict(steps=7), "its steps is 7, not 6"),
    ],
)
def test_what_cannot_be_stacked_is_said_in_one_line(change, complaint, tmp_path, capsys):
    found = settings()
    found[1] = dataclasses.replace(found[1], **change)
    outs = [str(x) for x in prepared(tmp_path, found)]
    assert main(["train", "--resume", *outs]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and complaint in error and "run1" in error


def test_runs_at_different_steps_and_one_named_twice_are_refused(tmp_path):
    outs = prepared(tmp_path, settings())
    with pytest.raises(RunError, match="named twice"):
        train.resume_together([outs[0], outs[0]])
    train.resume(outs[0])
    with pytest.raises(RunError, match="must be at one step, and are at: run0 6, run1 0"):
        train.resume_together(outs)


def test_no_tile_of_a_kernel_holds_two_runs():
    """A NaN may spread within a tile, and a tile has whole heads."""
    packs = set(re.findall(r"PACK=(\d+)", inspect.getsource(configs)))
    assert packs and all(TILE % int(pack) == 0 for pack in packs)
    odd = dataclasses.replace(BASE, batch_size=6, device="auto")
    assert "share tiles" in why_not_stacked(odd)
    assert why_not_stacked(dataclasses.replace(odd, device="cpu")) is None


SWEEP = ["sweep", "bijection", "--preset", "quick", "--num-symbols", "4", "--steps", "6"]
SWEEP += ["--batch-size", "8", "--evaluations", "2", "--eval-sequences", "16", "--width", "16"]


@pytest.mark.slow
def test_a_sweep_stacks_what_is_alike(tmp_path, capsys):
    words = [*SWEEP, "--seed", "0", "1", "2", "--lr", "0.001", "1e30", "--layers", "1", "2"]
    words += ["--optimizer", "adamw", "--clip", "0", "--out", str(tmp_path), "--stack", "4"]
    assert main([*words, "--jobs", "1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 12
    assert {x["status"] for x in rows if "lr=0.001" in x["name"]} == {"finished"}
    assert {x["status"] for x in rows if "lr=1e+30" in x["name"]} == {"diverged"}
    # Two depths, and of each six cells in two stacks of three.
    logs = list((tmp_path / "logs").glob("*.log"))
    assert len(logs) == 4 and all(x.name.endswith("-and-2-more.log") for x in logs)
    # Trained alone they are the same.
    cell = next(x for x in rows if "lr=0.001" in x["name"])
    assert main([*cell["command"].split()[1:], "--out", str(tmp_path / "alone")]) == 0
    agree(RunDirectory(cell["run"]), RunDirectory(tmp_path / "alone"))


def test_a_bad_size_of_stacks_is_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([*SWEEP, "--out", str(tmp_path), "--stack", "none"])
    assert "'none' is neither auto nor a number of cells" in capsys.readouterr().err
