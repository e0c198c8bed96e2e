"""Data-parallel training under torchrun, in as few words as it takes.

Every process draws the whole batch of a step from the same generator and works on its own part, so
that a run sees the same data however many processes share it.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


@contextmanager
def joined(device: torch.device) -> Iterator[None]:
    """Joins the group torchrun has announced, if any."""
    if "RANK" not in os.environ or int(os.environ["WORLD_SIZE"]) == 1:
        yield
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def local_device(name: str) -> torch.device:
    """`auto` is a GPU if there is one; under torchrun `cuda` is this process's own."""
    available = torch.cuda.is_available()
    if name == "auto":
        name = "cuda" if available else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"device must be auto, cpu or cuda, got {name!r}")
    if name != "cpu" and not available:
        raise ValueError(f"device {name}: torch sees no CUDA device on this machine")
    return torch.device(f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if name == "cuda" else name)


def broadcast(tensors: list[Tensor]) -> None:
    """Rank 0's values everywhere."""
    if dist.is_initialized():
        for x in tensors:
            dist.broadcast(x, 0)


def reduce(gradients: list[Tensor], *extra: Tensor) -> list[Tensor]:
    """Gradients become their mean over processes; `extra` scalars are returned summed. One
    message for all."""
    if not dist.is_initialized():
        return list(extra)
    flat = torch.cat([x.flatten() for x in (*gradients, *extra)])
    dist.all_reduce(flat)
    parts = flat.split([x.numel() for x in (*gradients, *extra)])
    for gradient, part in zip(gradients, parts, strict=False):
        gradient.copy_(part.view_as(gradient)).div_(world_size())
    return [part.squeeze(0) for part in parts[len(gradients) :]]


def part(batch: Tensor | None) -> Tensor | None:
    """This process's share of a tensor's first axis."""
    if batch is None or not dist.is_initialized():
        return batch
    return batch.chunk(world_size())[rank()]


def wait() -> None:
    if dist.is_initialized():
        dist.barrier()
