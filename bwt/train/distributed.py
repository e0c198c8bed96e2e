"""Data-parallel training under torchrun.

Each process draws its part of a step from a random stream of its own, which follows from the seed
of the run and the rank. So the data depend on the number of processes, not only on the total batch.

Gradients are exchanged in one message after backward. The models here are small: torch's
DistributedDataParallel would hide less than a millisecond, and sum bfloat16 in bfloat16.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def under_torchrun() -> bool:
    """Return whether torchrun has started several processes."""
    return "RANK" in os.environ and int(os.environ["WORLD_SIZE"]) > 1


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Join the processes that torchrun has started, if any. Tensors of GPUs are exchanged by NCCL,
    those of hosts by gloo."""
    if not under_torchrun():
        yield
        return
    if device.type == "cuda":
        dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def broadcast(weights: Sequence[Tensor]) -> None:
    """Give all processes the weights of rank 0."""
    if world_size() > 1:
        for x in weights:
            dist.broadcast(x.detach(), 0)


def mean_gradients(weights: Sequence[Tensor]) -> None:
    """Replace the gradients of float32 weights by their means over all processes, in one message.
    A process without a gradient, where another may have one, sends zeros."""
    if world_size() == 1:
        return
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in weights]
    message = mean(torch.cat([g.flatten() for g in gradients]))
    for p, part in zip(weights, message.split([p.numel() for p in weights]), strict=True):
        p.grad = part.view_as(p)


def mean(x: Tensor) -> Tensor:
    """Replace a tensor by its mean over all processes, and return it."""
    if world_size() > 1:
        dist.all_reduce(x)
        x /= world_size()
    return x


def gather(x: Tensor) -> Tensor:
    """Return all processes' x [world size, ...], a CPU tensor of the same shape in each of them."""
    if world_size() == 1:
        return x[None]
    everyone = [torch.empty_like(x) for _ in range(world_size())]
    dist.all_gather(everyone, x)
    return torch.stack(everyone)


def any_rank(x: bool) -> bool:
    """Return whether x holds in any process. The hosts wait for each other, not for a device."""
    if world_size() == 1:
        return x
    votes = torch.tensor(float(x))
    dist.all_reduce(votes)
    return bool(votes > 0)


def barrier() -> None:
    if world_size() > 1:
        dist.barrier()
