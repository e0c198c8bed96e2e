"""Compiling CUDA sources without a GPU, and what the compiler says of the result."""

import importlib.util
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
from emulator import building

from helpers import ROOT

NVCC = shutil.which("nvcc")
# nvcc's own, or the one that comes with Triton.
CUOBJDUMP = shutil.which("cuobjdump") or str(
    Path(importlib.util.find_spec("triton").origin).parent / "backends/nvidia/bin/cuobjdump"
)
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")


def _nvcc(source: Path, *flags: str) -> str:
    command = [NVCC, "-std=c++20", f"-I{ROOT / 'csrc'}", *flags, str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@cache
def ptx(source: Path) -> str:
    """Return sm_80 PTX, which the emulator executes. One process compiles it for all."""

    def make(folder: Path) -> None:
        _nvcc(source, "-arch=sm_80", "-ptx", "-o", str(folder / "kernels.ptx"))

    parts = (source, *building.files(ROOT / "csrc"), building.version(NVCC))
    return (building.built("ptx", parts, make) / "kernels.ptx").read_text()


def usage(source: Path, arch: str, cubin: Path) -> dict[str, dict[str, int]]:
    """Per kernel: stack, spills and registers as ptxas reports them, instructions in all and those
    of local memory."""
    report = _nvcc(source, f"-arch={arch}", "-cubin", "-Xptxas", "-v", "-o", str(cubin))
    sass = subprocess.run([CUOBJDUMP, "-sass", str(cubin)], capture_output=True, text=True)
    assert sass.returncode == 0, sass.stderr
    kernels = {}
    for name, stack, stores, loads, registers in re.findall(
        r"Function properties for (\w+)\s+(\d+) bytes stack frame, (\d+) bytes spill stores, "
        r"(\d+) bytes spill loads\s+ptxas info\s+: Used (\d+) registers",
        report,
    ):
        kernels[name] = {
            "stack": int(stack),
            "spill": int(stores) + int(loads),
            "registers": int(registers),
        }
    for function in re.split(r"\n\s*Function : ", sass.stdout)[1:]:
        name = function.split()[0]
        opcodes = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", function)
        kernels[name]["local"] = sum(opcode[:3] in ("STL", "LDL") for opcode in opcodes)
        kernels[name]["instructions"] = sum(opcode != "NOP" for opcode in opcodes)
    return kernels
