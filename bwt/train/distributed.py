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

from bwt.train.weights import copy_or_zero

BUCKET = 1 << 19  # gradients in a message: few messages, and the first leaves early


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def announced() -> bool:
    """Whether torchrun has started several processes."""
    return "RANK" in os.environ and int(os.environ["WORLD_SIZE"]) > 1


@contextmanager
def joined(device: torch.device) -> Iterator[None]:
    """Joins the group torchrun has announced, if any. What is on a GPU goes from GPU to GPU; what
    the hosts have to tell each other does not wait for them."""
    if not announced():
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


class Buckets:
    """Gradients become their mean over processes: a message for each bucket of parameters, sent as
    soon as backward has filled it, while it goes on with the next. They are summed in float32."""

    def __init__(self, parameters: dict[str, Tensor]):
        backwards = list(parameters.items())[::-1]  # as backward comes by
        self.buckets = [_Bucket(dict(part)) for part in _parts(backwards)]
        self.gradients = {name: x for bucket in self.buckets for name, x in bucket.views.items()}
        self.loss: tuple[Tensor, dist.Work] | None = None

    def announce(self, loss: Tensor) -> None:
        """Before backward."""
        message = loss.detach().clone()
        self.loss = message, dist.all_reduce(message, async_op=True)

    def mean(self) -> Tensor:
        """After backward: that of the loss; `gradients` are the means now."""
        for bucket in self.buckets:
            bucket.finish()
        assert self.loss is not None  # it was announced
        message, work = self.loss
        work.wait()
        return message / world_size()


class _Bucket:
    def __init__(self, parameters: dict[str, Tensor]):
        self.parameters = list(parameters.values())
        sizes = [p.numel() for p in self.parameters]
        self.message = torch.zeros(sum(sizes), device=self.parameters[0].device)
        self.views = {
            name: part.view(p.shape)
            for (name, p), part in zip(parameters.items(), self.message.split(sizes), strict=True)
        }
        self.filled, self.work = 0, None
        for p in self.parameters:
            p.register_post_accumulate_grad_hook(self._add)

    def _add(self, parameter: Tensor) -> None:
        """A parameter has its gradient."""
        self.filled += 1
        if self.filled == len(self.parameters):
            self._send()

    def _send(self) -> None:
        """Those without a gradient send zeros, as another process may have one."""
        gradients = [p.grad for p in self.parameters]
        if any(g is not None for g in gradients):
            copy_or_zero(list(self.views.values()), gradients)
        else:
            self.message.zero_()
        self.work = dist.all_reduce(self.message, async_op=True)

    def finish(self) -> None:
        if self.work is None:
            self._send()
        assert self.work is not None
        self.work.wait()
        self.filled, self.work = 0, None
        self.message /= world_size()


def _parts(parameters: list[tuple[str, Tensor]]) -> Iterator[list[tuple[str, Tensor]]]:
    part: list[tuple[str, Tensor]] = []
    for named in parameters:
        part.append(named)
        if sum(p.numel() for _, p in part) >= BUCKET:
            yield part
            part = []
    if part:
        yield part


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

    def __init__(self) -> None:
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
