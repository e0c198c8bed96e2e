"""How long a call takes, and the limits of the machine to hold that against."""

import ctypes
import gc
import math
import os
import re
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch

Call = Callable[[], Any]
Clock = Callable[[Call, int], float]

FEWEST_SAMPLES = 3
UNKNOWN_CACHE = 64 << 20  # bytes, where the system does not tell


class Pace(NamedTuple):
    shortest: float  # seconds of a sample; below that the clock and the loop around the call show
    warm_up: float  # seconds


CPU = Pace(1e-3, 0.02)
COLD = Pace(0.0, 0.0)  # one call for each sample, and none before it
GPU = Pace(0.0, 0.0)  # events are exact for a single call, and each is warmed up by another


class Plan(NamedTuple):
    loops: int  # calls per sample
    samples: int
    warm: bool  # whether a call that is not timed comes before


class Quantiles(NamedTuple):
    p20: float
    median: float
    p80: float


def cpu_count() -> int:
    """CPUs this process may use, which in a container is often fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def interleaved(
    calls: dict[str, Call],
    clock: Clock,
    repeats: int,
    seconds: float,
    pace: Pace = CPU,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, list[float]]:
    """Seconds per call by `clock(call, loops)`; what comes next is said between samples.

    Samples go round the calls, so that other load on the machine hits all alike; a call too slow
    for `repeats` samples in `seconds` gets fewer, spread over the run. A sample begins with a call
    that is not timed: the one after another provider's finds its memory out of the cache, which
    would be held against slow providers, of few calls per sample, only.
    """
    plans = {}
    for name, call in calls.items():
        say(f"warming up {name}")
        plans[name] = plan(call, clock, repeats, seconds, pace)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    with _no_garbage_collection():
        for turn in range(repeats):
            for name, call in calls.items():
                loops, wanted, warm = plans[name]
                if (turn + 1) * wanted // repeats > turn * wanted // repeats:
                    say(f"timing {name}, round {turn + 1} of {repeats}")
                    if warm:
                        call()
                    samples[name].append(clock(call, loops))
    return samples


def quantiles(samples: list[float]) -> Quantiles:
    return Quantiles(*(float(x) for x in np.quantile(samples, [0.2, 0.5, 0.8])))


def plan(
    call: Call,
    clock: Clock,
    repeats: int,
    seconds: float,
    pace: Pace = CPU,
    fewest: int = FEWEST_SAMPLES,
) -> Plan:
    estimate = spent = clock(call, 1)
    while spent < pace.warm_up:
        # The shortest call is warm and was not interrupted.
        latest = clock(call, 1)
        estimate = min(estimate, latest)
        spent += max(latest, 1e-6)
    loops = max(1, math.ceil(pace.shortest / max(estimate, 1e-9)))
    affordable = int(seconds / max(estimate * loops, 1e-9))
    # What takes longer than that has warmed itself up by its end.
    warm = estimate < pace.warm_up
    return Plan(loops, min(repeats, max(fewest, affordable)), warm)


def cpu_seconds(call: Call, loops: int) -> float:
    start = perf_counter()
    for _ in range(loops):
        call()
    return (perf_counter() - start) / loops


def cold_clock(evict: Call) -> Clock:
    """A clock that calls `evict` before each call, and does not count it."""

    def seconds(call: Call, loops: int) -> float:
        total = 0.0
        for _ in range(loops):
            evict()
            total += cpu_seconds(call, 1)
        return total / loops

    return seconds


def evictor() -> Call:
    """Leaves nothing of a call in the CPU's caches: writes twice as much as the last one holds."""
    return torch.empty(2 * last_level_bytes(), dtype=torch.int8).zero_


def last_level_bytes(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    factors = {"K": 1 << 10, "M": 1 << 20}
    texts = [path.read_text().strip() for path in folder.glob("index*/size")]
    sizes = [int(text[:-1]) * factors[text[-1]] for text in texts if text[-1:] in factors]
    return max(sizes, default=UNKNOWN_CACHE)


@contextmanager
def _no_garbage_collection():
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def pinned_threads(threads: int):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fix_allocator(pages: str) -> str:
    """Ends glibc's guessing, for good, between the heap and fresh pages for outputs of megabytes:
    it changes its mind within a run, and page faults cost more than the writing. "warm": freed
    memory is kept and used again, up to 32 MB a block; "fresh": each block gets new pages.
    Returns what is in force."""
    trim_threshold, mmap_threshold = -1, -3  # malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return "system"
    kept = (1 << 30, 32 << 20) if pages == "warm" else (128 << 10, 128 << 10)
    set_both = mallopt(trim_threshold, kept[0]) and mallopt(mmap_threshold, kept[1])
    return pages if set_both else "system"


def peak_bytes(call: Call) -> int | None:
    """Memory of the host that a call needs on top of what is held before it; None where it cannot
    be measured."""
    try:
        # Blocks that malloc keeps for reuse would hide the call's own; then reset the high mark.
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError):
        return None
    held = _process_bytes("VmRSS")
    call()
    return max(0, _process_bytes("VmHWM") - held)


def _process_bytes(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+) kB", status)[1]) * 1024


def write_call(shapes: list[tuple[int, ...]], dtype: torch.dtype, device: str) -> Call:
    """Writes constants to new tensors: the time any op with these outputs must take. They are
    allocated anew on each call, as an op's outputs are."""
    return lambda: [torch.full(shape, 0.5, dtype=dtype, device=device) for shape in shapes]


def gemm_call(device: str, size: int = 1024) -> tuple[Call, int]:
    """A square float32 product, the fastest arithmetic at hand, and how many operations it has."""
    left, right = (torch.ones(size, size, device=device) for _ in range(2))
    out = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=out), 2 * size**3
