"""A GPU that does nothing and takes time for it: work is queued and runs in order, while the host's
own clock goes on. What the benchmarks would see of a real one, to the microsecond."""

import time
from types import SimpleNamespace

import torch

# What nvidia-smi says of one.
SMI = "NVIDIA A100-SXM4-80GB, 575.1, 81920, 81000, 1200, 1410, 1593, 400.00, 31, 8.0\n"
US = 1e-6


class FakeGpu:
    """`kernel(...)` makes calls that take so long: in the device's memory or in its cache."""

    def __init__(self, device="cuda", name="NVIDIA A100-SXM4-80GB"):
        self.device, self.name = device, name
        self.host = 0.0  # seconds
        self.free_at = 0.0  # when the device has done all that is queued
        self.cached = None  # the call whose data is in the L2 cache
        self.flushes = 0

    def queue(self, seconds, launch=5 * US):
        self.host += launch
        self.free_at = max(self.free_at, self.host) + seconds

    def kernel(self, warm, cold, result=None, launch=5 * US):
        def call():
            self.queue(warm if self.cached is call else cold, launch)
            self.cached = call
            return result

        return call

    def flush(self):
        self.flushes += 1
        self.cached = None
        self.queue(200 * US)

    def event(self):
        def record():
            # Reached when everything queued before is done, or at once on an idle device.
            found.time = max(self.free_at, self.host)

        found = SimpleNamespace(record=record)
        found.elapsed_time = lambda end: (end.time - found.time) * 1e3
        return found

    def synchronize(self):
        self.host = max(self.host, self.free_at)

    def now(self):
        return self.host

    def peak_bytes(self, call):
        call()
        return 12_000_000


class CpuAsGpu:
    """The CPU in the place of a GPU: calls run for real, and their times are the host's."""

    name = "NVIDIA B200"

    def __init__(self, device="cpu"):
        self.buffer = torch.empty(1 << 20, dtype=torch.int8)

    def event(self):
        found = SimpleNamespace(time=0.0)
        found.record = lambda: setattr(found, "time", time.perf_counter())
        found.elapsed_time = lambda end: (end.time - found.time) * 1e3
        return found

    def flush(self):
        self.buffer.zero_()

    def synchronize(self):
        pass

    def now(self):
        return time.perf_counter()
