"""Time on a GPU, by its own events, with the L2 cache warm or cold (see bwt/tuning/clocks.py), and
the launch latency: the time of the Python around a call."""

from statistics import median
from time import perf_counter

import torch
from timing import Call

from bwt.tuning import clocks
from bwt.tuning.clocks import cold_seconds, kernel_seconds

__all__ = ["Gpu", "cold_seconds", "host_seconds", "kernel_seconds", "warm_seconds"]

HOST_SAMPLES = 20


class Gpu(clocks.Gpu):
    """A CUDA device as the benchmarks see it; tests put another in its place."""

    @property
    def name(self) -> str:
        return torch.cuda.get_device_name(self.device)

    def now(self) -> float:
        return perf_counter()

    def peak_bytes(self, call: Call) -> int:
        """Memory a call needs on top of what is held before it."""
        self.synchronize()
        torch.cuda.reset_peak_memory_stats(self.device)
        held = torch.cuda.memory_allocated(self.device)
        call()
        self.synchronize()
        return torch.cuda.max_memory_allocated(self.device) - held


def warm_seconds(gpu: Gpu, call: Call, loops: int = 1) -> float:
    """Mean over `loops` calls, each right after the same call."""

    def before():
        gpu.flush()  # only to keep the device busy
        call()

    return clocks.seconds_after(gpu, before, call, loops)


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
