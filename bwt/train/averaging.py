"""The weights that are evaluated: averages of those that are trained."""

import math

import torch
from torch import Tensor

from bwt.runs.config import TrainConfig


class Averaged:
    """The weights that are evaluated: a mean over the last steps, or an exponential average; the
    trained ones themselves before it starts and if neither is wanted. Of a run until a plateau the
    last steps are not known beforehand, and its falling rate does what their mean would."""

    def __init__(self, master: Tensor, config: TrainConfig):
        self.master, self.config = master, config
        begin = math.floor(config.steps * (1 - config.average))
        # The mean of a run that was extended may not have begun where it would have now.
        self.start = 0 if config.ema else max(begin, *config.extended[-1:], 0)
        self.wanted = bool(config.ema or (config.average and config.until == "steps"))
        self.mean = torch.zeros_like(master) if self.wanted else None  # [M, N]

    def applies(self, step: int) -> bool:
        """To the weights after the step-th update (from 0)."""
        return self.wanted and step >= self.start

    def share(self, step: int) -> float:
        """Of the weights after the step-th update (from 0) in the mean; the first is the whole."""
        if not self.applies(step):
            return 0.0
        share = 1 / (step + 1 - self.start)
        # A short memory at first, or the initial weights would linger.
        return max(1 - self.config.ema, share) if self.config.ema else share

    def update(self, share: Tensor) -> None:
        if self.mean is not None:
            self.mean.lerp_(self.master, share)

    def best(self, step: int) -> Tensor:
        """[M, N]: the weights to evaluate after so many updates."""
        if self.mean is None or not self.applies(step - 1):
            return self.master
        return self.mean
