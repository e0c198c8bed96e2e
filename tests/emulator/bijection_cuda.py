"""The CUDA kernels of bijection_posterior as sm_80 PTX, executed without a GPU."""

import struct

import numpy as np
from helpers import ROOT
from helpers.nvcc import ptx
from helpers.subset_lattice import SubsetLattice

from bwt.reference.bijection_posterior import BijectionPosterior
from emulator.ptx import Memory, launch

SOURCE = ROOT / "tests/emulator/cuda/bijection_posterior.cu"
NO_FAULT = 0x7F7F7F7F7F7F7F7F
LETTER = {np.float32: "f", np.float64: "d"}


class Batch:
    """Device memory of one call."""

    def __init__(self, keys, values, num_symbols, out):
        self.memory = Memory()
        self.shape = keys.shape
        self.num_symbols = num_symbols
        self.keys = self.memory.add(np.ascontiguousarray(keys, np.int64))
        self.values = self.memory.add(np.ascontiguousarray(values, np.int64))
        shapes = [(*self.shape, num_symbols), self.shape, self.shape]
        self.outputs = [np.full(shape, 77, out) for shape in shapes]
        self.writer = [self.memory.add(array) for array in self.outputs]
        self.fault = np.full(1, NO_FAULT, np.int64)
        self.fault_address = self.memory.add(self.fault)

    def result(self):
        return BijectionPosterior(*self.outputs)


def run_noiseless(keys, values, num_symbols, out=np.float32, warps=2, blocks=2, timed=False):
    batch = Batch(keys, values, num_symbols, out)
    packed = struct.pack(
        "<QQqqi4xQQQQ",
        batch.keys,
        batch.values,
        *batch.shape,
        num_symbols,
        *batch.writer,
        batch.fault_address,
    )
    stats = launch(
        ptx(SOURCE),
        batch.memory,
        [packed],
        grid=(blocks, 1, 1),
        block=(32 * warps, 1, 1),
        shared_bytes=8 * num_symbols * warps,
        kernel=f"noiseless_kernelI{LETTER[out]}E",
        timed=timed,
    )
    return batch.result(), int(batch.fault[0]), stats


def shared_bytes(num_symbols, warps, in_shared, wide=False, adjoints=False, lattice=None):
    """Of a block: of its scratch, and of the levels if they are there."""
    real = 16 if wide else 8
    scratch = num_symbols * ((num_symbols + 3) * real + 3 * 8 + (num_symbols + 3) * 4)
    scratch = (scratch + 15) // 16 * 16 + (warps * num_symbols + 1) // 2 * 2 * real
    lattice = lattice or SubsetLattice(num_symbols)
    return scratch + (lattice.numbers(warps, adjoints) * real if in_shared else 0)


def noisy_arguments(batch, channel, *, wide, in_shared, adjoints, blocks, threads, lattice):
    """The NoisyBatch argument, and the shared memory of the launch."""
    memory, num_symbols = batch.memory, batch.num_symbols
    lattice = lattice or SubsetLattice(num_symbols)
    warps = threads // 32
    real = 16 if wide else 8
    capacity = 1 << num_symbols if adjoints else lattice.capacity(warps)
    numbers = lattice.numbers(warps, adjoints)
    workspace = 0 if in_shared else memory.add(np.full(blocks * numbers * real, 0xA5, np.uint8))
    packed = struct.pack(
        "<QQqqQ32siiQQQ",
        batch.keys,
        batch.values,
        *batch.shape,
        memory.add(np.ascontiguousarray(channel)),
        lattice.pack(memory),
        capacity,
        numbers,
        workspace,
        batch.fault_address,
        memory.add(np.array([wide], np.int32)),
    )
    return packed, shared_bytes(num_symbols, warps, in_shared, wide, adjoints, lattice)


def run_noisy(
    keys,
    values,
    channel,
    out=np.float64,
    *,
    wide=False,
    in_shared=True,
    blocks=2,
    threads=64,
    lattice=None,
    seed=0,
    timed=False,
):
    batch = Batch(keys, values, len(channel), out)
    packed, shared = noisy_arguments(
        batch,
        channel,
        wide=wide,
        in_shared=in_shared,
        adjoints=False,
        blocks=blocks,
        threads=threads,
        lattice=lattice,
    )
    stats = launch(
        ptx(SOURCE),
        batch.memory,
        [packed, struct.pack("<QQQ", *batch.writer)],
        grid=(blocks, 1, 1),
        block=(threads, 1, 1),
        shared_bytes=shared,
        kernel=f"noisy_kernelI{'NS_4WideE' if wide else 'd'}{LETTER[out]}E",
        seed=seed,
        timed=timed,
    )
    return batch.result(), int(batch.fault[0]), stats


def run_gradient(
    keys, values, channel, weights, *, wide, in_shared=True, blocks=2, threads=64, lattice=None
):
    """d_channel; weights are the gradients of posterior, entropy and log_evidence."""
    batch = Batch(keys, values, len(channel), np.float64)
    packed, shared = noisy_arguments(
        batch,
        channel,
        wide=wide,
        in_shared=in_shared,
        adjoints=True,
        blocks=blocks,
        threads=threads,
        lattice=lattice,
    )
    later = np.ascontiguousarray(weights[2].astype(np.float64)[:, ::-1].cumsum(1)[:, ::-1])
    sums = np.zeros((blocks, *channel.shape))
    letter = LETTER[weights[0].dtype.type]
    arguments = [packed, *(batch.memory.add(x) for x in (weights[0], weights[1], later, sums))]
    stats = launch(
        ptx(SOURCE),
        batch.memory,
        arguments,
        grid=(blocks, 1, 1),
        block=(threads, 1, 1),
        shared_bytes=shared,
        kernel=f"channel_gradient_kernelI{'NS_4WideE' if wide else 'd'}{letter}E",
    )
    return sums.sum(0), stats
