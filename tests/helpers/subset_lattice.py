"""The tables that the CUDA kernels of bijection_posterior read, made by enumeration."""

import struct
from math import comb

import numpy as np

NONE = 0xFFFF


class SubsetLattice:
    """Levels are sorted by bit mask, see csrc/cuda/bijection_posterior/lattice.cuh. A test may
    choose how many symbols are low ones, and how many warps share a high part."""

    def __init__(self, symbols, low=None, tiles=None):
        self.symbols = symbols
        self.low = min(symbols, 10 if low is None else low)
        self.tiles = tiles or (8 if symbols <= 13 else 2 if symbols <= 16 else 1)
        self.high = symbols - self.low
        self.begins = [_running(comb(n, size) for size in range(n + 1)) for n in self._numbers()]
        self.by_size = sum((_of_size(self.high, size) for size in range(self.high + 1)), [])
        self.starts = [_running(self._low_counts(size)) for size in range(symbols + 1)]
        low_sets = [_of_size(self.low, size) for size in range(self.low + 1)]
        around = zip([[], *low_sets], low_sets, [*low_sets[1:], []], strict=False)
        self.below, self.above = [], []
        for smaller, sets, larger in around:
            self.below += _below(sets, smaller, self.low)
            self.above += _above(sets, larger, self.low)

    def _low_counts(self, size):
        """How many subsets of a size there are with each high part."""
        rest = (size - high.bit_count() for high in range(1 << self.high))
        return (comb(self.low, n) if n >= 0 else 0 for n in rest)

    def _numbers(self):
        return self.symbols, self.low, self.high

    def capacity(self, warps):
        """What a level and the one that overwrites it take, when each warp has one tile at a time,
        from the last to the first."""
        tops = range(self.tiles << self.high, 0, -warps)
        return max(
            old[(top - 1) // self.tiles + 1] + new[-1] - new[max(top - warps, 0) // self.tiles]
            for old, new in zip(self.starts, self.starts[1:], strict=False)
            for top in tops
        )

    def numbers(self, warps, adjoints):
        """How many a block has: a high part may stand out of the ring; all levels, all adjoints."""
        if adjoints:
            return 2 << self.symbols
        return self.capacity(warps) + comb(self.low, self.low // 2)

    def pack(self, memory):
        """The Lattice argument."""
        numbers = np.array([*sum(self.begins, []), *self.by_size, *sum(self.starts, [])], np.int32)
        steps = np.array([*self.below, *self.above], np.uint16)
        pointers = memory.add(numbers), memory.add(steps)
        return struct.pack("<QQiii4x", *pointers, self.symbols, self.low, self.tiles)


def _of_size(symbols, size):
    return [s for s in range(1 << symbols) if s.bit_count() == size]


def _running(counts):
    return [0, *np.cumsum(list(counts)).tolist()]


def _below(sets, smaller, low):
    """[low, len(sets)]: each less its highest symbol, less its second highest, ..."""
    rank = {s: i for i, s in enumerate(smaller)}
    members = [[v for v in reversed(range(low)) if s >> v & 1] for s in sets]
    return [
        16 * rank[s & ~(1 << own[i])] + own[i] if i < len(own) else NONE
        for i in range(low)
        for s, own in zip(sets, members, strict=True)
    ]


def _above(sets, larger, low):
    """[low, len(sets)]: each with one symbol more."""
    rank = {s: i for i, s in enumerate(larger)}
    return [NONE if s >> v & 1 else rank[s | 1 << v] for v in range(low) for s in sets]
