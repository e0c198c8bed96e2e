"""`bwt sweep`: cells in processes of their own; what is done, continued, refused and reported."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from helpers import ROOT
from helpers.inline import Inline

from bwt import train
from bwt.cli import main
from bwt.runs.checkpoints import load_weights
from bwt.runs.directory import RunDirectory
from bwt.runs.files import RunError, read_json
from bwt.sweep.cells import Command, grid, make_cell
from bwt.sweep.processes import Processes
from bwt.sweep.sweep import Outcome, Sweep, status_line, table

TINY = {"num_symbols": 4, "steps": 4, "evaluations": 2, "eval_sequences": 16, "batch_size": 4}


def cells(folder, seeds=(0, 1), **fields):
    options = {**TINY, **fields}
    return [make_cell(folder, "quick", "bijection", "mlp", seed=s, **options) for s in seeds]


def test_grid_is_the_product():
    points = list(grid({"a": [1, 2], "b": ["x", "y", "z"]}))
    assert len(points) == 6 and points[1] == {"a": 1, "b": "y"}


@pytest.mark.parametrize("task,repeats", [({}, True), ({"replacement": False}, False)])
def test_a_cell_is_what_its_command_trains(task, repeats, tmp_path, capsys):
    """The preset draws keys with replacement; a cell can ask for the other task."""
    (cell,) = cells(tmp_path, seeds=(3,), lr=0.002, **task)
    assert main(["train", *cell.words, "--out", str(tmp_path / "by-hand")]) == 0
    assert read_json(tmp_path / "by-hand/config.json") == cell.config.to_json()
    assert cell.config.seed == 3 and cell.config.task_options["replacement"] is repeats


def test_finished_cells_are_not_redone(tmp_path):
    first = Inline()
    left = tmp_path / ".sweep.json.abcd1234"  # by a sweep that was killed
    left.write_text("")
    assert {x.status for x in Sweep(tmp_path, cells(tmp_path), first).run()} == {"finished"}
    assert not left.exists()
    again = Inline()
    outcomes = Sweep(tmp_path, cells(tmp_path, seeds=(0, 1, 2)), again).run()
    assert len(first.started) == 2 and [x.status for x in outcomes] == ["finished"] * 3
    assert again.started == [outcomes[2].cell.name]


def test_a_failed_cell_is_reported_and_the_rest_goes_on(tmp_path):
    all_cells = cells(tmp_path, seeds=(0, 1, 2))
    said = []
    outcomes = Sweep(tmp_path, all_cells, Inline(dies=[all_cells[1].name]), say=said.append).run()
    assert [x.status for x in outcomes] == ["finished", "failed", "finished"]
    assert outcomes[1].error == "ended with exit code 9"
    assert any(line.startswith("failed") and all_cells[1].name in line for line in said)
    recorded = read_json(tmp_path / "sweep.json")["cells"]
    assert [x["status"] for x in recorded] == ["finished", "failed", "finished"]
    outcomes = Sweep(tmp_path, all_cells, Inline()).run()  # and is tried again the next time
    assert [x.status for x in outcomes] == ["finished"] * 3


def test_a_cell_that_leaves_no_result_has_failed(tmp_path):
    class Lazy(Inline):
        def start(self, number, cell, log, lock):
            self.running[number] = 0

    (outcome,) = Sweep(tmp_path, cells(tmp_path, seeds=(0,)), Lazy()).run()
    assert (outcome.status, outcome.error) == ("failed", "ended well and left no result")


def test_a_cell_cut_short_goes_on_from_its_checkpoint(tmp_path):
    (cell,) = cells(tmp_path, seeds=(0,), steps=30, evaluations=3)
    config = cell.config
    alone = load_weights(train.train(config, tmp_path / "alone").run)
    run = train.train(config, cell.path).run
    # As if it had died after its second checkpoint, in the middle of a line.
    half = train.Run(run, config, train.build_step(config, torch.device("cpu")))
    for _ in range(17):
        half.step.update()
    half.save()
    (cell.path / "evaluation.json").unlink()
    with open(cell.path / "metrics.jsonl", "a") as file:
        file.write('{"step": 99')
    assert not cell.finished() and cell.next_words()[:2] == ["train", "--resume"]
    sweep = Sweep(tmp_path, [cell], Inline())
    assert sweep.run()[0].status == "finished"
    assert "at step 17" in sweep.log(cell).read_text()
    for name, weights in load_weights(RunDirectory(cell.path)).items():
        assert torch.equal(weights, alone[name])


def test_a_cell_that_died_before_its_first_checkpoint_starts_over(tmp_path):
    (cell,) = cells(tmp_path, seeds=(0,))
    (cell.path / "checkpoints").mkdir(parents=True)
    (cell.path / "config.json").write_text("{}")
    assert Sweep(tmp_path, [cell], Inline()).run()[0].status == "finished"


def test_directories_of_others_are_left_alone(tmp_path):
    mine, other = cells(tmp_path)
    mine.path.mkdir()
    (mine.path / "thesis.tex").write_text("")
    train.train(cells(tmp_path, seeds=(1,), lr=0.5)[0].config, other.path)
    outcomes = Sweep(tmp_path, [mine, other], Inline()).run()
    assert "holds other files: thesis.tex" in outcomes[0].error
    assert "is another run: its lr is 0.5" in outcomes[1].error
    assert (mine.path / "thesis.tex").exists()


def test_one_sweep_in_a_folder_at_a_time(tmp_path):
    class Nested(Inline):
        def start(self, *arguments):
            with pytest.raises(RunError, match="a sweep is still running in"):
                Sweep(tmp_path, cells(tmp_path), Inline()).run()
            super().start(*arguments)

    assert Sweep(tmp_path, cells(tmp_path, seeds=(0,)), Nested()).run()[0].status == "finished"


def test_status_line(tmp_path):
    sweep = Sweep(tmp_path, cells(tmp_path), Inline())
    sweep.run()
    sweep.outcomes[1].status = "running"
    assert status_line(sweep).startswith("1 finished, 1 running  bijection-mlp")
    assert status_line(sweep).endswith("100%")


def test_one_gpu_each(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert sorted(Processes().slots) == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert Processes().slots == ["5", "7"] and Processes(jobs=1).slots == ["5"]
    assert Processes(jobs=3).slots == ["5", "7", "5"]  # more than there are GPUs: shared
    assert Processes(jobs=2, gpus=False).slots == [None, None]


FLAGS = [
    "--preset",
    "quick",
    "--num-symbols",
    "4",
    "--eval-sequences",
    "16",
    "--batch-size",
    "4",
    "--evaluations",
    "4",
]


@pytest.mark.slow
def test_ctrl_c_saves_all_cells_and_the_same_command_continues(tmp_path, capsys):
    """Through real processes: interrupted in the middle, then finished."""
    grid_words = ["sweep", "bijection", "--model", "mlp", "--out", str(tmp_path), "--seed", "0"]
    words = [*grid_words, "--steps", "600", *FLAGS, "--json"]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "bwt", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("*/checkpoints/*.state.safetensors")):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    (row,) = json.loads(out)
    assert process.returncode == 130 and row["status"] == "interrupted"
    assert main(words) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["status"] == "finished" and row["metrics"]["kl"]["mean"] > 0
    (log,) = (tmp_path / "logs").iterdir()
    assert "resuming" in log.read_text()
    saved = read_json(next(tmp_path.glob("*/environment.json")))
    assert saved["machine"]["torch_threads"] == 1


def test_an_option_of_one_model_leaves_the_others_as_they_are(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("bwt.cli.commands.sweep.workers", lambda arguments: Inline())
    words = ["sweep", "bijection", "--model", "transformer", "mlp", "--heads", "1", "2"]
    assert main([*words, "--tied", "false", "--steps", "2", *FLAGS, "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert len(list(tmp_path.glob("*/evaluation.json"))) == 3
    assert text.count("bijection-transformer") == 4 and "entropy_mae" in text


@pytest.mark.parametrize(
    "words,complaint",
    [
        (["hmm", "--replacement", "true"], "no task or model of this grid has the option"),
        (["hmm", "--steps", "5", "0"], "steps must be at least 1"),
        (["hmm", "--threads", "0"], "--threads must be at least 1"),
    ],
)
def test_bad_grid_is_one_line_and_two(words, complaint, tmp_path, capsys):
    assert main(["sweep", *words, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and complaint in error and not (tmp_path / "out").exists()


def test_ray_that_is_not_installed_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["sweep", "hmm", "--ray", "auto", "--out", str(tmp_path / "out")]) == 2
    assert "pip install 'bwt[ray]'" in capsys.readouterr().err


def test_a_command_that_has_finished_has_no_metrics():
    outcome = Outcome(Command("report", ("report", "run"), lambda: True), "finished")
    assert table([outcome], ["kl"]).splitlines()[1] == "report  finished"
