"""The time of the host, under a driver that launches nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(torch.version.cuda or torch.version.hip, reason="torch has GPUs of its own")
@pytest.mark.emulated
def test_host_time():
    pytest.importorskip("triton", reason="Triton is not installed")
    script = str(ROOT / "benchmarks/host_time.py")
    few = ["--ops", "attention", "--layers", "2", "--repeats", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-P", script, *few]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["op", "forward", "us", "backward", "us", "of", "sdpa"]
    assert [row.split()[0] for row in rows] == ["sdpa", "attention"]
    assert all(float(number) > 0 for row in rows for number in row.split()[1:])
