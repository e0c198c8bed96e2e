"""Value tests at each SIMD level. The level is chosen once per process, so each gets a process."""

import importlib
import os
import subprocess
import sys
from functools import cache

import pytest

LEVELS = ["baseline", "avx2", "avx512"]


def rerun(level: str, file: str, tests: str) -> None:
    """Runs the tests of a file that match an expression; skips if the machine lacks the level, or
    if it is the one that this process uses anyhow."""
    if importlib.import_module("bwt._C").simd() == level:
        pytest.skip(f"this process itself runs at {level}")
    if not available(level):
        pytest.skip(f"this machine has no {level}")
    environment = {**os.environ, "BWT_SIMD": level}
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
    subprocess.run([*command, "-k", tests], env=environment, check=True)


@cache
def available(level: str) -> bool:
    """Whether the machine has it: a process that asks for it gets it."""
    code = "import torch, bwt._C; print(bwt._C.simd())"
    environment = {**os.environ, "BWT_SIMD": level}
    command = [sys.executable, "-P", "-c", code]
    return subprocess.check_output(command, env=environment, text=True).strip() == level
