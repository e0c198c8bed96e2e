"""The `bwt` command, as a user meets it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from helpers import ROOT

from bwt import models, tasks
from bwt.cli import COMMANDS, main


def test_env_lists_backends_and_why_one_is_not_usable(capsys):
    assert main(["env"]) == 0
    text = capsys.readouterr().out
    assert "automatic for cpu tensors" in text and "torch" in text


def test_env_as_json(capsys):
    assert main(["env", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    backends = report["ops"]["bijection_posterior"]
    assert backends["native"]["usable"] and backends["native"]["automatic_for"] == "cpu"
    assert backends["cuda"]["usable"] or backends["cuda"]["reason"]


@pytest.mark.parametrize(
    "argv,complaint",
    [
        ([], "COMMAND"),
        (["nonsense"], "nonsense"),
        (["env", "--nonsense"], "--nonsense"),
        (["train", "chess"], "'chess' (choose from"),
        (["train", "bijection", "--nonsense"], "--nonsense"),
        (["train", "bijection", "--length", "5"], "--length"),  # an option of another task
        (["train", "hmm", "--model", "gru"], "'gru' (choose from"),
        (["train", "hmm", "--steps", "many"], "invalid int value: 'many'"),
        (["eval"], "RUN"),
    ],
)
def test_bad_command_line_is_one_line_and_two(argv, complaint, capsys):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "error:" in error and complaint in error


@pytest.mark.parametrize(
    "argv,complaint",
    [
        (["train"], "name a TASK or --resume DIR"),
        (["train", "bijection", "--num-symbols", "1"], "num_symbols must be at least 2"),
        (["train", "bijection", "--steps", "0"], "steps must be at least 1"),
        (["train", "bijection", "--width", "64", "--heads", "3"], "is not a multiple of heads 3"),
        (["train", "--resume", "nowhere"], "nowhere is not a run directory"),
        (["train", "hmm", "--resume", "nowhere", "--lr", "1"], "leave out hmm, --lr"),
        (["train", "hmm", "--device", "cuda"], "no CUDA device"),
        (["eval", "nowhere"], "nowhere is not a run directory"),
        (["eval", "nowhere", "--sequences", "0"], "--sequences must be at least 1"),
    ],
)
def test_bad_value_is_one_line_and_two(argv, complaint, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # As on a machine without a GPU; and no training starts, were a value not refused.
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("bwt.train.loop.loop", lambda *_: pytest.fail("a training has begun"))
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and complaint in captured.err
    assert captured.out == "" and list(tmp_path.iterdir()) == []


SHORT = [
    "--preset",
    "quick",
    "--steps",
    "6",
    "--evaluations",
    "2",
    "--eval-sequences",
    "32",
    "--batch-size",
    "4",
]


def test_train_then_eval(capsys, tmp_path):
    run = str(tmp_path / "run")
    assert main(["train", "bijection", "--num-symbols", "5", "--out", run, *SHORT]) == 0
    text = capsys.readouterr().out
    assert text.startswith("preset quick: 6 steps of 4 sequences\n")
    assert "5! = 2^6.9" in text and "its weights hold" in text and f"run: {run}" in text
    assert "The model is not trained: " in text and "Try more --steps, another --lr" in text
    assert "token-shift" not in text  # which the preset has
    assert main(["eval", run, "--sequences", "64", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["num_sequences"] == 64
    assert main(["train", "bijection", "--out", run, *SHORT]) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize("task,model", [("bijection", "transformer"), ("hmm", "lstm")])
def test_train_ends_with_a_report_to_open(task, model, capsys, tmp_path):
    run = tmp_path / "run"
    words = ["train", task, "--model", model, "--width", "16", "--layers", "1", "--report"]
    assert main([*words, "--out", str(run), *SHORT]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"open {run}/report.html in a browser"
    page = (run / "report.html").read_text()
    assert "Belief accumulates" in page and "bwt geometry" not in page  # it has been made
    (run / "report.html").unlink()
    made = (run / "geometry.json").stat().st_mtime_ns
    assert main(["train", "--resume", str(run), "--report", "--json"]) == 0
    assert (run / "geometry.json").stat().st_mtime_ns == made  # it may have taken long
    assert json.loads(capsys.readouterr().out)["report"] == f"{run}/report.html"
    assert (run / "report.html").exists()


def test_train_as_json_and_eval_at_other_lengths(capsys, tmp_path):
    run = str(tmp_path / "run")
    flags = ["--length", "4", "--width", "16", "--heads", "2", "--layers", "1", "--json"]
    assert main(["train", "hmm", "--out", run, *flags, *SHORT]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["run"] == run and document["step"] == 6
    assert main(["eval", run, "--length", "3", "7", "--sequences", "16", "--json"]) == 0
    lengths = json.loads(capsys.readouterr().out)
    assert [x["length"] for x in lengths] == [3, 7]
    stored = json.loads((tmp_path / "run/evaluation.json").read_text())
    assert set(stored["lengths"]) == {"3", "7"}
    assert document["evaluation"].items() <= stored.items()


@pytest.mark.parametrize("table", [0, 7])
def test_learned_positions_are_read_beyond_training_if_the_table_has_them(table, capsys, tmp_path):
    run = str(tmp_path / "run")
    flags = ["--length", "4", "--width", "16", "--layers", "1", "--positions", "learned"]
    flags += ["--position-table", str(table), *SHORT]
    assert main(["train", "hmm", "--out", run, *flags]) == 0
    capsys.readouterr()
    code = main(["eval", run, "--length", "7", "--sequences", "16"])
    captured = capsys.readouterr()
    if table:
        assert code == 0 and "length 7" in captured.out
        assert "not trained" not in captured.out  # of a length that was not trained on
    else:
        assert code == 2 and "longer position_table" in captured.err


@pytest.mark.parametrize("model", models.MODELS)
@pytest.mark.parametrize("task", tasks.TASKS)
def test_help_has_every_option_of_task_and_model(task, model, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["train", task, "--model", model, "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for name in (*tasks.TASKS[task]().options(), "width", "targets", "ema"):
        assert f"--{name.replace('_', '-')}" in text


def test_ctrl_c_saves_and_says_how_to_resume(tmp_path):
    command = [sys.executable, "-P", "-m", "bwt", "train", "bijection", "--out", "run"]
    command += ["--preset", "quick", "--device", "cpu"]
    process = subprocess.Popen(
        [*command, "--num-symbols", "4", "--steps", "1000000", "--threads", "1"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for line in process.stdout:
            if line.startswith("step"):
                break
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130 and "Traceback" not in err
    assert "continue with\n  bwt train --resume run" in out
    assert list((tmp_path / "run/checkpoints").glob("*.state.safetensors"))


@pytest.mark.parametrize(
    "argv", [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)]
)
def test_help(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 0
    assert "bwt" in capsys.readouterr().out
