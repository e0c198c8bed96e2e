"""The settings of torch that hold for a whole process."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from bwt.runs.config import TrainConfig


@contextmanager
def torch_settings(config: TrainConfig) -> Iterator[None]:
    """Apply the run's thread count and matmul precision, and restore the caller's afterwards."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        if config.threads:
            torch.set_num_threads(config.threads)
        torch.set_float32_matmul_precision("high" if config.precision == "tf32" else "highest")
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
