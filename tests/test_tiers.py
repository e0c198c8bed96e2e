"""Test tiers: no test is lost between them, and an unexpected skip is a failure."""

import re
import subprocess
import sys

import pytest
from emulator.gpu import __main__ as emulated_gpu
from helpers import ROOT, tiers

TIERS = {"slow", "emulated", "build"}


def test_make_runs_every_tier():
    rules = (ROOT / "Makefile").read_text()
    default, others = re.findall(r'\$\(PYTEST\) -m "(.*)"', rules)
    assert set(default.split(" and ")) == {f"not {tier}" for tier in TIERS}
    assert set(others.split(" or ")) == TIERS


def test_cases_outside_the_default_tier_are_marked():
    single = tiers.mark("slow", [(1, 2), (3, 4)], default=(0,))
    assert single[0] == (1, 2) and single[1].values == ((3, 4),)
    several = tiers.mark("slow", [(1, 2), (3, 4)], default=(0,), unpack=True)
    assert several[0] == (1, 2) and several[1].values == (3, 4)
    assert [mark.name for mark in several[1].marks] == ["slow"]


@pytest.mark.slow
@pytest.mark.parametrize("listed,code", [(True, 0), (False, 1)])
def test_a_skip_for_an_unlisted_reason_fails(listed, code, tmp_path):
    reasons = (ROOT / "tests/expected_skips.txt").read_text() if listed else ""
    (tmp_path / "skips").write_text(reasons)
    path = str(ROOT / "tests/gpu/test_gpu_emulation.py")
    command = [sys.executable, "-P", "-m", "pytest", "--expected-skips", str(tmp_path / "skips")]
    done = subprocess.run([*command, path], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == code and "skipped: " in done.stdout
    assert ("no test may be skipped because: " in done.stdout) == (not listed)


@pytest.mark.parametrize("codes", [(-9, 0), (0, -9), (1, 0), (0, 1)])
def test_an_emulated_run_that_is_killed_is_a_failure(codes, monkeypatch):
    """Python reports death by a signal as a negative exit code."""
    left = iter(codes)
    monkeypatch.setattr(emulated_gpu.device, "torch_is_for_gpus", lambda: False)
    monkeypatch.setattr(emulated_gpu, "run", lambda *arguments, gpus: next(left))
    assert emulated_gpu.main([]) != 0
