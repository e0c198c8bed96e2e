"""AdamW, or Muon for the matrices inside the blocks and AdamW for the rest.

Muon (Jordan et al., 2024) steps along the momentum with all its singular values set to about one.
Learning rates are tensors on the device, so that a captured step can be replayed with others.
"""

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from bwt.runs.config import TrainConfig

# Quintic whose iteration draws singular values towards 1 (fast rather than exactly).
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
MOMENTUM = 0.95
EPSILON = 1e-8  # of AdamW


def orthogonalise(x: Tensor) -> Tensor:
    """Return matrices [N, rows, columns] with the same singular vectors and values near one."""
    a, b, c = COEFFICIENTS
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon:
    """Muon for matrices [rows, columns], those of one shape batched: for small models the calls
    cost more than the arithmetic."""

    def __init__(self, matrices: Sequence[Tensor]):
        self.momentum = {p: torch.zeros_like(p) for p in matrices}
        self.groups: dict[torch.Size, list[Tensor]] = {}
        for p in matrices:
            self.groups.setdefault(p.shape, []).append(p)

    def step(self, lr: Tensor) -> None:
        for (rows, columns), matrices in self.groups.items():
            group = [p for p in matrices if p.grad is not None]
            if not group:
                continue
            gradients = [p.grad for p in group if p.grad is not None]
            momenta = [self.momentum[p] for p in group]
            torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
            nesterov = torch._foreach_lerp(gradients, momenta, MOMENTUM)
            updates = orthogonalise(torch.stack(nesterov))
            # Steps of equal effect on the outputs whatever the shape.
            updates *= lr * -(max(1.0, rows / columns) ** 0.5)
            torch._foreach_add_(group, updates.unbind(0))


class Optimizer:
    """One step for all weights, which hold their gradients in `grad`."""

    def __init__(self, weights: dict[str, Tensor], config: TrainConfig):
        self.weights, self.config = weights, config
        matrices = [
            p
            for name, p in weights.items()
            if config.optimizer == "muon"
            and p.ndim == 2
            and re.fullmatch(r"blocks\..*\.weight", name)
        ]
        chosen = {id(p) for p in matrices}
        rest = [p for p in weights.values() if id(p) not in chosen]
        device = next(iter(weights.values())).device
        self.peaks = torch.full((2,), config.lr, device=device)  # of AdamW and Muon
        self.peaks[1] = config.muon_lr
        self.lr, self.muon_lr = self.peaks.clone().split(1)
        self.limit = torch.full((1,), config.clip, device=device)  # of the norm of the gradient
        self.muon = Muon(matrices)
        # torch.optim.AdamW would import torch._dynamo, which takes seconds; this is its kernel.
        self.adamw = {
            p: {
                "step": torch.zeros((), device=device),
                "exp_avg": torch.zeros_like(p),
                "exp_avg_sq": torch.zeros_like(p),
            }
            for p in rest
        }

    @torch.no_grad()
    def step(self, factor: Tensor) -> None:
        """Take a step at `factor` (on the device) times the peak learning rates."""
        if self.config.clip:
            self._clip()
        torch.mul(self.peaks[:1], factor, out=self.lr)
        torch.mul(self.peaks[1:], factor, out=self.muon_lr)
        self._adamw()
        self.muon.step(self.muon_lr)

    def _adamw(self) -> None:
        weights = [p for p in self.adamw if p.grad is not None]
        states = [self.adamw[p] for p in weights]
        steps = [state["step"] for state in states]
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(
            weights,
            [p.grad for p in weights if p.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            steps,
            lr=self.lr[0],
            beta1=self.config.beta1,
            beta2=self.config.beta2,
            weight_decay=self.config.weight_decay,
            eps=EPSILON,
            amsgrad=False,
            maximize=False,
        )

    def _clip(self) -> None:
        """Shorten the gradient, if it is longer than allowed. As torch's clip_grad_norm_, but all
        numbers are tensors, so that a replayed step is the eager one bit for bit."""
        gradients = [p.grad for p in self.weights.values() if p.grad is not None]
        norms = torch.stack(torch._foreach_norm(gradients))
        norm = torch.linalg.vector_norm(norms, dim=0, keepdim=True)
        torch._foreach_mul_(gradients, (self.limit / (norm + 1e-6)).clamp(max=1.0)[0])

    def state(self, name: str) -> dict[str, Tensor]:
        """Return the state tensors of one weight."""
        p = self.weights[name]
        if p in self.muon.momentum:
            return {"momentum": self.muon.momentum[p]}
        return dict(self.adamw[p])

    def state_dict(self) -> dict[str, Tensor]:
        return {
            f"{name}:{entry}": x for name in self.weights for entry, x in self.state(name).items()
        }

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        for key, x in self.state_dict().items():
            x.copy_(tensors[key])
