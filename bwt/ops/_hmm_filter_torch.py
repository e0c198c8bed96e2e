"""hmm_filter in eager torch: what one would write without a kernel, and the baseline of the
benchmarks. Sequences are the last dimension, which is the fastest layout. Autograd comes by itself,
with a graph over the steps."""

import math

import torch
from torch import Tensor

# As in csrc/hmm_filter.h: a power of two that keeps the probability of a step from underflow.
LIFT = {torch.float32: 100, torch.float64: 996}


def hmm_filter_torch(
    observations: Tensor,
    initial: Tensor,
    transition: Tensor,
    emission: Tensor,
    lengths: Tensor | None,
):
    """Returns filtered, predicted, log_likelihood."""
    batch, steps = observations.shape
    states, dtype = initial.shape[-1], initial.dtype
    if steps == 0:
        empty = initial.new_zeros((batch, 0, states))
        return empty, empty.clone(), initial.new_zeros(batch)
    emissions = _emissions(observations, emission, lengths)
    active = None
    if lengths is not None:
        active = torch.arange(steps, device=lengths.device)[:, None] < lengths  # [T, B]
    matrix = transition.movedim(0, -1) if transition.ndim == 3 else transition.t()
    log_likelihood = torch.zeros(batch, dtype=torch.float64, device=initial.device)
    impossible = torch.zeros(batch, dtype=torch.bool, device=initial.device)
    filtered, predicted = [], []
    for t in range(steps):
        if t == 0:
            p = (initial.t() if initial.ndim == 2 else initial[:, None]).expand(states, batch)
        elif transition.ndim == 3:
            p = (filtered[-1][:, None] * matrix).sum(0)
        else:
            p = matrix @ filtered[-1]
        if active is not None:
            p = torch.where(active[t], p, 0.0)
        joint = p * emissions[t]
        total = joint.sum(0)
        zero = total < torch.finfo(dtype).tiny
        divisor = torch.where(zero, 1.0, total)
        filtered.append(torch.where(zero, 0.0, joint / divisor))
        predicted.append(p)
        impossible = impossible | (zero if active is None else zero & active[t])
        log_likelihood = log_likelihood + torch.where(zero, 0.0, _log(divisor, LIFT[dtype]))
    return (
        _without_gradient(torch.stack(filtered, 0).permute(2, 0, 1), impossible[:, None, None]),
        _without_gradient(torch.stack(predicted, 0).permute(2, 0, 1), impossible[:, None, None]),
        torch.where(impossible, -math.inf, log_likelihood).to(dtype),
    )


def _emissions(observations: Tensor, emission: Tensor, lengths: Tensor | None) -> Tensor:
    """Lifted probabilities of the observations [T, S, B]; those of missing ones are 1 (lifted)."""
    steps, states = observations.shape[1], emission.shape[-2]
    y = observations.t().long()  # [T, B]
    missing = y < 0
    if lengths is not None:
        missing = missing | (torch.arange(steps, device=y.device)[:, None] >= lengths)
    y = torch.where(missing, 0, y)
    if emission.ndim == 2:
        found = emission.t()[y].transpose(1, 2)  # [T, S, B]
    else:
        columns = y.t()[:, None, :].expand(-1, states, -1)  # [B, S, T]
        found = emission.gather(2, columns).permute(2, 1, 0)
    return (torch.where(missing[:, None, :], 1.0, found) * 2.0 ** LIFT[emission.dtype]).contiguous()


def _log(lifted: Tensor, lift: int) -> Tensor:
    """log(lifted / 2^lift), without rounding the large logs of what is likely."""
    x = lifted.double()
    tiny = x < 1
    likely = (torch.where(tiny, 1.0, x) * 2.0**-lift).log()
    return torch.where(tiny, x.log() - lift * math.log(2), likely)


def _without_gradient(x: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, x.detach(), x)


def hmm_smooth_torch(
    transition: Tensor,
    lengths: Tensor | None,
    filtered: Tensor,
    predicted: Tensor,
    log_likelihood: Tensor,
) -> Tensor:
    """smoothed_t = filtered_t * (A (smoothed_{t+1} / predicted_{t+1})), from the last step on."""
    possible = (log_likelihood > -math.inf)[:, None]  # [B, 1]
    matrix = transition.transpose(-1, -2)
    rows = []
    later = None
    for t in reversed(range(filtered.shape[1])):
        row = filtered[:, t]
        if later is not None:
            ratio = torch.where(predicted[:, t + 1] > 0, later / predicted[:, t + 1], 0.0)
            back = (ratio[:, None] @ matrix)[:, 0] if transition.ndim == 3 else ratio @ matrix
            # The last step of a shorter sequence has nothing behind it.
            if lengths is not None:
                back = torch.where((lengths <= t + 1)[:, None], 1.0, back)
            row = row * back
        total = row.sum(-1, keepdim=True)
        later = torch.where(possible & (total > 0), row / total, 0.0)
        rows.append(later)
    return torch.stack(rows[::-1], 1) if rows else torch.zeros_like(filtered)
