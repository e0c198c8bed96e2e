"""Optimizers: fused AdamW, and Muon for the matrices inside the blocks with AdamW for the rest.

Muon (Jordan et al., 2024) steps along the momentum with all its singular values set to about one.
Matrices of one shape are worked off together: for small models the calls cost more than the
arithmetic.
"""

import re
from collections.abc import Iterable

import torch
from torch import Tensor, nn

# Quintic whose iteration draws singular values towards 1 (fast rather than exactly).
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5


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


class Muon(torch.optim.Optimizer):
    def __init__(self, parameters: Iterable[Tensor], lr: float, momentum: float = 0.95):
        super().__init__(parameters, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    by_shape.setdefault(p.shape, []).append(p)
            for parameters in by_shape.values():
                self._step_alike(parameters, group["lr"], group["momentum"])

    def _step_alike(self, parameters: list[Tensor], lr: float, momentum: float) -> None:
        gradients = [p.grad for p in parameters]
        buffers = [self._buffer(p) for p in parameters]
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        ahead = torch._foreach_lerp(gradients, buffers, momentum)  # Nesterov
        updates = orthogonalise(torch.stack(ahead))
        rows, columns = parameters[0].shape
        # Steps of equal effect on the outputs whatever the shape.
        torch._foreach_add_(
            parameters, list(updates.unbind(0)), alpha=-lr * max(1.0, rows / columns) ** 0.5
        )

    def _buffer(self, p: Tensor) -> Tensor:
        state = self.state[p]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(p)
        return state["momentum"]


class Optimizer:
    """One or two torch optimizers behind a common learning-rate factor, for those parameters of
    the model that want a gradient."""

    def __init__(
        self,
        model: nn.Module,
        *,
        name: str,
        lr: float,
        muon_lr: float,
        betas: tuple[float, float],
        weight_decay: float,
    ):
        named = {key: p for key, p in model.named_parameters() if p.requires_grad}
        matrices = {
            key: p
            for key, p in named.items()
            if name == "muon" and re.fullmatch(r"blocks\..*\.weight", key) and p.ndim == 2
        }
        rest = [p for key, p in named.items() if key not in matrices]
        self.parts: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(rest, lr, betas, weight_decay=weight_decay, fused=True)
        ]
        if matrices:
            self.parts.append(Muon(matrices.values(), muon_lr))
        self.peaks = [part.defaults["lr"] for part in self.parts]
        self.names = {id(p): key for key, p in named.items()}

    def step(self, factor: float) -> None:
        """One step at `factor` times the peak learning rate."""
        for part, peak in zip(self.parts, self.peaks, strict=True):
            part.param_groups[0]["lr"] = peak * factor
            part.step()

    def state(self) -> dict[str, Tensor]:
        """Flat: "<parameter>:<entry>" -> tensor."""
        return {
            f"{self.names[id(p)]}:{entry}": value
            for part in self.parts
            for p, state in part.state.items()
            for entry, value in state.items()
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        owners = {
            self.names[id(p)]: (part, p)
            for part in self.parts
            for p in part.param_groups[0]["params"]
        }
        for key, value in tensors.items():
            name, _, entry = key.rpartition(":")
            part, p = owners[name]
            # AdamW keeps its step counter on the parameter's device when fused.
            part.state[p][entry] = value.to(p.device)
