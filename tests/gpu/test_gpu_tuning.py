"""The GPU as `bwt tune` sees it: what it calls, times and reads."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")
from bwt.tuning import checks, clocks, device  # noqa: E402

pytestmark = pytest.mark.gpu


def test_a_kernel_is_checked_on_the_device():
    machine = device.machine()
    assert machine.device == "cuda" and ":" not in machine.arch
    calls = []

    def call(function, *tensors, **options):
        calls.append(function)
        return machine.call("bwt.kernels.selective_scan", function, *tensors, **options)

    checks.selective_scan(call, "fp32", (1, 5, 3, 4))
    assert calls == ["selective_scan_forward", "selective_scan_backward"]


def test_each_sample_comes_after_the_cache_was_emptied():
    happened = []
    x = torch.zeros(8, device="cuda")

    def run():
        happened.append("run")
        x.add_(1)

    class Watched(clocks.Gpu):
        def flush(self):
            happened.append("flush")
            super().flush()

    assert clocks.kernel_seconds(Watched(), run) >= 0
    assert x[0] == 1 + clocks.SAMPLES
    assert happened == ["run", *["flush", "run"] * clocks.SAMPLES]
