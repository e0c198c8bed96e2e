"""Which kernels a computation calls, and how often."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class OpCalls(TorchDispatchMode):
    """The ops of bwt in the order of their calls, with the first size of their first tensor."""

    def __init__(self):
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op.namespace == "bwt":
            tensor = next(x for x in args if isinstance(x, torch.Tensor))
            self.seen.append((op._opname, tensor.shape[0]))
        return op(*args, **(kwargs or {}))
