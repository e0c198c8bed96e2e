"""Data-parallel training under torchrun, in as few words as it takes.

Every process draws its own part of a step from a stream of its own, which follows from the seed of
the run and the rank. So the data of a run depend on the number of processes, not only on the size
of the whole batch; one process that draws from the same streams in turn repeats them. The first
stream is that of a run in one process.
"""

import os
import re
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
    found = [torch.empty_like(x) for _ in range(world_size())]
    dist.all_gather(found, x)
    return torch.stack(found)


def agree(x: bool) -> bool:
    """Whether it is so in any process. The hosts wait for each other; no device is asked."""
    if not dist.is_initialized():
        return x
    found = torch.tensor(float(x))
    dist.all_reduce(found)
    return bool(found > 0)


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
