"""The settings of torch inside a run and after it."""

import dataclasses

import pytest
import torch
from helpers.small_runs import SMALL

from bwt import train
from bwt.runs.files import RunError


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
    "resume_together": lambda out, say: train.resume_together([out], extend=2, say=say),
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
