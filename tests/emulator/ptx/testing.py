"""Helpers of the executor's own tests: compiling samples, launching, number formats."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from . import Memory, launch
from .formats import dtype_of

HERE = Path(__file__).parent
NVCC = shutil.which("nvcc") or "/usr/local/bin/nvcc"


def compile_cuda(folder: Path) -> str | None:
    """The PTX of samples.cu, or None without nvcc."""
    if not os.access(NVCC, os.X_OK):
        return None
    target = folder / "samples.ptx"
    command = [NVCC, "-arch=sm_80", "-std=c++17", "-ptx", "-o", target, HERE / "samples.cu"]
    subprocess.run(command, check=True)
    return target.read_text()


def compile_triton(folder: Path) -> dict[str, dict]:
    """name -> PTX and metadata, compiled in a process that is free to compile."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(folder / "triton")
    target = folder / "triton.json"
    script = HERE / "triton_samples.py"
    subprocess.run([sys.executable, script, target], check=True, env=environment)
    return json.loads(target.read_text())


def single_operation(body: str, inputs: list[str], output: str) -> str:
    """A kernel of one warp that computes `body` from one array per input.

    In `body`, %a, %b, ... are the inputs, %out the result; %p, %q are predicates.
    """
    names = [f"%{letter}" for letter in "abcd"[: len(inputs)]]
    sizes = [dtype_of(kind).itemsize for kind in inputs]
    lines = [".version 8.0", ".target sm_80", ".address_size 64", ".visible .entry one("]
    lines.append(",".join(f".param .u64 p{i}" for i in range(len(inputs) + 1)) + ") {")
    lines.append(".reg .b32 %lane, %t<9>; .reg .b64 %at, %step, %w<9>; .reg .pred %p, %q;")
    lines.append("mov.u32 %lane, %tid.x;")
    for i, (name, size) in enumerate(zip(names, sizes, strict=True)):
        lines.append(f".reg .b{max(16, 8 * size)} {name};")
        lines.append(f"ld.param.u64 %at, [p{i}]; mul.wide.u32 %step, %lane, {size};")
        lines.append(f"add.s64 %at, %at, %step; ld.global.b{8 * size} {name}, [%at];")
    size = dtype_of(output).itemsize
    lines.append(f".reg .b{8 * size} %out; {body}")
    lines.append(f"ld.param.u64 %at, [p{len(inputs)}]; mul.wide.u32 %step, %lane, {size};")
    lines.append(f"add.s64 %at, %at, %step; st.global.b{8 * size} [%at], %out; ret; }}")
    return "\n".join(lines)


def run(text, args, grid=1, block=32, **options):
    """Launch with arrays in place of addresses."""
    mem = Memory()
    given = [mem.add(a) if isinstance(a, np.ndarray) else a for a in args]
    return launch(text, mem, given, grid=(grid, 1, 1), block=(block, 1, 1), **options)


def run_triton(sample, args, grid=(1, 1, 1), **options):
    mem = Memory()
    given = [mem.add(a) if isinstance(a, np.ndarray) else a for a in args]
    block = (32 * sample["num_warps"], 1, 1)
    return launch(sample["ptx"], mem, given, grid, block, sample["shared"], **options)


def to_bf16(x):
    """Bits of the nearest bfloat16 numbers, computed apart from the executor."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def compute(body: str, kinds: list[str], columns: list, output: str) -> np.ndarray:
    """The results of `single_operation` for columns of inputs, one lane per row."""
    arrays = [np.array(c, dtype_of(k)) for c, k in zip(columns, kinds, strict=True)]
    result = np.zeros(arrays[0].size, dtype_of(output))
    run(single_operation(body, kinds, output), [*arrays, result], block=result.size)
    return result
