"""Value tests at each SIMD level. The level is chosen once per process, so each gets a process."""

import importlib
import os
import subprocess
import sys

import pytest

LEVELS = ["baseline", "avx2", "avx512"]


def rerun(level: str, file: str, tests: str) -> None:
    """Runs the tests of a file that match an expression; skips if the machine lacks the level, or
    if it is the one that this process uses anyhow."""
    if importlib.import_module("bwt._C").simd() == level:
        pytest.skip(f"this process itself runs at {level}")
    environment = {**os.environ, "BWT_SIMD": level}
    used = subprocess.run(
        [sys.executable, "-P", "-c", "import torch, bwt._C; print(bwt._C.simd())"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    if used != level:
        pytest.skip(f"this machine has no {level}")
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
    subprocess.run([*command, "-k", tests], env=environment, check=True)
