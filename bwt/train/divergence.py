"""When training has come to nothing.

A run has diverged at the first step whose loss is not finite, or at the last of PATIENCE steps in
a row whose losses are all above HOPELESS times that of a uniform guess over the outcomes (at least
one bit). It has also diverged where its weights or its predictions are found not to be finite.

Losses stay on the device until somebody looks, so that no step waits for it: on a CPU after each
step, on a GPU or of several processes when a line is logged.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

HOPELESS = 10
PATIENCE = 100


@dataclass(frozen=True)
class Divergence:
    step: int
    message: str
    checkpoint: int | None = None  # the last step that was saved

    def __str__(self) -> str:
        return f"diverged at step {self.step}: {self.message}"


class DivergenceCheck:
    def __init__(self, outcomes: int, losses: Tensor):
        """losses in nats, one for each of the last steps, overwritten in turn."""
        self.limit = HOPELESS * max(1.0, math.log2(outcomes))
        self.losses = losses
        self.seen = 0  # steps
        self.above = 0  # steps in a row, up to the last look

    def read(self, step: int) -> Divergence | None:
        """At the losses of the steps up to this one, since the last look. Waits for the device."""
        places = torch.arange(self.seen, step, device=self.losses.device) % len(self.losses)
        losses = (self.losses[places].double() / math.log(2)).tolist()
        first, self.seen = self.seen + 1, step
        for number, loss in enumerate(losses, first):
            if not math.isfinite(loss):
                return Divergence(number, f"the loss is {loss}")
            self.above = self.above + 1 if loss > self.limit else 0
            if self.above == PATIENCE:
                return Divergence(
                    number,
                    f"the loss is {loss:.3g} bits, and has been above {self.limit:.3g}, {HOPELESS} "
                    f"times that of a uniform guess, for {PATIENCE} steps",
                )
        return None


def all_finite(tensors: Iterable[Tensor]) -> bool:
    return all(bool(x.isfinite().all()) for x in tensors if x.is_floating_point())
