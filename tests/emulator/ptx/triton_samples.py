"""Triton kernels for the executor's own tests.

Run as a script it compiles every sample for sm_80 and writes one JSON file:

    python tests/emulator/ptx/triton_samples.py OUT.json

It must run in a process without TRITON_INTERPRET, which would turn the kernels into
interpreted ones; that is why the tests start it as a subprocess.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGET = GPUTarget("cuda", 80, 32)


@triton.jit
def vector_add(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = offsets < n
    total = tl.load(x + offsets, mask=keep) + tl.load(y + offsets, mask=keep)
    tl.store(out + offsets, total, mask=keep)


@triton.jit
def softmax_row(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    keep = column < columns
    value = tl.load(x + row * columns + column, mask=keep, other=float("-inf"))
    value = tl.exp(value - tl.max(value, axis=0))
    tl.store(out + row * columns + column, value / tl.sum(value, axis=0), mask=keep)


@triton.jit
def matrix_product(
    a, b, out, depth, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr
):
    """out[M, N] = a[M, depth] @ b[depth, N], with depth a multiple of K."""
    row = tl.arange(0, M)[:, None]
    column = tl.arange(0, N)[None, :]
    inner = tl.arange(0, K)
    total = tl.zeros((M, N), dtype=tl.float32)
    for start in range(0, depth, K):
        left = tl.load(a + row * depth + (start + inner)[None, :])
        right = tl.load(b + (start + inner)[:, None] * N + column)
        total += tl.dot(left, right, input_precision=PRECISION)
    tl.store(out + row * N + column, total)


@triton.jit
def _add(left, right):
    return left + right


@triton.jit
def running_sum(x, out, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.associative_scan(tl.load(x + offsets), 0, _add))


@triton.jit
def reductions(x, sums, places, transposed, M: tl.constexpr, N: tl.constexpr):
    row = tl.arange(0, M)
    column = tl.arange(0, N)
    value = tl.load(x + row[:, None] * N + column[None, :])
    tl.store(sums + column, tl.sum(value, axis=0))
    tl.store(places + row, tl.argmax(value, axis=1))
    tl.atomic_add(transposed + column[:, None] * M + row[None, :], tl.trans(value))


@triton.jit
def causal_attention(
    q,
    k,
    v,
    out,
    length,
    scale,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Flash attention for one head per program_id(1), `length` not a multiple of the tile."""
    start = tl.program_id(0) * M
    head = tl.program_id(1) * length * D
    row = start + tl.arange(0, M)
    feature = tl.arange(0, D)
    query = tl.load(
        q + head + row[:, None] * D + feature[None, :], mask=row[:, None] < length, other=0.0
    )
    peak = tl.full((M,), float("-inf"), dtype=tl.float32)
    weight = tl.zeros((M,), dtype=tl.float32)
    total = tl.zeros((M, D), dtype=tl.float32)
    for first in range(0, start + M, N):
        column = first + tl.arange(0, N)
        place = head + column[:, None] * D + feature[None, :]
        inside = column[:, None] < length
        key = tl.load(k + place, mask=inside, other=0.0)
        value = tl.load(v + place, mask=inside, other=0.0)
        score = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
        visible = (column[None, :] <= row[:, None]) & (column[None, :] < length)
        score = tl.where(visible, score, float("-inf"))
        top = tl.maximum(peak, tl.max(score, axis=1))
        chance = tl.exp(score - top[:, None])
        shrink = tl.exp(peak - top)
        weight = weight * shrink + tl.sum(chance, axis=1)
        total = total * shrink[:, None]
        total += tl.dot(chance.to(value.dtype), value, input_precision=PRECISION)
        peak = top
    total = total / weight[:, None]
    tl.store(out + head + row[:, None] * D + feature[None, :], total, mask=row[:, None] < length)


DOT_TYPES = {"fp16": "tf32", "bf16": "tf32", "tf32": "tf32", "fp32": "ieee"}
POINTERS = {"fp16": "*fp16", "bf16": "*bf16", "tf32": "*fp32", "fp32": "*fp32"}


def samples():
    """name -> (kernel, signature without constexprs, constexprs)."""
    found = {
        "vector_add": (
            vector_add,
            {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32"},
            {"BLOCK": 256},
        ),
        "softmax_row": (
            softmax_row,
            {"x": "*fp32", "out": "*fp32", "columns": "i32"},
            {"BLOCK": 512},
        ),
        "reductions": (
            reductions,
            {"x": "*fp32", "sums": "*fp32", "places": "*i32", "transposed": "*fp32"},
            {"M": 32, "N": 64},
        ),
        "running_sum": (running_sum, {"x": "*fp32", "out": "*fp32"}, {"BLOCK": 512}),
    }
    for name, precision in DOT_TYPES.items():
        pointer = POINTERS[name]
        found[f"dot_{name}"] = (
            matrix_product,
            {"a": pointer, "b": pointer, "out": "*fp32", "depth": "i32"},
            {"M": 32, "N": 32, "K": 32, "PRECISION": precision},
        )
        found[f"attention_{name}"] = (
            causal_attention,
            dict.fromkeys(["q", "k", "v"], pointer)
            | {"out": "*fp32", "length": "i32", "scale": "fp32"},
            {"M": 64, "N": 64, "D": 32, "PRECISION": precision},
        )
    return found


def compile_sample(function, arguments, constexprs):
    """PTX and the launch facts that a host program would read from the compiled kernel."""
    signature = arguments | dict.fromkeys(constexprs, "constexpr")
    places = [(i,) for i, kind in enumerate(arguments.values()) if kind.startswith("*")]
    aligned = {place: [["tt.divisibility", 16]] for place in places}
    source = ASTSource(function, signature, constexprs, aligned)
    compiled = triton.compile(source, target=TARGET)
    return {
        "ptx": compiled.asm["ptx"],
        "shared": compiled.metadata.shared,
        "num_warps": compiled.metadata.num_warps,
    }


def main(path):
    compiled = {name: compile_sample(*sample) for name, sample in samples().items()}
    Path(path).write_text(json.dumps(compiled))


if __name__ == "__main__":
    main(sys.argv[1])
