"""How long a call takes on a GPU, by the device's own events.

A call is timed while the device is still busy with what was queued before it (emptying the cache
takes longer than queueing a kernel), so that its time is the device's and not that of the Python
around it. A call of many small kernels is slower to queue than to run: then it is the host's.
"""

from collections.abc import Callable
from statistics import median
from typing import Any

import torch

Call = Callable[[], Any]

LEAST_FLUSH = 64 << 20  # bytes; small caches would be emptied faster than a kernel is queued
SAMPLES = 15


class Gpu:
    """A CUDA device as the clocks see it; tests put another in its place."""

    def __init__(self, device: str = "cuda"):
        self.device = device
        self.buffer: torch.Tensor | None = None

    @property
    def l2_bytes(self) -> int:
        return torch.cuda.get_device_properties(self.device).L2_cache_size

    def event(self) -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def flush(self) -> None:
        """Leaves nothing of a call in the L2 cache: writes twice as much as it holds."""
        if self.buffer is None:
            size = max(LEAST_FLUSH, 2 * self.l2_bytes)
            self.buffer = torch.empty(size, dtype=torch.int8, device=self.device)
        self.buffer.zero_()


def seconds_after(gpu: Gpu, before: Call, call: Call, loops: int = 1) -> float:
    """Mean over `loops` calls, each after `before()`, which keeps the device busy."""
    pairs = [(gpu.event(), gpu.event()) for _ in range(loops)]
    gpu.synchronize()
    for start, end in pairs:
        before()
        start.record()
        call()
        end.record()
    gpu.synchronize()
    return sum(start.elapsed_time(end) for start, end in pairs) / 1e3 / loops


def cold_seconds(gpu: Gpu, call: Call, loops: int = 1) -> float:
    """Mean over `loops` calls, each after the cache has been emptied."""
    return seconds_after(gpu, gpu.flush, call, loops)


def kernel_seconds(gpu: Gpu, call: Call) -> float:
    """The median of some calls with a cold cache."""
    call()
    return median(cold_seconds(gpu, call) for _ in range(SAMPLES))
