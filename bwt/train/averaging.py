"""The weights that are evaluated: averages of those that are trained."""

import math
from contextlib import contextmanager

import torch
from torch import Tensor

from bwt.runs.config import TrainConfig


class Averaged:
    """The weights that are evaluated: a mean over the last steps, or an exponential average; the
    trained ones themselves before it starts and if neither is wanted. Of a run until a plateau the
    last steps are not known beforehand, and its falling rate does what their mean would."""

    def __init__(self, parameters: list[Tensor], config: TrainConfig):
        self.parameters, self.config = parameters, config
        self.mean: list[Tensor] = []
        self.count = 0
        self.start = 0 if config.ema else math.floor(config.steps * (1 - config.average))
        self.wanted = bool(config.ema or (config.average and config.until == "steps"))

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After the step-th update (from 1)."""
        if not self.wanted or step <= self.start:
            return
        if not self.mean:
            self.mean = [p.detach().clone() for p in self.parameters]
        self.count += 1
        share = 1 / self.count
        if self.config.ema:
            # A short memory at first, or the initial weights would linger.
            share = max(1 - self.config.ema, share)
        torch._foreach_lerp_(self.mean, self.parameters, share)

    @contextmanager
    def swapped_in(self):
        """The model has the averaged weights inside."""
        if not self.mean:
            yield
            return
        trained = [p.detach().clone() for p in self.parameters]
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.mean)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, trained)
