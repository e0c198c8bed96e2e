"""selective_scan in eager torch: what one would write without a kernel, and the baseline of the
benchmarks. Autograd comes by itself, with a graph over the steps."""

import torch
from torch import Tensor
from torch.nn import functional


def selective_scan_torch(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    initial: Tensor | None,
    softplus: bool,
) -> tuple[Tensor, Tensor]:
    """The recurrence in a loop over the steps: y, and the last state [B, E, N]."""
    states = selective_scan_states_torch(u, delta, A, B, initial, softplus)
    y = (states @ C.unsqueeze(-1)).squeeze(-1)
    last = states[:, -1] if states.shape[1] else _start(u, A, initial)
    return y if D is None else y + _of_each(D, 1, len(u)) * u, last


def selective_scan_states_torch(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, initial: Tensor | None, softplus: bool
) -> Tensor:
    """h after each step, [B, L, E, N]."""
    step = functional.softplus(delta) if softplus else delta
    decays = (step.unsqueeze(-1) * _of_each(A, 2, len(u))).exp()  # [B, L, E, N]
    inputs = (step * u).unsqueeze(-1) * B.unsqueeze(2)
    h = _start(u, A, initial)
    states = []
    for decay, new in zip(decays.unbind(1), inputs.unbind(1), strict=True):
        h = decay * h + new
        states.append(h)
    return torch.stack(states, 1) if states else decays


def _start(u: Tensor, A: Tensor, initial: Tensor | None) -> Tensor:
    return u.new_zeros((u.shape[0], *A.shape[-2:])) if initial is None else initial


def _of_each(parameter: Tensor, ndim: int, batch: int) -> Tensor:
    """One of all sequences as it is; those of models as [B, 1, ...], of each sequence and step."""
    if parameter.ndim == ndim:
        return parameter
    models, *sizes = parameter.shape
    return parameter.unsqueeze(1).expand(models, batch // models, *sizes).flatten(0, 1).unsqueeze(1)
