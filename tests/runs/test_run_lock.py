"""One process trains a run at a time."""

import os
import signal
import subprocess
import sys

import pytest
from helpers import ROOT

from bwt.cli import main
from bwt.runs.directory import RunDirectory
from bwt.runs.files import RunError

TRAIN = ["train", "bijection", "--preset", "quick", "--device", "cpu", "--num-symbols", "4"]
TRAIN += ["--threads", "1", "--batch-size", "4", "--eval-sequences", "16"]


@pytest.fixture
def training(tmp_path):
    """A process in the middle of a long run."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "bwt", *TRAIN, "--steps", "1000000", "--out", "run"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert any(line.startswith("step") for line in process.stdout)
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_second_process_is_refused_in_one_line_until_the_first_is_killed(
    training, tmp_path, capsys
):
    run = tmp_path / "run"
    assert main(["train", "--resume", str(run)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"is being trained by process {training.pid} on" in error
    # To read it is allowed.
    assert main(["eval", str(run), "--sequences", "16", "--device", "cpu", "--json"]) == 0
    training.send_signal(signal.SIGKILL)
    training.wait()
    with RunDirectory.open(run).locked():
        pass


def test_the_lock_is_free_after_the_end(tmp_path, capsys):
    out = str(tmp_path / "run")
    assert main([*TRAIN, "--steps", "4", "--out", out, "--json"]) == 0
    run = RunDirectory.open(out)
    with run.locked():
        with pytest.raises(RunError, match="is being trained by process"), run.locked():
            pass
        assert main(["train", "--resume", out]) == 2
    assert (run.path / ".lock").read_text() == ""
    assert main(["train", "--resume", out, "--json"]) == 0


def test_a_directory_that_two_begin_at_once_goes_to_one(tmp_path, monkeypatch):
    monkeypatch.setattr("pathlib.Path.iterdir", lambda path: iter(()))
    RunDirectory.create(tmp_path / "run")
    with pytest.raises(RunError, match="was begun by another process"):
        RunDirectory.create(tmp_path / "run")
