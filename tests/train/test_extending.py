"""Runs that go on behind their end."""

import dataclasses
import json

import pytest
import torch
from helpers.same_runs import losses, same_files
from helpers.small_runs import SMALL, interrupt_at

from bwt import train
from bwt.cli import main
from bwt.records.geometry import Geometry
from bwt.report import reading, report
from bwt.runs.checkpoints import load_state, load_weights
from bwt.runs.files import RunError, read_json, write_json
from bwt.train.extending import extended, in_words
from bwt.train.schedule import Plateau, lr_factor

CONSTANT = dataclasses.replace(SMALL, decay="none", warmup=0.0, average=0.0)


def same_state(a, b):
    (step, one), (other, two) = load_state(a), load_state(b)
    assert step == other and one.keys() == two.keys()
    ours = [name for name in one if name not in ("run/seconds", "step/sums", "run/logged")]
    assert all(torch.equal(one[name], two[name]) for name in ours)


def same_end(a, b):
    assert a.steps()[-1] == b.steps()[-1]
    one, two = load_weights(a), load_weights(b)
    assert all(torch.equal(one[name], two[name]) for name in one)
    same_state(a, b)
    documents = [json.loads((run.path / "evaluation.json").read_text()) for run in (a, b)]
    assert documents[0] == documents[1]


@pytest.mark.parametrize("settings", [{}, dict(optimizer="muon", average=0.25), dict(ema=0.9)])
def test_at_a_constant_rate_it_is_the_longer_run(settings, tmp_path):
    short = dataclasses.replace(CONSTANT, **settings)
    whole = train.train(dataclasses.replace(short, steps=20), tmp_path / "whole").run
    train.train(short, tmp_path / "run")
    said = []
    run = train.resume(tmp_path / "run", extend=8, say=said.append).run
    same_end(whole, run)
    assert "from step 12 to 20: the learning rate stays as it is" in said[0]
    config = read_json(run.path / "config.json")
    assert (config["steps"], config["extended"]) == (20, [12])
    assert losses(run)[-1][0] == 20 and 12 in run.steps()


def test_extended_twice(tmp_path):
    whole = train.train(dataclasses.replace(CONSTANT, steps=15), tmp_path / "whole").run
    train.train(CONSTANT, tmp_path / "run")
    train.resume(tmp_path / "run", extend=1)
    run = train.resume(tmp_path / "run", extend=2).run
    same_end(whole, run)
    assert read_json(run.path / "config.json")["extended"] == [12, 13]


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_a_falling_rate_takes_up_the_longer_schedule(decay, tmp_path):
    config = dataclasses.replace(SMALL, decay=decay)
    run = train.train(config, tmp_path / "run").run
    now = extended(run, config, 12)
    words = in_words(config, now)
    first = lr_factor(12, dataclasses.replace(config, steps=24))
    assert f"to {first:.1%} of its peak" in words and first > lr_factor(11, config)
    result = train.resume(run.path, extend=12)
    assert result.step == 24 and result.evaluation is not None


def test_interrupted_in_the_extension(tmp_path, monkeypatch):
    config = dataclasses.replace(CONSTANT, average=0.5)
    for name in ("whole", "parts"):
        train.train(config, tmp_path / name)
    whole = train.resume(tmp_path / "whole", extend=8).run
    with monkeypatch.context() as patch:
        interrupt_at(14, lambda: (_ for _ in ()).throw(MemoryError), patch)
        with pytest.raises(MemoryError):
            train.resume(tmp_path / "parts", extend=8)
    assert not (tmp_path / "parts/evaluation.json").exists()
    with pytest.raises(RunError, match="at step 12 of 20 and can be extended when it is finished"):
        train.resume(tmp_path / "parts", extend=8)
    same_files(whole, train.resume(tmp_path / "parts").run)


def test_a_mean_of_weights_begins_anew():
    for ends, first in (([], 50), ([20, 40], 50), ([60], 60)):
        config = dataclasses.replace(SMALL, steps=100, average=0.5, extended=ends)
        step = train.build_step(config, torch.device("cpu"))
        averaged = []
        for count in (first - 1, first):
            step.count = count
            averaged.append(step._next_phase().averaged)
        assert averaged == [False, True]


def test_until_the_next_plateau(tmp_path):
    config = dataclasses.replace(SMALL, until="plateau", steps=30, average=0.0)
    run = train.train(config, tmp_path / "run").run
    done = run.steps()[-1]
    with pytest.raises(RunError, match=f"extend its {done} by more than {done // 4}"):
        train.resume(run.path, extend=done // 4)
    said = []
    result = train.resume(run.path, extend=done, say=said.append)
    assert "is held again until the next plateau" in said[0]
    assert done < result.step <= 2 * done
    assert train.resume(run.path).step == result.step  # finished


def test_what_was_seen_in_the_fall_does_not_count():
    plateau = Plateau(100, kl={10: 0.5, 40: 0.4, 50: 0.1}, ending=40)
    plateau.reopen()
    assert plateau.kl == {10: 0.5, 40: 0.4} and plateau.ending is None
    assert plateau.lr_factor(60) == 1.0


@pytest.mark.parametrize("count", [0, -3])
def test_at_least_a_step(count, tmp_path, capsys):
    train.train(SMALL, tmp_path / "run")
    before = (tmp_path / "run/config.json").read_bytes()
    assert main(["train", "--resume", str(tmp_path / "run"), "--extend", str(count)]) == 2
    assert f"at least 1 step, got {count}" in capsys.readouterr().err
    assert (tmp_path / "run/config.json").read_bytes() == before


def test_the_command(tmp_path, capsys):
    assert main(["train", "bijection", "--extend", "3"]) == 2
    assert "--extend goes with --resume" in capsys.readouterr().err
    train.train(SMALL, tmp_path / "run")
    assert main(["train", "--resume", str(tmp_path / "run"), "--extend", "3"]) == 0
    text = capsys.readouterr().out
    assert "extended from step 12 to 15: the learning rate goes up from" in text
    assert "15 steps (extended at 12)" in report([tmp_path / "run"]).read_text()


def test_a_report_does_not_show_the_geometry_of_an_earlier_end(tmp_path):
    run = train.train(SMALL, tmp_path / "run").run
    write_json(run.path / "geometry.json", Geometry(12).to_json())
    assert reading.read(run.path).geometry is not None
    train.resume(run.path, extend=1)
    assert reading.read(run.path).geometry is None


def test_a_damaged_history_is_refused():
    with pytest.raises(ValueError, match="extended must be a list of steps"):
        train.TrainConfig.from_json({**SMALL.to_json(), "extended": "12"})
