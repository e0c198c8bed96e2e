"""The settings of torch inside a run and after it."""

import dataclasses
import json

import pytest
import torch
from helpers.same_runs import same_files
from helpers.small_runs import SMALL, crash, interrupt_at

from bwt import train
from bwt.cli import main
from bwt.runs.files import RunError
from bwt.runs.presets import resolve
from bwt.train import settings as train_settings


def settings():
    return torch.get_num_threads(), torch.get_float32_matmul_precision()


@pytest.fixture
def caller():
    """The settings of a caller, which differ from those of every run here."""
    before = settings()
    torch.set_num_threads(3)
    torch.set_float32_matmul_precision("medium")
    yield settings()
    torch.set_num_threads(before[0])
    torch.set_float32_matmul_precision(before[1])


TWO_THREADS = dataclasses.replace(SMALL, threads=2, precision="tf32")
CALLS = {
    "train": lambda out, say: train.train(TWO_THREADS, out, say=say),
    "resume": lambda out, say: train.resume(out, extend=2, say=say),
}


def used_by(call, out):
    used = set()
    call(out, lambda text: used.add(settings()))
    return used


def test_training_restores_the_settings_of_the_caller(caller, tmp_path):
    for name, call in CALLS.items():  # of one run
        assert used_by(call, tmp_path / "run") == {(2, "high")}, name
        assert settings() == caller, name


def test_a_refused_run_restores_the_settings_of_the_caller(caller, tmp_path):
    train.train(SMALL, tmp_path / "run")
    with pytest.raises(RunError, match="exists already"):
        train.train(TWO_THREADS, tmp_path / "run")
    assert settings() == caller


def threads_of(out):
    return json.loads((out / "environment.json").read_text())["threads"]


@pytest.mark.parametrize("task", ["bijection", "hmm", "recall"])
@pytest.mark.parametrize(("preset", "want"), [("quick", 1), ("paper", 8)])
def test_quick_presets_take_one_thread_and_the_size_of_the_paper_all(
    preset, want, task, caller, monkeypatch
):
    monkeypatch.setattr(train_settings, "cpu_limit", lambda: 64)
    torch.set_num_threads(8)
    config = resolve(task, "transformer", preset)
    step = train.build_step(config, torch.device("cpu"))
    assert train_settings.set_threads(0, step.flops()) == want == torch.get_num_threads()


def test_no_more_threads_than_the_caller_or_the_quota_allow(caller, monkeypatch):
    for current, limit, want in ((3, 64, 3), (3, 2, 2), (3, 1, 1)):
        monkeypatch.setattr(train_settings, "cpu_limit", lambda limit=limit: limit)
        torch.set_num_threads(current)
        assert train_settings.set_threads(0, 1e12) == want


def test_a_run_takes_the_threads_that_its_steps_have_work_for(caller, tmp_path):
    used = set()
    train.train(SMALL, tmp_path / "run", say=lambda text: used.add(settings()))
    assert used == {(1, "highest")}
    assert threads_of(tmp_path / "run") == {"0": 1}


def test_a_resumed_run_may_have_other_threads_and_records_them(tmp_path, capsys):
    out = tmp_path / "run"
    train.train(dataclasses.replace(SMALL, threads=1), out)
    words = ["train", "--resume", str(out), "--extend", "2"]
    assert main([*words, "--threads", "1"]) == 0 and threads_of(out) == {"0": 1}
    assert "bit for bit" not in capsys.readouterr().out
    assert main([*words, "--threads", "2"]) == 0 and threads_of(out) == {"0": 1, "14": 2}
    assert "CPU threads: 2 from here on, 1 before" in capsys.readouterr().out
    assert main([*words, "--threads", "2", "--lr", "1"]) == 2
    assert "everything but --threads from the run; leave out --lr" in capsys.readouterr().err


def test_a_resume_with_the_same_two_threads_is_bit_exact(tmp_path, monkeypatch):
    config = dataclasses.replace(SMALL, threads=2)
    whole = train.train(config, tmp_path / "whole").run
    with monkeypatch.context() as patch:
        interrupt_at(11, crash, patch)
        with pytest.raises(MemoryError):
            train.train(config, tmp_path / "parts")
    same_files(whole, train.resume(tmp_path / "parts", threads=2).run)
