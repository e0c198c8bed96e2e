"""Kernels with mistakes, written by hand or made by deleting barriers, are caught."""

from __future__ import annotations

import re

import numpy as np
import pytest

from . import Memory, PTXError, launch
from .testing import run, run_triton

RNG = np.random.default_rng(10)

BROKEN = {
    "no_barrier": ("race in shared memory, (read after write|write after read)", 128, [128]),
    "no_mask_load": ("global load .* out of bounds .* after the end of buffer 0", 128, [100, 100]),
    "no_mask_store": ("global store .* out of bounds .* end of buffer 1", 128, [100, 100]),
    "inactive_shuffle": ("names inactive lanes", 32, [32]),
    "exited_shuffle": ("shfl.sync reads from an inactive lane", 32, [32]),
    "misaligned": ("misaligned global load of 16 bytes .* buffer 0", 32, [132, 128]),
    "no_wait": ("cp.async data before the wait", 32, [128, 128]),
    "divergent_barrier": ("barrier in divergent code", 64, [64]),
    "shared_overrun": ("shared load out of bounds", 64, [64]),
    "endless": ("no end after 10000 steps", 32, [2]),
    "uninitialised": ("uninitialised shared memory", 64, [64]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_kernel(cuda, name):
    message, threads, sizes = BROKEN[name]
    kind = np.float32 if name in ("misaligned", "no_wait") or "mask" in name else np.int32
    args = [np.zeros(size, kind) for size in sizes]
    args += [100] if "mask" in name else [1] if name == "shared_overrun" else []
    with pytest.raises(PTXError, match=f"(?s){message}.*line [0-9]+"):
        run(cuda, args, block=threads, kernel=name, max_steps=10_000)


def test_missing_barrier_shows_in_values(cuda):
    wrong = 0
    for seed in range(8):
        x = np.arange(128, dtype=np.int32)
        stats = run(cuda, [x], block=128, kernel="no_barrier", seed=seed, strict=False)
        assert stats.races
        wrong += not np.array_equal(x, np.arange(128)[::-1])
    assert wrong >= 4


def test_read_only_buffers(cuda):
    x, out = np.zeros(100, np.float32), np.zeros(100, np.float32)
    out.flags.writeable = False
    with pytest.raises(PTXError, match="store to read-only buffer 2"):
        run(cuda, [x, x.copy(), out, 100], block=128, kernel="vector_add")


def test_buffers_must_be_contiguous():
    with pytest.raises(ValueError, match="C-contiguous"):
        Memory().add(np.zeros((4, 4))[:, 1])


def test_neighbours_of_mapped_memory_are_out_of_bounds(cuda):
    whole, memory = np.zeros(300, np.float32), Memory()
    address = whole.ctypes.data
    memory.map(address + 800, whole[200:], "last")
    memory.map(address, whole[:99], "first")
    arguments = [address, address, address + 800, 100]
    with pytest.raises(PTXError, match="0 bytes after the end of first"):
        launch(cuda, memory, arguments, (1, 1, 1), (128, 1, 1), kernel="vector_add")
    for start in (address - 4, address + 98 * 4, address + 104):
        with pytest.raises(ValueError, match="would overlap"):
            memory.map(start, whole[:2], "third")
    memory.map(address + 99 * 4, whole[99:200], "between")
    launch(cuda, memory, arguments, (1, 1, 1), (128, 1, 1), kernel="vector_add")


def test_added_buffers_avoid_mapped_ones():
    memory, x = Memory(), np.zeros(4)
    first = memory.add(x)
    memory.map(first + (1 << 21), np.ones(4), "in the way")
    later = [memory.add(np.full(1 << 17, i, np.float64)) for i in range(3)]
    values = memory.load(np.array([first + (1 << 21), *later]), np.dtype(np.float64), 1)
    assert values[0].tolist() == [1, 0, 1, 2]


def mutants(text, entry):
    """The text with each barrier of one entry deleted in turn."""
    start = text.index(f".entry {entry}")
    end = text.find(".entry", start + 1)
    for found in re.finditer(r"bar\.sync\s+0;", text[start : end if end > 0 else None]):
        yield text[: start + found.start()] + text[start + found.end() :]


def survivors(text, entry, attempt):
    """For each barrier, whether the kernel runs without complaint when it is deleted."""
    silent = []
    for mutant in mutants(text, entry):
        try:
            attempt(mutant)
            silent.append(True)
        except PTXError:
            silent.append(False)
    return silent


def test_deleted_barriers_of_cuda(cuda):
    """Three of the nine barriers order different warps; they are missed.

    The tree adds 128, 64, 32, 16, ... elements. From the step of 32 on, all work is done by the
    first warp, and the executor looks for races between warps only.
    """
    x, out = RNG.random(512, np.float32), np.zeros(2, np.float32)
    silent = survivors(
        cuda, "block_sum", lambda text: run(text, [x, out], 2, 256, kernel="block_sum")
    )
    assert silent == [False] * 3 + [True] * 6


def _arguments(name):
    """Entry, arguments and grid of a Triton sample."""
    kind = np.float16 if name.endswith("fp16") else np.float32

    def noise(*shape):  # equal values would make overlapping writes benign
        return RNG.standard_normal(shape).astype(kind)

    if name == "softmax_row":
        return name, [noise(2, 300), np.zeros((2, 300), kind), 300], (2, 1, 1)
    if name.startswith("dot"):
        out = np.zeros((32, 32), np.float32)
        return (
            "matrix_product",
            [noise(32, 96), noise(96, 32), out, 96],
            (1, 1, 1),
        )
    out = np.zeros((100, 32), np.float32)
    return "causal_attention", [*noise(3, 100, 32), out, 100, 0.2], (2, 1, 1)


# name -> the barriers that may go. The first barrier of the pipelined kernels lies between the
# prefetches of two stages, which are different memory and not read before the next barrier. The
# last one of dot_fp32 precedes code without shared memory. In the epilogue of attention_fp16
# (number 3) each warp overwrites only those 512-byte pieces that its own copies had filled.
REDUNDANT = {
    "softmax_row": [],
    "dot_fp16": [0],
    "dot_fp32": [0, 3],
    "attention_fp16": [0, 3],
}


@pytest.mark.parametrize("name", REDUNDANT)
def test_deleted_barriers_of_triton(triton_kernels, name):
    sample = triton_kernels[name]
    entry, args, grid = _arguments(name)
    silent = survivors(
        sample["ptx"], entry, lambda text: run_triton(sample | {"ptx": text}, args, grid)
    )
    assert len(silent) >= 4
    assert [i for i, survived in enumerate(silent) if survived] == REDUNDANT[name]


def test_dropped_masks_of_triton(triton_kernels):
    sample = triton_kernels["vector_add"]
    masks = list(re.finditer(r"@%p\d+ (?=(?:ld|st)\.global)", sample["ptx"]))
    assert len(masks) >= 3
    for found in masks:
        text = sample["ptx"][: found.start()] + sample["ptx"][found.end() :]
        args = [np.zeros(520, np.float32) for _ in range(3)]
        with pytest.raises(PTXError, match="out of bounds .* after the end of buffer"):
            run_triton(sample | {"ptx": text}, [*args, 520], grid=(3, 1, 1))
