"""When things happen in a run: the learning rate, and the steps at which it is looked at."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bwt.runs.config import TrainConfig
from bwt.train.plateau import Plateau

BLOCK = 1024  # steps whose numbers are on the device


def lr_factor(step: int, config: TrainConfig, plateau: Plateau | None = None) -> float:
    """Of the step-th update (from 0): a linear rise, then a fall that would reach 0 just after the
    last update; until a plateau, the fall begins when that is found."""
    rise = max(1, round(config.warmup * config.steps))
    if step < rise:
        return (step + 1) / rise
    if plateau is not None:
        return plateau.lr_factor(step)
    if config.decay == "none":
        return 1.0
    left = (config.steps - step) / (config.steps - rise + 1)
    return left if config.decay == "linear" else 0.5 - 0.5 * math.cos(math.pi * left)


def log_spaced(last: int, count: int, first: int = 1) -> set[int]:
    """About `count` steps from `first` to `last`, evenly on a log scale, both included. Takes as
    many rounds as there are steps to find, whatever the count."""
    ratio = (last / first) ** (1 / max(1, count - 1))
    steps, i = {last}, 0
    while i < count:
        step = min(last, round(first * ratio**i))
        steps.add(step)
        if step == last:
            break
        # On to where the next step begins; one before it, as logarithms are rounded.
        i = max(i + 1, math.floor(math.log((step + 0.5) / first, ratio)) - 1)
    return steps


class Timetable:
    """Numbers of the next BLOCK steps, on the device beside a counter of the steps, so that a
    captured step finds its own. The host fills in a block at a time."""

    def __init__(self, models: int, device: torch.device):
        self.factors = torch.zeros(models, BLOCK, device=device)  # of the learning rates
        self.shares = torch.zeros(BLOCK, device=device)  # of the newest weights in their average
        self.step = torch.zeros(1, dtype=torch.int64, device=device)

    def fill(
        self, first: int, factors: Sequence[Callable[[int], float]], share: Callable[[int], float]
    ) -> None:
        """Fill in the rest of the block that begins with or contains this step."""
        steps = range(first, first - first % BLOCK + BLOCK)
        here = slice(first % BLOCK, BLOCK)
        self.factors[:, here] = torch.tensor([[f(step) for step in steps] for f in factors])
        self.shares[here] = torch.tensor([share(step) for step in steps])

    def place(self) -> Tensor:
        """Return the index [1] of the present step in the block."""
        return self.step % BLOCK

    def factor(self) -> Tensor:
        """Return the factors [M] of the present step."""
        return self.factors.index_select(1, self.place())[:, 0]

    def share(self) -> Tensor:
        return self.shares.index_select(0, self.place())
