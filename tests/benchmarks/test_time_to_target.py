"""The table of how long training takes, and what a precision does to an operand."""

import importlib
import json
import math
from pathlib import Path

import pytest
import torch

from bwt.records.metrics import MetricsRow
from bwt.runs.directory import RunDirectory


@pytest.fixture(scope="module")
def benchmark_file():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
        yield importlib.import_module


def test_a_target_is_met_by_the_first_evaluation_at_most_that_far(benchmark_file, tmp_path):
    script = benchmark_file("time_to_target")
    run = RunDirectory.create(tmp_path / "run")
    for step, kl in ((1, 1.0), (2, 0.1), (3, None), (4, 0.02), (5, 0.005), (6, 0.02)):
        evaluation = None if kl is None else {"kl": kl}
        run.append_metrics(MetricsRow(step=step, seconds=10.0 * step, evaluation=evaluation))
    assert script.reached(run) == {
        "0.1": {"step": 2, "seconds": 20.0},
        "0.01": {"step": 5, "seconds": 50.0},
        "0.003": None,
    }


def row(task, seed, *met):
    targets = ("0.1", "0.01", "0.003")
    reached = {t: x and dict(step=x, seconds=x / 10) for t, x in zip(targets, met, strict=True)}
    return dict(task=task, seed=seed, steps=3000, reached=reached, environment={})


def test_the_table_has_spread_and_what_was_not_met(benchmark_file):
    script = benchmark_file("time_to_target")
    rows = [row("hmm", 0, 100, 1000, None), row("hmm", 1, 300, None, None)]
    lines = script.table(rows)
    assert lines[2:] == [
        "| hmm | 0.1 | 2 of 2 | 200 (100 to 300) | 20.0 (10.0 to 30.0) |",
        "| hmm | 0.01 | 1 of 2 | 1,000 (1,000 to 1,000) | 100.0 (100.0 to 100.0) |",
        "| hmm | 0.003 | 0 of 2 | - | - |",
    ]
    faster = [row("hmm", 0, 100, 500, None)]
    assert script.against(faster, rows) == [
        "hmm to 0.1 bits: 0.50 times the steps, 0.50 times the seconds",
        "hmm to 0.01 bits: 0.50 times the steps, 0.50 times the seconds",
    ]


def test_a_table_is_written_and_compared_with(benchmark_file, tmp_path, monkeypatch, capsys):
    script = benchmark_file("time_to_target")
    monkeypatch.setattr(script, "EVALUATIONS", 3)
    resolve = script.resolve
    small = dict(steps=6, batch_size=4, device="cpu")
    monkeypatch.setattr(
        script,
        "resolve",
        lambda *a, settings: resolve(*a, settings={**settings, **small}),
    )
    words = ["--tasks", "bijection", "--seeds", "2", "--runs", str(tmp_path / "runs")]
    assert script.main([*words, "--out", str(tmp_path / "one")]) == 0
    document = json.loads((tmp_path / "one/times.json").read_text())
    assert [x["seed"] for x in document["runs"]] == [0, 1]
    assert "| bijection | 0.1 | 0 of 2 | - | - |" in (tmp_path / "one/README.md").read_text()
    former = str(tmp_path / "one/times.json")
    assert script.main([*words, "--out", str(tmp_path / "two"), "--against", former]) == 0
    assert script.main([*words, "--against", str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err


def test_tf32_has_ten_bits_behind_the_point(benchmark_file):
    rounded = benchmark_file("precision").rounded
    x = torch.tensor([1.0, 1 + 2**-10, 1 + 2**-11, 1 + 2**-12, -1 - 2**-11, 3.14159265, 0.0])
    nearest = torch.tensor([1.0, 1 + 2**-10, 1 + 2**-10, 1.0, -1 - 2**-10, 3.140625, 0.0])
    assert torch.equal(rounded(x), nearest)
    y = torch.randn(1000)
    relative = ((rounded(y) - y) / y).abs().max()
    assert 2**-12.5 < relative <= 2**-11


def test_emulated_products_are_rounded_forward_and_backward(benchmark_file):
    precision = benchmark_file("precision")
    a, b = torch.randn(8, 16, requires_grad=True), torch.randn(16, 4, requires_grad=True)
    with precision.Emulated():
        (a @ b).sum().backward()
    rounded = precision.rounded(b.detach())
    torch.testing.assert_close(a.grad, torch.ones(8, 4) @ rounded.T)
    assert not torch.equal(a.grad, torch.ones(8, 4) @ b.detach().T)
    assert math.isfinite(a.grad.sum().item())
