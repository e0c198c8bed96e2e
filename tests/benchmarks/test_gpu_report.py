"""What `make gpu` keeps: documents of runs, and the page made of them."""

import importlib
import json
import os
import subprocess
from datetime import datetime, timezone
from pathlib import Path

import pytest
from bwt.kernels import tuned
from helpers.fake_gpu import SMI

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("benchmark_scripts")
SOFTWARE = {"torch": "2.13.0+cu130", "cuda": "13.0", "devices": 1, "triton": "3.7.1"}
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


@pytest.fixture
def report():
    return importlib.import_module("gpu_report")


ROW = {"op": "attention", "case": "c", "mode": "forward", "provider": "triton"} | {
    **{"median_ms": 0.0123, "cold_ms": 0.0456, "host_us": 21.5, "bandwidth_percent": 61.4},
    **{"arithmetic_percent": None, "ratio": 2.5, "baseline": "sdpa", "bound": False},
}


def outcomes(stages):
    [gpu] = importlib.import_module("machine").query(lambda command: SMI)
    task = {"steps": 10000, "seconds": 31.4, "entropy_mae": 0.0061, "kl": 0.0034}
    details = {
        "machine": gpu,
        "build": None,
        "software": SOFTWARE,
        "test": {"passed": 120, "skipped": 3, "failures": []},
        "tune": {"entries": 9, "faster": 1, "gains": [1.25], "skipped": 4},
        "bench": {"rows": [ROW, ROW | {"provider": "write", "bound": True}], "faults": []},
        "train": {"tasks": {"bijection": task}, "faults": ["hmm: exit code 1"]},
    }
    return [stages.Outcome(n, "passed", 90.0, "", d) for n, d in details.items()]


def test_page_and_document(report, stages, tmp_path):
    made = report.record("NVIDIA A100-SXM4-80GB", START, "abc", False, outcomes(stages))
    place = report.add(tmp_path, made)
    assert place == tmp_path / "A100-SXM4-80GB"
    assert sorted(p.name for p in place.iterdir()) == ["20260102T030405.json", "README.md"]
    assert json.loads((place / "20260102T030405.json").read_text()) == made
    page = (place / "README.md").read_text()
    assert page.startswith("# NVIDIA A100-SXM4-80GB\n")
    for words in (
        "| 2026-01-02T03:04:05+00:00 | abc | 575.1 | 2.13.0+cu130 | 13.0 | 3.7.1 | "
        "1200 of 1410 MHz | 400 W |",
        "train passed (1.5 min)",
        "`pytest -m gpu`: 120 passed, 3 skipped",
        "9 entries searched, 1 configs faster than the architecture's (times as fast: 1.25)",
        "| attention | c | forward | triton | 0.0123 ms | 0.0456 ms | 21.5 us | 61.4% | - | "
        "2.5 sdpa |",
        "| bijection | 10,000 | 31 s | 0.0061 | 0.0034 |",
        "- hmm: exit code 1",
    ):
        assert words in page, words
    assert "| write |" not in page


def test_runs_are_added_and_each_part_is_of_the_newest_that_has_it(report, stages, tmp_path):
    first = report.record("NVIDIA X", START, "abc", False, outcomes(stages))
    later = START.replace(day=3)
    failed = stages.Outcome("test", "failed", 1.0, "x", {"failed": 1, "failures": ["a::b"]})
    second = report.record("NVIDIA X", later, "", True, [failed])
    for run in (first, second):
        place = report.add(tmp_path, run)
    page = (place / "README.md").read_text()
    assert len(list(place.glob("*.json"))) == 2
    assert page.index("2026-01-03") < page.index("2026-01-02") and "(quick)" in page
    assert "## Tests (2026-01-03T03:04:05+00:00)" in page and "- a::b" in page
    assert "## Speed (2026-01-02T03:04:05+00:00)" in page


def test_two_runs_in_a_second_are_both_kept(report, stages, tmp_path):
    for _ in range(2):
        place = report.add(tmp_path, report.record("X", START, "", False, []))
    assert len(list(place.glob("*.json"))) == 2


def test_all_or_nothing(report, stages, tmp_path, monkeypatch):
    place = report.add(tmp_path, report.record("X", START, "", False, []))
    before = {path: path.read_bytes() for path in place.iterdir()}

    def fail(source, target):
        raise OSError("no")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no"):
        report.add(tmp_path, report.record("X", START.replace(day=9), "", False, []))
    assert before == {path: path.read_bytes() for path in place.iterdir()}


def test_the_folder_and_the_tuned_table_have_the_same_name(report):
    for name in ("NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 4090", "A/../b"):
        assert report.slug(name) == tuned.slug(name)


def test_commit(report):
    head = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    assert not head or head.startswith(report.commit(ROOT).rstrip("+"))
