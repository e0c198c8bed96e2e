"""When things happen in a run: the learning rate, evaluations, averaging, interruption."""

import math
import signal
from contextlib import contextmanager

import torch
from torch import Tensor

from bwt.config import TrainConfig


def lr_factor(step: int, config: TrainConfig) -> float:
    """Of the step-th update (from 0): a linear rise, then a fall that would reach 0 just after the
    last update."""
    rise = max(1, round(config.warmup * config.steps))
    if step < rise:
        return (step + 1) / rise
    if config.decay == "none":
        return 1.0
    left = (config.steps - step) / (config.steps - rise + 1)
    return left if config.decay == "linear" else 0.5 - 0.5 * math.cos(math.pi * left)


def log_spaced(last: int, count: int, first: int = 1) -> set[int]:
    """About `count` steps from `first` to `last`, evenly on a log scale, both included. Takes as
    many rounds as there are steps to find, whatever the count."""
    ratio = (last / first) ** (1 / max(1, count - 1))
    found, i = {last}, 0
    while i < count:
        step = min(last, round(first * ratio**i))
        found.add(step)
        if step == last:
            break
        # On to where the next step begins; one before it, as logarithms are rounded.
        i = max(i + 1, math.floor(math.log((step + 0.5) / first, ratio)) - 1)
    return found


class Averaged:
    """The weights that are evaluated: a mean over the last steps, or an exponential average; the
    trained ones themselves before it starts and if neither is wanted."""

    def __init__(self, parameters: list[Tensor], config: TrainConfig):
        self.parameters, self.config = parameters, config
        self.mean: list[Tensor] = []
        self.count = 0
        self.start = 0 if config.ema else math.floor(config.steps * (1 - config.average))
        self.wanted = bool(config.ema or config.average)

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


@contextmanager
def stop_signals(handler):
    """Ctrl-C and SIGTERM go to `handler`; yields what they went to before, by number."""
    before = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, handler)
    except ValueError:  # not in the main thread, where signals do not arrive anyway
        pass
    try:
        yield before
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def catch_signals(caught: list[int]):
    """Ctrl-C and SIGTERM are noted; the loop stops after its step. A second one stops at once."""

    def note(number, frame) -> None:
        caught.append(number)
        signal.signal(number, before[number])

    with stop_signals(note) as before:
        yield
