"""Where a run is computed."""

import os
import re

import torch


def local_device(name: str) -> torch.device:
    """`auto` is a GPU if there is one; under torchrun `cuda` is this process's own. A GPU becomes
    the current one, which kernels are launched on.

    Raises:
        ValueError: there is no such device for this process.
    """
    available = torch.cuda.is_available()
    if name == "auto":
        name = "cuda" if available else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"device must be auto, cpu or cuda, got {name!r}")
    if name == "cpu":
        return torch.device("cpu")
    if not available:
        raise ValueError(f"device {name}: torch sees no CUDA device on this machine")
    device = _own_gpu(name)
    torch.cuda.set_device(device)
    return device


def _own_gpu(name: str) -> torch.device:
    count = torch.cuda.device_count()
    sees = f"torch sees {count} GPU" + ("s" if count > 1 else "")
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if name != "cuda":
        index = int(name.removeprefix("cuda:"))
        if processes > 1:
            raise ValueError(
                f"device {name}: the {processes} processes of this machine cannot share a GPU; "
                "say cuda, and each takes its own"
            )
        if index >= count:
            raise ValueError(f"device {name}: {sees} on this machine, counted from 0")
        return torch.device("cuda", index)
    index = int(os.environ.get("LOCAL_RANK", 0))
    if index >= count:
        raise ValueError(
            f"device cuda: process {index + 1} of {max(processes, index + 1)} on this machine has "
            f"no GPU of its own ({sees}); use torchrun --nproc-per-node {count}, or --device cpu"
        )
    return torch.device("cuda", index)
