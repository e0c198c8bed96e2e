"""Auxiliary loss on key similarity: what do orthogonal or aligned keys cost in bits?

The loss is the mean squared cosine of the keys of different addresses, over layers and heads, where
the task says that attention has to tell them apart. The mean key of a sequence is subtracted first:
softmax does not depend on it, so that a model could satisfy a penalty on plain cosines by moving
the mean, and a bonus for them by making all keys large and alike.
"""

from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from bwt import taps
from bwt.tasks import Batch, Task

KEYS = "blocks.*.attn.k"


class KeyPenalty:
    """Hook of the training step that adds the key similarity, times a weight, to the loss."""

    def __init__(self, task: Task, weight: float, device: torch.device | str = "cpu"):
        """
        Raises:
            ValueError: the task has no two addresses.
        """
        self.task, self.weight = task, weight
        # Moved once: a copy from the host would make each step wait.
        self.group = task.addresses[0].on(device)
        if len(self.group.at) < 2:
            raise ValueError(f"key_penalty: task {task.name} has no two {self.group.name}")

    def capture_keys(self, model: nn.Module) -> AbstractContextManager[dict[str, Tensor]]:
        """Record the keys of the forward pass inside the context."""
        return taps.capture(model, KEYS)

    def __call__(self, keys: dict[str, Tensor], batch: Batch) -> Tensor:
        apart = self.task.different_addresses(batch, self.group)
        layers = [squared_cosine(k[:, :, self.group.at].float(), apart) for k in keys.values()]
        return self.weight * torch.stack(layers).mean()


def squared_cosine(k: Tensor, apart: Tensor) -> Tensor:
    """Return the mean squared cosine of centred keys [B, H, n, D] over heads and pairs."""
    unit = nn.functional.normalize(k - k.mean(2, keepdim=True), dim=-1)
    squares = (unit @ unit.transpose(-1, -2)).square() * apart[:, None]
    return squares.sum() / (apart.sum() * k.shape[1]).clamp_min(1)
