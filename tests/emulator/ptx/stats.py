"""What a launch counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

SECTOR = 32
BANK_BYTES = 128  # 32 banks of 4 bytes serve one wavefront


@dataclass
class Stats:
    """All counts are per warp, as a profiler reports them.

    The ideal number of sectors of a request is what its distinct bytes would need if they were
    contiguous; the ideal number of wavefronts is one per 128 bytes of a request's lanes.
    """

    instructions: int = 0
    program: int = 0  # instructions in the text of the kernel
    opcodes: Counter = field(default_factory=Counter)
    pipes: Counter = field(default_factory=Counter)  # of pipes.py
    operations: Counter = field(default_factory=Counter)  # in floating point, by pipe
    cycles_of_a_warp: int = 0  # of the longest, alone on a processor, if timed
    load_requests: int = 0
    load_sectors: int = 0
    load_sectors_ideal: int = 0
    store_requests: int = 0
    store_sectors: int = 0
    store_sectors_ideal: int = 0
    shared_requests: int = 0
    shared_wavefronts: int = 0
    shared_wavefronts_ideal: int = 0
    benign_races: int = 0
    races: list[str] = field(default_factory=list)
    exited_before_barrier: int = 0
    divergent_branches: int = 0
    steps: int = 0
    # While a launch is timed: the step that runs, [loads, loads of what its block has not loaded
    # before] by step, and what blocks have loaded.
    step: int | None = None
    loads: dict = field(default_factory=dict, repr=False)
    loaded: set = field(default_factory=set, repr=False)
    _known_patterns: dict = field(default_factory=dict, repr=False)

    def count_global(self, what: str, address: np.ndarray, warp: np.ndarray, size: int) -> None:
        """One `what` ("load" or "store") instruction of `size` bytes per lane."""
        key = _distinct(address + (warp << 48))
        distinct = np.bincount(key >> 48)
        sector = key >> 5
        sectors = 1 + np.count_nonzero(sector[1:] != sector[:-1])
        ideal = int((-(-distinct * size // SECTOR)).sum())
        self._add(what + "_requests", np.count_nonzero(distinct))
        self._add(what + "_sectors", sectors)
        self._add(what + "_sectors_ideal", ideal)

    def note_load(self, address: np.ndarray, block: np.ndarray) -> None:
        """Whether a load finds all it needs in the cache of its multiprocessor."""
        if self.step is None:
            return
        sectors = set(_distinct((block << 48) + (address >> 5)).tolist())
        counts = self.loads.setdefault(self.step, [0, 0])
        counts[0] += 1
        counts[1] += not sectors <= self.loaded
        self.loaded |= sectors

    def count_shared(self, address: np.ndarray, thread: np.ndarray, size: int) -> None:
        """One shared-memory instruction; `address` counts from the start of the lane's block."""
        pattern = (size, address.tobytes(), thread.tobytes())
        found = self._known_patterns.get(pattern)
        if found is None:
            if len(self._known_patterns) > 4096:
                self._known_patterns.clear()
            found = self._known_patterns[pattern] = _wavefronts(address, thread, size)
        self.shared_requests += found[0]
        self.shared_wavefronts += found[1]
        self.shared_wavefronts_ideal += found[2]

    def _add(self, name: str, amount: int) -> None:
        setattr(self, name, getattr(self, name) + int(amount))


def _distinct(keys: np.ndarray) -> np.ndarray:
    """Like np.unique, but faster for a few hundred numbers."""
    keys = np.sort(keys)
    first = np.ones(keys.size, bool)
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    return keys[first]


def _wavefronts(address: np.ndarray, thread: np.ndarray, size: int) -> tuple[int, int, int]:
    """Requests, wavefronts and ideal wavefronts.

    Lanes of 8 (16) bytes are served by half (quarter) warps; within such a phase every distinct
    slot of a bank group costs one wavefront.
    """
    width = max(size, 4)
    groups = BANK_BYTES // width
    phase = thread // groups
    slot = _distinct((phase << 32) | (address // width))
    busy = np.bincount((slot >> 32) * groups + (slot & 0xFFFFFFFF) % groups)
    busy = np.append(busy, np.zeros(-busy.size % groups, busy.dtype)).reshape(-1, groups)
    worst = busy.max(axis=1)
    requests = _distinct(thread >> 5).size
    return requests, int(worst.sum()), int(np.count_nonzero(worst))
