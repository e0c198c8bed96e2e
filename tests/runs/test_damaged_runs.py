"""Whatever has happened to the files of a run: one clear line and exit code 2, or the answer."""

import contextlib
import errno
import json
import os
import resource
import shutil
import signal

import pytest
import torch
from helpers.damaged_runs import COMMANDS, CONFIG, DAMAGES, FILES, LAST

from bwt import train
from bwt.cli import main
from bwt.records.metrics import MetricsRow
from bwt.runs.checkpoints import read_tensors, write_tensors
from bwt.runs.directory import RunDirectory
from bwt.runs.files import RunError, write_atomically


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    train.train(CONFIG, path)
    for command in ("geometry", "ablate"):
        assert main([command, str(path), "--sequences", "16", "--device", "cpu", "--json"]) == 0
    return path


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def answer(name, run, capsys):
    """What a command says on stderr: nothing if all went well, else one line."""
    capsys.readouterr()
    code = main(COMMANDS[name](str(run)))
    error = capsys.readouterr().err
    assert (code, error.count("\n")) in ((0, 0), (2, 1)), error
    assert len(error) < 1000
    return error


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_file_is_answered_in_one_line(file, damage, run, tmp_path, capsys):
    DAMAGES[damage](run / file)
    for number, name in enumerate(COMMANDS):
        answer(name, shutil.copytree(run, tmp_path / str(number)), capsys)


def test_all_is_well_with_an_undamaged_run(run, capsys):
    assert [answer(name, run, capsys) for name in COMMANDS] == [""] * len(COMMANDS)


def test_any_flipped_bit_of_a_checkpoint_is_noticed(run):
    path = run / f"{LAST}.safetensors"
    whole, before = path.read_bytes(), read_tensors(path)
    header = 8 + int.from_bytes(whole[:8], "little")
    # Every byte of the header, and some of the numbers.
    for place in [*range(header), *range(header, len(whole), 97)]:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        # Of the header only what says nothing about the tensors may be left unnoticed.
        try:
            after = read_tensors(path)
        except RunError as error:
            assert "is corrupt or truncated" in str(error) and "\n" not in str(error)
        else:
            assert place < header and after.keys() == before.keys()
            assert all(torch.equal(after[name], before[name]) for name in before)


WRONG = {
    "layers as text": (("model_options", "layers"), "2", "layers must be int, got '2'"),
    "layers as truth": (("model_options", "layers"), True, "layers must be int, got True"),
    "too many layers": (("model_options", "layers"), 10**9, "layers must be at most 1024"),
    "steps as text": (("steps",), "4", "steps must be int"),
    "evaluations": (("evaluations",), 10**9, "evaluations must be at most 100000"),
    "batch size": (("batch_size",), 10**12, "batch_size must be at most"),
    "learning rate": (("lr",), "fast", "lr must be float"),
    "no learning rate": (("lr",), None, "lr must be float"),
    "seed": (("seed",), 10**40, "seed must be at most"),
    "task": (("task",), ["hmm"], "task must be a name"),
    "unknown task": (("task",), "chess", "no task 'chess'"),
    "model": (("model",), 5, "model must be a name"),
    "task options": (("task_options",), [1], "task_options must be names and values"),
    "model options": (("model_options",), "width", "model_options must be names and values"),
    "symbols": (("task_options", "num_symbols"), 1.5, "num_symbols must be int"),
    "pairs": (("task_options", "num_pairs"), 10**9, "num_pairs must be at most"),
    "device": (("device",), 1, "device must be str"),
    "unknown setting": (("speed",), 1, "configuration: no option 'speed'"),
    "precision": (("precision",), {}, "precision must be str"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_value_in_the_config_is_named(fault, run, capsys):
    keys, value, complaint = WRONG[fault]
    config = json.loads((run / "config.json").read_text())
    place = config
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    (run / "config.json").write_text(json.dumps(config))
    for name in ("eval", "resume", "geometry"):
        assert complaint in answer(name, run, capsys)
    answer("report", run, capsys)


@pytest.mark.parametrize(
    "words,complaint",
    [
        (["--layers", "1000000000"], "layers must be at most"),
        (["--evaluations", "1000000000"], "evaluations must be at most"),
        (["--width", "131072", "--layers", "1024"], "does not fit into the"),
        (["--num-symbols", "2", "--num-pairs", "1000000000"], "num_pairs must be at most"),
    ],
)
def test_absurd_sizes_are_refused_before_anything_is_made(words, complaint, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["train", "bijection", "--preset", "quick", *words, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and complaint in error


def test_a_bad_line_of_metrics_costs_no_other_line(run, capsys):
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines()
    garbled = [lines[0], '{"step": 1, "lo', "[1]", '{"step": "one"}', "\x80\udcff", *lines[1:]]
    path.write_text("\n".join(garbled) + "\n", errors="surrogateescape")
    assert len(RunDirectory(run).read_metrics()) == len(lines)
    assert main(["train", "--resume", str(run)]) == 0
    assert "4 line(s) of metrics.jsonl could not be read" in capsys.readouterr().out
    assert path.read_text().splitlines() == lines


def test_bare_nan_of_before_is_read_as_null(run):
    path = run / "metrics.jsonl"
    with open(path, "a") as file:
        file.write('{"step": 4, "loss": NaN, "excess": -Infinity}\n')
    assert RunDirectory(run).read_metrics()[-1] == MetricsRow(4, loss=None, excess=None)


@contextlib.contextmanager
def full_disk(limit):
    """No file may grow beyond the limit, as if the disk were full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_is_one_line_and_leaves_the_run_as_it_was(name, run, capsys):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with full_disk(50):
        code = main(COMMANDS[name](str(run)))
    error = capsys.readouterr().err
    assert code == 2 and error.count("\n") == 1
    assert "cannot be written" in error and os.strerror(errno.EFBIG) in error
    after = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert after == before


@pytest.mark.parametrize("limit", [50, 2000, 5000])
def test_a_training_on_a_full_disk_stops_with_one_line(limit, tmp_path, capsys):
    words = ["train", "bijection", "--preset", "quick", "--out", str(tmp_path / "run"), "--json"]
    with full_disk(limit):
        code = main([*words, "--steps", "4", "--eval-sequences", "16", "--num-symbols", "4"])
    error = capsys.readouterr().err
    assert code == 2 and error.count("\n") == 1 and "cannot be written" in error


def test_temporary_files_of_the_dead_are_removed_and_those_of_the_living_are_not(run):
    left = [
        run / ".metrics.jsonl.ab12cd_9",
        run / "checkpoints/.step_00000004.safetensors.abcd1234",
    ]
    kept = [run / ".bashrc", run / ".notes.settings", run / "checkpoints/x.json.abcd1234"]
    for path in (*left, *kept):
        path.write_text("")

    def write(temporary):
        kept.append(temporary)
        RunDirectory.open(run)
        assert temporary.exists()
        temporary.write_text("{}")

    write_atomically(run / "geometry.json", write)
    kept[-1] = run / "geometry.json"
    assert not any(path.exists() for path in left) and all(path.exists() for path in kept)


def test_a_state_of_another_run_is_refused(run, capsys):
    write_tensors(run / f"{LAST}.state.safetensors", {"x/y": torch.zeros(2)}, {})
    assert "is not the state of this run" in answer("resume", run, capsys)
