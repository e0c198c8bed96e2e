"""Shared memory of the running blocks, with a race detector.

Every granule (the smallest access of the kernel) remembers which warp wrote, read or updated it
since the last barrier of its block. Two warps that touch a granule between barriers, one of
them with a plain write, are a race, in whatever order they were executed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .errors import PTXError
from .stats import Stats

NOBODY = -1
SEVERAL = -2


@dataclass(frozen=True)
class Access:
    """The addresses of the active lanes of one instruction."""

    offset: np.ndarray  # from the start of the block's shared memory
    place: np.ndarray  # in the data of all blocks
    block: np.ndarray
    warp: np.ndarray
    size: int

    def select(self, lanes: np.ndarray) -> Access:
        parts = (self.offset, self.place, self.block, self.warp)
        return Access(*(part[lanes] for part in parts), self.size)


class SharedMemory:
    """The bytes of all blocks of a batch, side by side, and the shadow of every granule."""

    def __init__(self, blocks: int, size: int, granule: int, stats: Stats, strict: bool):
        self.size = size
        self.stride = -(-size // 16) * 16
        self.granule = granule
        self.stats = stats
        self.strict = strict
        self.data = np.zeros(blocks * self.stride, np.uint8)
        count = self.data.size // granule
        self.writer = np.full(count, NOBODY, np.int8)
        self.reader = np.full(count, NOBODY, np.int8)
        self.updater = np.full(count, NOBODY, np.int8)
        self.written = np.zeros(count, bool)
        self.in_flight = np.zeros(count, bool)  # cp.async that was not waited for
        self.block_indices = np.zeros((blocks, 3), np.int64)
        self._views: dict[np.dtype, np.ndarray] = {}

    def reset(self, block_indices: np.ndarray) -> None:
        """Forget everything, for the next batch of blocks."""
        self.block_indices = block_indices
        for shadow in (self.writer, self.reader, self.updater):
            shadow[:] = NOBODY
        self.data[:] = 0xFF  # NaN as a float, so that stale values do not pass for zeros
        self.written[:] = False
        self.in_flight[:] = False

    def pass_barrier(self, block: int) -> None:
        """All earlier accesses of the block are ordered before all later ones."""
        per_block = self.stride // self.granule
        span = slice(block * per_block, (block + 1) * per_block)
        for shadow in (self.writer, self.reader, self.updater):
            shadow[span] = NOBODY

    def load(self, access: Access, dtype: np.dtype, count: int) -> list[np.ndarray]:
        granules = self._granules("load", access)
        self._check_written("read of", granules, access)
        self._check("read after write", self.writer, granules, access)
        self._check("read after atomic", self.updater, granules, access)
        _mark(self.reader, granules, access.warp)
        index = access.place // dtype.itemsize
        return [self._view(dtype)[index + i] for i in range(count)]

    def store(self, access: Access, values: list[np.ndarray]) -> None:
        dtype, view = values[0].dtype, self._view(values[0].dtype)
        granules = self._granules("store", access)
        index = access.place // dtype.itemsize
        before = [view[index + i] for i in range(len(values))]
        others = self.writer[granules]
        overlap = (others != NOBODY) & (others != access.warp)
        for i, value in enumerate(values):
            view[index + i] = value
        self._check("write after read", self.reader, granules, access)
        self._check("write after atomic", self.updater, granules, access)
        self.writer[granules] = access.warp
        # Warps that wrote in this very instruction overwrote each other's mark.
        lost = self.writer[granules] != access.warp
        if overlap.any() or lost.any():
            after = [view[index + i] for i in range(len(values))]
            changed = _differs(before, values) & overlap.any(axis=0)
            changed |= _differs(after, values) & lost.any(axis=0)
            self._write_conflict(access, changed)
            self.writer[granules[overlap | lost]] = SEVERAL
        self.written[granules] = True

    def begin_copy(self, access: Access) -> None:
        """A cp.async may write from now on, until it is waited for."""
        granules = self._granules("cp.async", access)
        self._check("write after read", self.reader, granules, access)
        self._check("write after write", self.writer, granules, access)
        self._check("write after atomic", self.updater, granules, access)
        self.in_flight[granules] = True

    def finish_copy(self, access: Access, values: list[np.ndarray]) -> None:
        self.in_flight[self._raw_granules(access)] = False
        self.store(access, values)

    def update(self, access: Access, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
        """Prepare an atomic operation: the view and the index of each lane."""
        granules = self._granules("atomic", access)
        self._check_written("atomic on", granules, access)
        self._check("atomic after write", self.writer, granules, access)
        self._check("atomic after read", self.reader, granules, access)
        _mark(self.updater, granules, access.warp)
        return self._view(dtype), access.place // dtype.itemsize

    def _view(self, dtype: np.dtype) -> np.ndarray:
        if dtype not in self._views:
            self._views[dtype] = self.data.view(dtype)
        return self._views[dtype]

    def _granules(self, what: str, access: Access) -> np.ndarray:
        """Shadow places [granules per access, lanes], after the checks of the addresses."""
        offset, size = access.offset, access.size
        outside = (offset < 0) | (offset + size > self.size)
        if outside.any():
            text = f"shared {what} out of bounds ({self.size} bytes of shared memory)"
            self._fail(text, access, outside[None])
        crooked = offset % size != 0
        if crooked.any():
            self._fail(f"misaligned shared {what}", access, crooked[None])
        granules = self._raw_granules(access)
        if self.in_flight.any() and self.in_flight[granules].any():
            text = f"shared {what} of cp.async data before the wait"
            self._fail(text, access, self.in_flight[granules])
        return granules

    def _raw_granules(self, access: Access) -> np.ndarray:
        first = access.place // self.granule
        return first + np.arange(access.size // self.granule)[:, None]

    def _check(self, what: str, shadow: np.ndarray, granules: np.ndarray, access: Access) -> None:
        owner = shadow[granules]
        conflict = (owner != NOBODY) & (owner != access.warp)
        if conflict.any():
            self._race(what, access, conflict)

    def _write_conflict(self, access: Access, changed: np.ndarray) -> None:
        if changed.any():
            self._race("write after write", access, changed[None])
        else:
            self.stats.benign_races += 1  # several warps wrote the same bytes

    def _check_written(self, what: str, granules: np.ndarray, access: Access) -> None:
        fresh = ~self.written[granules]
        if fresh.any():
            self._report(f"{what} uninitialised shared memory", access, fresh)

    def _race(self, what: str, access: Access, wrong: np.ndarray) -> None:
        self._report(f"race in shared memory, {what} without a barrier", access, wrong)

    def _report(self, text: str, access: Access, wrong: np.ndarray) -> None:
        """What depends on the order of warps is an error only in strict mode."""
        if self.strict:
            self._fail(text, access, wrong)
        self.stats.races.append(f"{text}, {self._describe(access, wrong)}")

    def _fail(self, text: str, access: Access, wrong: np.ndarray) -> None:
        raise PTXError(f"{text}, {self._describe(access, wrong)}")

    def _describe(self, access: Access, wrong: np.ndarray) -> str:
        """The first wrong lane; `wrong` is [granules, lanes]."""
        lane = int(np.flatnonzero(wrong.any(axis=0))[0])
        block = self.block_indices[access.block[lane]].tolist()
        return (
            f"shared address {int(access.offset[lane]):#x} ({access.size} bytes), "
            f"block {block}, warp {int(access.warp[lane])}"
        )


def _mark(shadow: np.ndarray, granules: np.ndarray, warp: np.ndarray) -> None:
    """Add the warps to the shadow, which tells one warp from several but not which several."""
    owner = shadow[granules]
    mixed = (owner != NOBODY) & (owner != warp)
    shadow[granules] = warp
    mixed |= shadow[granules] != warp
    if mixed.any():
        shadow[granules[mixed]] = SEVERAL


def _differs(left: list[np.ndarray], right: list[np.ndarray]) -> np.ndarray:
    """Per lane: whether any element has other bits."""
    size = left[0].dtype.itemsize
    pairs = zip(left, right, strict=True)
    return np.logical_or.reduce([a.view(f"u{size}") != b.view(f"u{size}") for a, b in pairs])
