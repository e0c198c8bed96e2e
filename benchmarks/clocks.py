"""Time on a GPU, by its own events, with the L2 cache warm or cold.

A call is timed while the device is still busy with what was queued before it (emptying the cache
takes longer than queueing a kernel), so that its time is the device's and not that of the Python
around it; the latter is `host_seconds`, the launch latency. A call of many small kernels is slower
to queue than to run: then both are the host's.
"""

from statistics import median
from time import perf_counter

import torch
from timing import Call, Pace

LEAST_FLUSH = 64 << 20  # bytes; small caches would be emptied faster than a kernel is queued
KERNEL_SAMPLES = 15
HOST_SAMPLES = 20
PACE = Pace(0.0, 0.0)  # events are exact for a single call, and each is warmed up by another


class Gpu:
    """A CUDA device as the benchmarks see it; tests put another in its place."""

    def __init__(self, device: str = "cuda"):
        self.device = device
        self.buffer = None

    @property
    def name(self) -> str:
        return torch.cuda.get_device_name(self.device)

    @property
    def l2_bytes(self) -> int:
        return torch.cuda.get_device_properties(self.device).L2_cache_size

    def event(self):
        return torch.cuda.Event(enable_timing=True)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def now(self) -> float:
        return perf_counter()

    def flush(self) -> None:
        """Leaves nothing of a call in the L2 cache: writes twice as much as it holds."""
        if self.buffer is None:
            size = max(LEAST_FLUSH, 2 * self.l2_bytes)
            self.buffer = torch.empty(size, dtype=torch.int8, device=self.device)
        self.buffer.zero_()

    def peak_bytes(self, call: Call) -> int:
        """Memory a call needs on top of what is held before it."""
        self.synchronize()
        torch.cuda.reset_peak_memory_stats(self.device)
        held = torch.cuda.memory_allocated(self.device)
        call()
        self.synchronize()
        return torch.cuda.max_memory_allocated(self.device) - held


def cold_seconds(gpu: Gpu, call: Call, loops: int = 1) -> float:
    """Mean over `loops` calls, each after the cache has been emptied."""
    return _seconds(gpu, loops, gpu.flush, call)


def warm_seconds(gpu: Gpu, call: Call, loops: int = 1) -> float:
    """Mean over `loops` calls, each right after the same call."""

    def before():
        gpu.flush()  # only to keep the device busy
        call()

    return _seconds(gpu, loops, before, call)


def _seconds(gpu: Gpu, loops: int, before, call: Call) -> float:
    pairs = [(gpu.event(), gpu.event()) for _ in range(loops)]
    gpu.synchronize()
    for start, end in pairs:
        before()
        start.record()
        call()
        end.record()
    gpu.synchronize()
    return sum(start.elapsed_time(end) for start, end in pairs) / 1e3 / loops


def host_seconds(gpu: Gpu, call: Call) -> float:
    """From a call to its return, the device having nothing to do before: the launch latency."""
    call()
    times = []
    for _ in range(HOST_SAMPLES):
        gpu.synchronize()
        start = gpu.now()
        call()
        times.append(gpu.now() - start)
    gpu.synchronize()
    return median(times)


def kernel_seconds(gpu: Gpu, call: Call) -> float:
    """The median of some calls with a cold cache."""
    call()
    return median(cold_seconds(gpu, call) for _ in range(KERNEL_SAMPLES))
