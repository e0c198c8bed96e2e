"""A full disk: one line that says what, where and what to do, and exit code 4; then it goes on."""

import errno
import os
import shutil
import subprocess
import sys

import pytest
from helpers import ROOT
from helpers.damaged_runs import CONFIG
from helpers.same_runs import same_files

from bwt import train
from bwt.cli import FULL, main
from bwt.records.results import Results
from bwt.reproduce import page
from bwt.runs import directory, files
from bwt.runs.files import FullDisk, is_full
from bwt.sweep import processes

NO_ROOM = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    train.train(CONFIG, path)
    return path


@pytest.fixture
def no_room_for(monkeypatch):
    """A function: from now on no file fits whose name ends so."""

    def fill(end):
        replace = os.replace

        def refuse(source, target):
            if str(target).endswith(end):
                raise NO_ROOM
            replace(source, target)

        monkeypatch.setattr(files.os, "replace", refuse)

    return fill


def complaint(code, capsys):
    error = capsys.readouterr().err
    assert code == FULL and error.count("\n") == 1, error
    assert "cannot be written: the disk is full; make room, then " in error
    return error


COMMANDS = {
    "evaluation.json": ["eval", "--sequences", "16"],
    "geometry.json": ["geometry", "--sequences", "16", "--device", "cpu"],
    "report.html": ["report"],
    ".svg": ["report"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_which_file_and_leaves_none(name, finished, tmp_path, no_room_for, capsys):
    run = shutil.copytree(finished, tmp_path / "run")
    before = {path: path.read_bytes() for path in run.rglob("*.json")}
    no_room_for(name)
    command, *words = COMMANDS[name]
    error = complaint(main([command, str(run), *words]), capsys)
    assert name in error and error.endswith("repeat the command\n")
    assert {path: path.read_bytes() for path in run.rglob("*.json")} == before
    assert not [path for path in run.rglob(".*") if files.TEMPORARY.fullmatch(path.name)]


STARTING = ["environment.json", "config.json"]
TRAINING = ["00000010.safetensors", "00000010.state.safetensors", "evaluation.json"]


def words(out):
    return [
        *["train", "bijection", "--preset", "quick", "--num-symbols", "4", "--steps", "12"],
        *["--batch-size", "4", "--evaluations", "3", "--eval-sequences", "16", "--out", str(out)],
    ]


@pytest.mark.parametrize("name", STARTING)
def test_a_start_leaves_nothing_behind(name, tmp_path, no_room_for, capsys):
    no_room_for(name)
    error = complaint(main(words(tmp_path / "run")), capsys)
    assert name in error and error.endswith("repeat the command\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", TRAINING)
def test_a_training_says_how_to_go_on_and_goes_on(name, tmp_path, no_room_for, capsys, monkeypatch):
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert main(words(whole)) == 0
    with monkeypatch.context():
        no_room_for(name)
        error = complaint(main(words(run)), capsys)
    assert name in error and error.endswith(f"go on with bwt train --resume {run}\n")
    monkeypatch.undo()
    assert main(["train", "--resume", str(run)]) == 0
    same_files(directory.RunDirectory(whole), directory.RunDirectory(run))


def test_no_room_for_a_line_of_metrics(tmp_path, capsys, monkeypatch):
    """Where the system itself says so."""

    def opened(path, mode):
        return open("/dev/full" if path.name == "metrics.jsonl" else path, mode)

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(directory, "open", opened, raising=False)
        error = complaint(main(words(run)), capsys)
    assert "metrics.jsonl" in error and f"--resume {run}" in error
    assert main(["train", "--resume", str(run)]) == 0


def test_no_room_for_the_page_after_a_training(tmp_path, no_room_for, capsys):
    run = tmp_path / "run"
    no_room_for("report.html")
    error = complaint(main([*words(run), "--report"]), capsys)
    assert error.endswith(f"then bwt geometry {run} and bwt report {run}\n")
    assert (run / "evaluation.json").exists()


def test_no_room_for_results(tmp_path, no_room_for):
    no_room_for("results.json")
    with pytest.raises(FullDisk, match="results.json cannot be written: the disk is full"):
        page.write(tmp_path, Results("laptop", "", None, "", 1, [], 0.1, [], {}, []))


@pytest.fixture
def grid(tmp_path):
    words = ["sweep", "bijection", "--out", str(tmp_path / "sweep"), "--preset", "quick"]
    return [*words, "--seed", "0", "--steps", "4", "--num-symbols", "4", "--jobs", "1"]


def test_no_room_for_what_a_sweep_keeps(grid, no_room_for, capsys):
    no_room_for("sweep.json")
    assert "sweep.json" in complaint(main(grid), capsys)


def test_no_room_for_the_log_of_a_cell(grid, capsys, monkeypatch):
    def refuse(path, mode):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(processes, "open", refuse, raising=False)
    assert ".log cannot be written" in complaint(main(grid), capsys)


def test_every_word_of_no_room_is_understood():
    from safetensors import SafetensorError

    text = "Error while serializing: I/O error: No space left on device (os error 28)"
    assert is_full(SafetensorError(text)) and not is_full(SafetensorError("invalid header"))
    assert is_full(OSError(errno.EDQUOT, "quota")) and not is_full(OSError(errno.EACCES, "no"))


@pytest.mark.parametrize("also_errors", [False, True])
def test_no_room_for_what_is_printed(also_errors):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "bwt", "env"],
            stdout=full,
            stderr=full if also_errors else subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    assert done.returncode == FULL
    if not also_errors:
        assert done.stderr.startswith("bwt: what is printed") and done.stderr.count("\n") == 1


def test_no_room_for_what_a_training_prints(tmp_path):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "bwt", *words("run")],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    assert done.returncode == FULL and done.stderr.count("\n") == 1
    assert done.stderr.startswith("bwt: what is printed cannot be written")
    assert not (tmp_path / "run").exists()  # it had not begun


SCRIPT = """
set -u
mount -t tmpfs -o size=160k none "$1"
"$2" -P -m bwt $3 --out "$1/run"; echo "code $?"
mount -o remount,size=10m "$1"
"$2" -P -m bwt train --resume "$1/run"; echo "code $?"
"""


@pytest.mark.slow
def test_on_a_disk_that_is_really_full(tmp_path):
    space = ["unshare", "--map-root-user", "--mount"]
    mount = ["sh", "-c", 'mount -t tmpfs none "$1"', "sh", tmp_path]
    if not shutil.which("unshare") or subprocess.run([*space, *mount]).returncode:
        pytest.skip("a disk can be mounted here by nobody")
    command = " ".join([*words("x")[:-2], "--width", "32", "--heads", "2", "--layers", "1"])
    done = subprocess.run(
        [*space, "sh", "-c", SCRIPT, "sh", tmp_path, sys.executable, command],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert [line for line in done.stdout.splitlines() if line.startswith("code")] == [
        f"code {FULL}",
        "code 0",
    ]
    (error,) = done.stderr.splitlines()
    assert error.endswith(f"go on with bwt train --resume {tmp_path}/run")
