"""Optimizers on rows of weights: AdamW, and Muon for the matrices inside the blocks with AdamW for
the rest.

Muon (Jordan et al., 2024) steps along the momentum with all its singular values set to about one.
Matrices of one shape are worked off together: for small models the calls cost more than the
arithmetic. Learning rates are on the device, so that a captured step can be replayed with others.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bwt.runs.config import TrainConfig
from bwt.train.weights import Weights

# Quintic whose iteration draws singular values towards 1 (fast rather than exactly).
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
MOMENTUM = 0.95
EPSILON = 1e-8  # of AdamW


def orthogonalise(x: Tensor) -> Tensor:
    """[N, rows, columns] -> the same with singular values near one."""
    a, b, c = COEFFICIENTS
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Optimizer:
    """Steps of M models, each with its own settings, along the gradients that the weights hold."""

    def __init__(self, weights: Weights, configs: Sequence[TrainConfig]):
        self.weights, self.configs = weights, configs
        layout, gradient = weights.layout, weights.gradient
        self.exp_avg = torch.zeros_like(gradient[:, layout.adamw])
        self.exp_avg_sq = torch.zeros_like(self.exp_avg)
        self.momentum = torch.zeros_like(gradient[:, layout.muon])
        # One for all models would be raised by each of them.
        self.taken = torch.zeros(len(configs), device=gradient.device)
        rows = [(x.lr, x.muon_lr, x.clip or math.inf) for x in configs]
        settings = torch.empty(len(rows), 3, device=gradient.device).copy_(torch.tensor(rows))
        self.lr, self.muon_lr, self.limit = settings.unbind(1)
        self.clipped = any(x.clip for x in configs)

    def clip(self) -> None:
        """A gradient that is longer than its model allows is shortened."""
        if not self.clipped:
            return
        norm = torch.linalg.vector_norm(self.weights.gradient, dim=1)
        self.weights.gradient.mul_((self.limit / (norm + 1e-6)).clamp(max=1.0)[:, None])

    @torch.no_grad()
    def step(self, factor: Tensor) -> None:
        """One step of each model at factor [M] times its peak learning rate."""
        self.taken.add_(1)
        self._adamw(self.lr * factor)
        if self.momentum.numel():
            self._muon(self.muon_lr * factor)

    def _adamw(self, lr: Tensor) -> None:
        columns = self.weights.layout.adamw
        for row, config in enumerate(self.configs):
            torch._fused_adamw_(
                [self.weights.master[row, columns]],
                [self.weights.gradient[row, columns]],
                [self.exp_avg[row]],
                [self.exp_avg_sq[row]],
                [],
                [self.taken[row]],
                lr=lr[row],
                beta1=config.beta1,
                beta2=config.beta2,
                weight_decay=config.weight_decay,
                eps=EPSILON,
                amsgrad=False,
                maximize=False,
            )

    def _muon(self, lr: Tensor) -> None:
        layout = self.weights.layout
        gradient = self.weights.gradient[:, layout.muon]
        self.momentum.lerp_(gradient, 1 - MOMENTUM)
        ahead = torch.lerp(gradient, self.momentum, MOMENTUM)  # Nesterov
        for alike in layout.alike:
            here = alike._replace(start=alike.start - layout.muon.start)
            updates = orthogonalise(layout.matrices(ahead, here).flatten(0, 1))
            rows, columns = alike.shape
            # Steps of equal effect on the outputs whatever the shape.
            scaled = lr * -(max(1.0, rows / columns) ** 0.5)
            layout.matrices(self.weights.master, alike).addcmul_(
                updates.view(len(lr), alike.number, rows, columns), scaled[:, None, None, None]
            )

    def state(self, row: int) -> dict[str, Tensor]:
        """Of a model, flat: "<parameter>:<entry>" -> tensor, which is a view."""
        return {
            f"{name}:{entry}": x
            for entry, buffer, start in self._entries()
            for name, x in self._views(buffer[row], start).items()
        }

    def load(self, row: int, tensors: dict[str, Tensor], steps: int) -> None:
        """What `state` gave after so many steps; a run of before may have more, and tells by what
        it lacks that a parameter has had no step yet."""
        for key, x in self.state(row).items():
            x.zero_()
            if key in tensors:
                x.copy_(tensors[key])
        self.taken[row] = steps

    def _entries(self) -> list[tuple[str, Tensor, int]]:
        layout = self.weights.layout
        return [
            ("exp_avg", self.exp_avg, layout.adamw.start),
            ("exp_avg_sq", self.exp_avg_sq, layout.adamw.start),
            ("momentum", self.momentum, layout.muon.start),
        ]

    def _views(self, row: Tensor, start: int) -> dict[str, Tensor]:
        found = {}
        for name, place in self.weights.layout.places.items():
            begin = place.start - start
            if 0 <= begin < len(row):
                found[name] = row[begin : begin + place.size].view(place.shape)
        return found
