"""Tests that each number of a planted evaluation is at its place: terminal, report and tables."""

import json
import re
from html import unescape

import numpy as np
import pytest
from helpers.planted_evaluation import planted_evaluation
from helpers.planted_results import document
from helpers.small_runs import SMALL
from helpers.tiny_scale import ARCHITECTURE, TINY
from safetensors.numpy import save_file

from bwt import evaluate, report, train
from bwt.cli import main
from bwt.records.evaluation import Evaluations
from bwt.records.metrics import MetricsRow
from bwt.report import charts
from bwt.reproduce import plan, results, tables
from bwt.runs.directory import RunDirectory
from bwt.runs.files import write_json

TABLE = """\
step  exact entropy  model entropy    entropy_mae             kl  kl of uniform
   1         0.2140         0.1120  0.1220 ±2e-04  0.1320 ±3e-04         0.3360
   2         0.2180         0.1140  0.1240 ±2e-05  0.1340 ±3e-05         0.3420
   3         0.2160         0.1130  0.1230 ±2e-06  0.1330 ±3e-06         0.3390
   4         0.2120         0.1110  0.1210 ±2e-07  0.1310 ±3e-07         0.3330

                entropy    entropy_mae             kl            tvd         excess           leak\
       accuracy  entropy_mae_of_mean
   model  0.1100 ±1e-03  0.1200 ±2e-03  0.1300 ±3e-03  0.1400 ±4e-03  0.1500 ±5e-03  0.1600 ±6e-03\
  0.1700 ±7e-03        0.1800 ±8e-03
   exact  0.2100 ±1e-04  0.2200 ±2e-04  0.2300 ±3e-04  0.2400 ±4e-04  0.2500 ±5e-04  0.2600 ±6e-04\
  0.2700 ±7e-04        0.2800 ±8e-04
 uniform  0.3100 ±1e-05  0.3200 ±2e-05  0.3300 ±3e-05  0.3400 ±4e-05  0.3500 ±5e-05  0.3600 ±6e-05\
  0.3700 ±7e-05        0.3800 ±8e-05
constant  0.4100 ±1e-06  0.4200 ±2e-06  0.4300 ±3e-06  0.4400 ±4e-06  0.4500 ±5e-06  0.4600 ±6e-06\
  0.4700 ±7e-06        0.4800 ±8e-06
memory-1  0.5100 ±1e-07  0.5200 ±2e-07  0.5300 ±3e-07  0.5400 ±4e-07  0.5500 ±5e-07  0.5600 ±6e-07\
  0.5700 ±7e-07        0.5800 ±8e-07"""

VERDICT = """\
0.13 ± 0.003 bits from exact Bayes (KL); entropy off by 0.12 bits.
2.54 times better than the best floor, uniform (0.33).
The position alone gives an entropy error of 0.0915: judge by the KL.
Effective memory: 6.4 observations (as good as an exact filter that sees only so many).
Its best guess is right in 17.00% of cases; Bayes' in 27.00%."""

LAST = (900, 180.0, 0.17, 0.18)  # step, seconds, KL and entropy error of the last evaluation


@pytest.fixture
def evaluations(monkeypatch):
    """Make `evaluate` return the planted evaluation, shifted by 0.1 for each further call. Return
    the list of the arguments of its calls."""
    calls = []

    def planted(predict, task, **arguments):
        calls.append({"length": task.seq_len, **arguments})
        return planted_evaluation(shift=0.1 * (len(calls) - 1))

    monkeypatch.setattr(evaluate, "evaluate", planted)
    return calls


def test_terminal_of_train(evaluations, capsys, tmp_path):
    words = "train bijection --num-symbols 4 --width 16 --layers 1 --steps 3 --batch-size 4"
    words += f" --evaluations 1 --eval-sequences 77 --seed 5 --device cpu --out {tmp_path}/run"
    assert main(words.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    (step,) = (line for line in lines if line.startswith("step ") and "bits" in line)
    assert re.fullmatch(r"step +3 +\d+\.\d s  entropy_mae 0\.12000  kl 0\.13000 bits  \(.*\)", step)
    assert f"\n{TABLE}\n\n{VERDICT}\nrun: " in "\n".join(lines)
    assert [x["num_sequences"] for x in evaluations] == [77]
    assert [x["seed"] for x in evaluations] == [5]
    (row,) = [x.evaluation for x in RunDirectory(tmp_path / "run").read_metrics() if x.evaluation]
    planted = planted_evaluation().model.overall
    assert row == {name: estimate.mean for name, estimate in planted.items()}


def test_terminal_of_eval(evaluations, capsys, tmp_path):
    train.train(SMALL, tmp_path / "run")
    evaluations.clear()
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out == f"{TABLE}\n\n{VERDICT}\n\n"
    (call,) = evaluations
    assert call["num_sequences"] == 4096 and call["seed"] == 0
    evaluations.clear()
    assert main(["eval", str(tmp_path / "run"), "--length", "2", "3"]) == 0
    out = capsys.readouterr().out
    # Tokens of 2 and of 3 pairs, the last without its value.
    assert [x["length"] for x in evaluations] == [3, 5]
    first, second = out.split("num_pairs 3\n")
    assert first == f"num_pairs 2\n{TABLE}\n\n{VERDICT}\n\n"
    assert second.startswith(planted_evaluation(shift=0.1).table())
    assert main(["eval", str(tmp_path / "run"), "--length", "4"]) == 0
    written = json.loads((tmp_path / "run/evaluation.json").read_text())
    assert written["model"]["overall"]["kl"]["mean"] == 0.13
    kl = {length: x["model"]["overall"]["kl"]["mean"] for length, x in written["lengths"].items()}
    assert kl == pytest.approx({"2": 0.13, "3": 0.23, "4": 0.33})


def test_a_position_that_does_not_give_the_entropy_is_not_mentioned():
    """An error of 0.1205 is above that of the model, which is 0.12."""
    assert "0.1205" not in planted_evaluation(position_entropy_mae=0.1205).verdict()


def plant(path, config):
    """Write the files of a run whose every number is distinct."""
    (path / "checkpoints").mkdir(parents=True)
    write_json(path / "config.json", config.to_json())
    write_json(path / "evaluation.json", Evaluations(planted_evaluation()).to_json())
    machine = {"platform": "Linux", "cpu_count": 9, "torch_threads": 7}
    write_json(path / "environment.json", {"versions": {"torch": "2"}, "machine": machine})
    save_file({"a": np.zeros((3, 7), np.float32)}, path / "checkpoints/step_00000900.safetensors")
    kept = RunDirectory(path)
    kept.append_metrics(MetricsRow(5, 1.0, 50, 9.1, 8.1))
    for step, seconds, kl, error in ((10, 2.0, 0.71, 0.72), (300, 60.0, 0.31, 0.32), LAST):
        found = {"entropy_mae": error, "kl": kl, "entropy": 9.3}
        kept.append_metrics(MetricsRow(step, seconds, 10 * step, 9.2, 8.2, evaluation=found))


@pytest.fixture
def page(tmp_path, monkeypatch):
    """Return the HTML of a planted run's report, and the series of its charts by title."""
    drawn, lines = {}, charts.lines

    def recorded(series, title, *labels, **options):
        drawn[title] = {s.name: (list(s.x), list(s.y), s.error) for s in series}
        return lines(series, title, *labels, **options)

    monkeypatch.setattr(charts, "lines", recorded)
    plant(tmp_path / "run", SMALL)
    return report.report([tmp_path / "run"]).read_text(), drawn


def text_of(page):
    return unescape(re.sub(r"<[^>]*>", "", page))


def test_headlines_of_the_report(page):
    text = text_of(page[0])
    for sentence in (
        "0.13 bits on average. The best predictor that lacks an ability, uniform, is 2.54 times",
        "the predictions are 0.13 ± 0.003 bits from the exact posterior (KL), and their entropy "
        "is off by 0.12 ± 0.002 bits. The best floor, uniform, is 2.54 times as far (0.33 bits).",
        "knows only the position gets the entropy right to 0.0915 bits",
        "sees only the last 6.4 observations",
        "bijection · transformer, 21 parameters ",
        "12 steps of 8 fresh sequences, learning from draws, seed 0; evaluated on 4,321 others",
    ):
        assert sentence in text


def test_tables_of_the_report(page):
    head = [text_of(x) for x in re.findall(r"<th>(.*?)</th>", page[0])]
    cells = [text_of(x) for x in re.findall(r"<td[^>]*>(.*?)</td>", page[0])]
    row = dict(zip(head, cells[: len(head)], strict=True))
    assert row.pop("the paper's").startswith("0.003 (v1), 0.007 (v3) bits")
    assert row == {
        "run": "run",
        "task": "bijection",
        "model": "transformer",
        "parameters": "21",
        "KL / bits": "0.13 ± 0.003",
        "best floor": "0.33 (uniform)",
        "entropy error / bits": "0.12 ± 0.002",
        "of means": "0.18",
        "TVD": "0.14",
        "accuracy / Bayes'": "17 % / 27 %",
    }
    tips = re.findall(r'data-tip="([^"]*)"', page[0])
    assert tips == [
        "this model (transformer): 0.13 ± 0.003",
        "uniform: guesses: 0.33 ± 3e-5",
        "constant: knows the position only: 0.43 ± 3e-6",
        "exact, of the last 1: 0.53 ± 3e-7",
    ]


def test_chapters_of_the_report(page):
    text, drawn = text_of(page[0]), page[1]
    for sentence in (
        # Belief.
        "Over 4 steps the uncertainty of exact Bayes goes from 0.214 to 0.212 bits",
        "the model's mean stays within 0.104 bits",
        "uniform, is 0.33 bits from Bayes (KL); the model 0.13.",
        "The two curves differ by at most 0.104 bits (step 2)",
        "Farthest from Bayes at step 2 (0.134 ± 3e-5 bits), nearest at step 4 (0.131 ± 3e-7 bits)",
        # Training.
        "nearer to Bayes than the floor uniform by training step 300, and 0.17 bits from it at "
        "step 900",
        "At step 10 it was 0.71 bits from Bayes; a uniform guess is 0.33.",
        "at 3 checkpoints; 180 s of training on 7 CPU threads.",
    ):
        assert sentence in text
    planted, steps = planted_evaluation(), [1, 2, 3, 4]
    model, exact = planted.model.per_position, planted.exact.per_position
    assert drawn["Entropy by step"] == {
        "model": (steps, model["entropy"].mean, model["entropy"].se),
        "exact Bayes": (steps, exact["entropy"].mean, None),
    }
    kl_of = {name: score.per_position["kl"].mean for name, score in planted.floors.items()}
    assert drawn["KL by step"] == {
        "model": (steps, model["kl"].mean, model["kl"].se),
        "floor: uniform": (steps, kl_of["uniform"], None),
        "exact, last 1": (steps, kl_of["memory-1"], None),
    }
    trained = [10, 300, 900]
    assert drawn["Learning curve"] == {
        "KL": (trained, [0.71, 0.31, 0.17], None),
        "entropy error": (trained, [0.72, 0.32, 0.18], None),
    }


def test_tables_of_the_reproduction(tmp_path):
    variant = next(x for x in ARCHITECTURE.variants if x.setting == "hmm")
    planned = plan.plan_cell(TINY, tmp_path, ARCHITECTURE, variant, seed=0)
    plant(planned.cell.path, planned.cell.config)
    longer = Evaluations(planted_evaluation(), {"6": planted_evaluation(shift=0.5)})
    write_json(planned.cell.path / "evaluation.json", longer.to_json())
    cell = results.cell(planned)
    assert cell.exact_entropy == pytest.approx(0.21) and cell.seconds == 180.0
    rows = {
        table.name: [dict(zip(table.header, row, strict=True)) for row in table.rows]
        for table in tables.build(document(cell))
    }
    (metrics,) = rows["metrics"]
    shown = ("steps", "entropy_mae", "kl", "tvd", "excess", "accuracy", "best floor (kl)")
    assert [metrics[name] for name in shown] == [
        "900",
        "0.12 (1 seed)",
        "0.13 (1 seed)",
        "0.14 (1 seed)",
        "0.15 (1 seed)",
        "17.0% (1 seed)",
        "uniform 0.33",
    ]
    (architecture,) = rows["architecture"]
    assert architecture["hmm (bits)"].startswith("0.12 (1 seed) (paper 7.5e-5 / 0.049")
    lengths = rows["lengths"][0]
    assert lengths["length 4"] == "0.12 (1 seed)" and lengths["length 6"] == "0.62 (1 seed)"
