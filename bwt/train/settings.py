"""The settings of torch that hold for a whole process."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from bwt.runs.config import TrainConfig
from bwt.threads import cpu_limit

# Of a training step. With less work another thread costs more than it gains: one thread is the
# fastest for the quick presets (1.5e9 to 4.4e9), all are at the paper's size (7.6e10).
FLOPS_PER_THREAD = 2.5e9


@contextmanager
def torch_settings(config: TrainConfig) -> Iterator[None]:
    """Apply the run's matmul precision, and restore the caller's settings afterwards."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high" if config.precision == "tf32" else "highest")
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)


def set_threads(wanted: int, flops: float) -> int:
    """Set the number of threads of a run whose steps take so many floating-point operations: the
    wanted one, or where that is 0 as many as the step has work for and this process may use."""
    available = min(torch.get_num_threads(), cpu_limit())
    threads = wanted or max(1, min(available, int(flops / FLOPS_PER_THREAD)))
    torch.set_num_threads(threads)
    return threads
