"""Training that is paid for orthogonal keys, or for aligned ones: what do they cost in bits?

What is added to the loss is the mean squared cosine of the keys of different addresses, over layers
and heads, where the task says that attention has to tell them apart. The mean key of a sequence is
taken away first: softmax is blind to it, so that a penalty of plain cosines could be met by moving
what nobody sees, and a reward for them by making all keys large alike.
"""

from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from bwt import taps
from bwt.tasks import Batch, Task

KEYS = "blocks.*.attn.k"


class KeyPenalty:
    """
    Raises:
        ValueError: the task has no two addresses.
    """

    def __init__(self, task: Task, weight: float, device: torch.device | str = "cpu"):
        self.task, self.weight = task, weight
        # Moved once: a copy from the host would make each step wait.
        self.group = task.addresses[0].on(device)
        if len(self.group.at) < 2:
            raise ValueError(f"key_penalty: task {task.name} has no two {self.group.name}")

    def watching(self, model: nn.Module) -> AbstractContextManager[dict[str, Tensor]]:
        """The keys of the call inside the block."""
        return taps.capture(model, KEYS)

    def __call__(self, trace: dict[str, Tensor], batch: Batch) -> Tensor:
        apart = self.task.different_addresses(batch, self.group)
        layers = [squared_cosine(k[:, :, self.group.at].float(), apart) for k in trace.values()]
        return self.weight * torch.stack(layers).mean()


def squared_cosine(k: Tensor, apart: Tensor) -> Tensor:
    """Mean over heads and pairs [B, n, n] of the squared cosine of centred keys [B, H, n, D]."""
    unit = nn.functional.normalize(k - k.mean(2, keepdim=True), dim=-1)
    squares = (unit @ unit.transpose(-1, -2)).square() * apart[:, None]
    return squares.sum() / (apart.sum() * k.shape[1]).clamp_min(1)
