"""Data-parallel training under torchrun, in as few words as it takes.

Every process draws its own part of a step from a stream of its own, which follows from the seed of
the run and the rank. So the data of a run depend on the number of processes, not only on the size
of the whole batch; one process that draws from the same streams in turn repeats them. The first
stream is that of a run in one process.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

# Odd, so that no two ranks agree in the lowest 32 bits, which are all that the CPU's generator
# takes of a seed; large, so that the streams of seeds 0, 1, 2 ... do not meet.
STREAM_STEP = 0x9E3779B97F4A7C15


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def stream(seed: int, rank: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Where the process of this rank draws its data from."""
    return torch.Generator(device).manual_seed((seed + rank * STREAM_STEP) % 2**63)


@contextmanager
def joined(device: torch.device) -> Iterator[None]:
    """Joins the group torchrun has announced, if any. What is on a GPU goes from GPU to GPU; what
    the hosts have to tell each other does not wait for them."""
    if "RANK" not in os.environ or int(os.environ["WORLD_SIZE"]) == 1:
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


def broadcast(tensors: list[Tensor]) -> None:
    """Rank 0's values everywhere."""
    if dist.is_initialized():
        for x in tensors:
            dist.broadcast(x, 0)


def reduce(gradients: list[Tensor], loss: Tensor) -> Tensor:
    """Gradients become their mean over processes, and so does the loss that is returned. One
    message for all."""
    if not dist.is_initialized():
        return loss
    both = (*gradients, loss.detach().view(1))
    flat = torch.cat([x.flatten() for x in both])
    dist.all_reduce(flat)
    flat /= world_size()
    *parts, mean = flat.split([x.numel() for x in both])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
    return mean.squeeze(0).clone()  # who keeps the loss should not keep all gradients


def gather(x: Tensor) -> Tensor:
    """[world size, ...]: everyone's x, a tensor on the CPU of the same shape everywhere."""
    if not dist.is_initialized():
        return x[None]
    everyone = [torch.empty_like(x) for _ in range(world_size())]
    dist.all_gather(everyone, x)
    return torch.stack(everyone)


def agree(x: bool) -> bool:
    """Whether it is so in any process. The hosts wait for each other; no device is asked."""
    if not dist.is_initialized():
        return x
    votes = torch.tensor(float(x))
    dist.all_reduce(votes)
    return bool(votes > 0)


class Agreement:
    """Whether any process wants to stop. All must stop after the same step, or one would wait for
    another for ever. The hosts ask each other while the step is computed and hear the answer in
    the next one: nobody waits for it, and no device is asked."""

    def __init__(self):
        self.asked: tuple[Tensor, dist.Work] | None = None

    def any(self, wish: bool) -> bool:
        """Of several processes: what any of them wished the last time."""
        if not dist.is_initialized():
            return wish
        answer = self.answer()
        wishes = torch.tensor(float(wish))
        self.asked = wishes, dist.all_reduce(wishes, async_op=True)
        return answer

    def answer(self) -> bool:
        """To what was asked last; once, and before the processes part."""
        if self.asked is None:
            return False
        wishes, work = self.asked
        self.asked = None
        work.wait()
        return bool(wishes > 0)


def wait() -> None:
    if dist.is_initialized():
        dist.barrier()
