"""hmm_filter in eager torch: what one would write without a kernel, and the baseline of the
benchmarks. Sequences are the last dimension, which is the fastest layout. Autograd comes by itself,
with a graph over the steps. Sequences that this might lose something of (csrc/cpu/hmm_filter says
what and why) are done again with an exponent for each state; to see whether there are any, it waits
for the device. While torch.compile traces or torch.func transforms, nobody can look, and nothing is
done again."""

import math

import torch
from torch import Tensor

from bwt.ops import _derivatives
from bwt.ops._hmm_filter_wide import hmm_filter_wide, hmm_smooth_wide

# As in csrc/cpu/hmm_filter: a power of two that keeps the probability of a step from underflow.
LIFT = {torch.float32: 100, torch.float64: 996}
# As there, exponents of two: positive entries of transition, filtered and emission are above these,
# adjoints below.
SMALL = {torch.float32: -40, torch.float64: -400}
FLOOR = {torch.float32: -80, torch.float64: -600}
SMALL_EMISSION = {torch.float32: -100, torch.float64: -1000}
LARGEST = {torch.float32: 100, torch.float64: 900}


def hmm_filter_torch(
    observations: Tensor,
    initial: Tensor,
    transition: Tensor,
    emission: Tensor,
    lengths: Tensor | None,
):
    """Returns filtered, predicted, log_likelihood."""
    batch, steps = observations.shape
    # The gradient of a parameter that enters nothing is 0, not missing.
    if steps == 0:
        nothing = 0 * (initial.sum() + transition.sum() + emission.sum())
        empty = initial.new_zeros((batch, 0, initial.shape[-1])) + nothing
        return empty, empty.clone(), initial.new_zeros(batch) + nothing
    if steps == 1:
        initial = initial + 0 * (transition.sum() + emission.sum())
    arguments = (observations, initial, transition, emission, lengths)
    outputs = _normalised(*arguments)
    if _nobody_can_look():
        return outputs
    rare = delicate(*arguments, outputs[1].detach(), with_gradient=outputs[2].requires_grad)
    if not rare.any():
        return outputs
    return _merged(rare, _normalised, hmm_filter_wide, arguments)


def _nobody_can_look() -> bool:
    """At the values of tensors."""
    return torch.compiler.is_compiling() or _derivatives.transformed()


def _merged(rare: Tensor, usual, exact, arguments):
    """The usual results of most sequences and the exact ones of the rare."""
    order = torch.cat([(~rare).nonzero()[:, 0], rare.nonzero()[:, 0]]).argsort()
    parts = [
        compute(*_chosen(mask, arguments))
        for mask, compute in ((~rare, usual), (rare, exact))
        if mask.any()
    ]
    return tuple(torch.cat(outputs).index_select(0, order) for outputs in zip(*parts, strict=True))


def hmm_filter_backward_wide(mask, *arguments):
    """Gradients of the parameters by what comes in for the outputs of some sequences."""
    incoming = [x if x is None else x[mask] for x in arguments[:3]]
    observations, *parameters, lengths = arguments[3:]
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in parameters]
        outputs = hmm_filter_wide(*_chosen(mask, (observations, *leaves, lengths)))
        given = [(x, g) for x, g in zip(outputs, incoming, strict=True) if g is not None]
        return torch.autograd.grad(
            [x for x, _ in given], leaves, [g for _, g in given], materialize_grads=True
        )


def _chosen(mask: Tensor, arguments):
    """The arguments of some sequences."""
    observations, initial, transition, emission, lengths = arguments
    return (
        observations[mask],
        initial[mask] if initial.ndim == 2 else initial,
        transition[mask] if transition.ndim == 3 else transition,
        emission[mask] if emission.ndim == 3 else emission,
        None if lengths is None else lengths[mask],
    )


@torch.no_grad()
def delicate(
    observations, initial, transition, emission, lengths, predicted, *, with_gradient=False
) -> Tensor:
    """Sequences [B] that the recursion might lose something of, judged by its own result."""
    dtype, (batch, steps) = initial.dtype, observations.shape
    joint = predicted.permute(1, 2, 0) * _emissions(observations, emission, lengths)  # [T, S, B]
    total = joint.sum(1)
    sinking = (joint > 0) & (joint < total[:, None] * 2.0 ** FLOOR[dtype])
    active = torch.ones((steps, batch), dtype=torch.bool, device=initial.device)
    if lengths is not None:
        active = torch.arange(steps, device=lengths.device)[:, None] < lengths
    tiny = _any_below(transition, SMALL[dtype], 2) | _any_below(emission, SMALL_EMISSION[dtype], 2)
    # 0 is impossible only if nothing was lost before.
    delicate = ((total > 0) & (total < 1) | sinking.any(1)).any(0) | tiny
    if with_gradient:
        # Adjoints of states that are not reached grow by no more than this.
        best = _emissions(observations, emission, lengths).amax(1)
        growth = torch.where(active & (total > 0), (best / total).double().log2(), 0.0)
        most = growth.flip(0).cumsum(0).amax(0)
        unreached = ((predicted.permute(1, 2, 0) == 0) & active[:, None]).any(1).any(0)
        delicate = delicate | unreached & (most > LARGEST[dtype])
    return delicate


def _any_below(x: Tensor, exponent: int, dims: int) -> Tensor:
    """Whether there are positive entries below 2^exponent; for each sequence, or for all."""
    small = (x > 0) & (x < 2.0**exponent)
    return small.flatten(-dims).any(-1)


def _normalised(observations, initial, transition, emission, lengths):
    batch, steps = observations.shape
    states, dtype = initial.shape[-1], initial.dtype
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
        zero = total < 1  # below, it is done again
        # Lifted numbers are made ones of order 1 first: second derivatives divide by squares.
        size = torch.where(zero, 1.0, total.detach())
        joint = joint / size
        total = torch.where(zero, 1.0, joint.sum(0))
        filtered.append(torch.where(zero, 0.0, joint / total))
        predicted.append(p)
        impossible = impossible | (zero if active is None else zero & active[t])
        log_total = _log(size, LIFT[dtype]) + total.double().log()
        log_likelihood = log_likelihood + torch.where(zero, 0.0, log_total)
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
        likelihoods = emission.index_select(1, y.flatten()).unflatten(1, y.shape).movedim(0, 1)
    else:
        columns = y.t()[:, None, :].expand(-1, states, -1)  # [B, S, T]
        likelihoods = emission.gather(2, columns).permute(2, 1, 0)
    likelihoods = torch.where(missing[:, None, :], 1.0, likelihoods)
    return (likelihoods * 2.0 ** LIFT[emission.dtype]).contiguous()


def _log(lifted: Tensor, lift: int) -> Tensor:
    """log(lifted / 2^lift), without rounding the large logs of what is likely."""
    x = lifted.double()
    tiny = x < 1
    likely = (torch.where(tiny, 1.0, x) * 2.0**-lift).log()
    return torch.where(tiny, x.log() - lift * math.log(2), likely)


def _without_gradient(x: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, x.detach(), x)


@torch.no_grad()
def hmm_smooth_torch(
    observations: Tensor,
    initial: Tensor,
    transition: Tensor,
    emission: Tensor,
    lengths: Tensor | None,
    filtered: Tensor,
    predicted: Tensor,
    log_likelihood: Tensor,
) -> Tensor:
    smoothed = _smoothed(transition, lengths, filtered, predicted, log_likelihood)
    if _nobody_can_look() or observations.numel() == 0:
        return smoothed
    arguments = (observations, initial, transition, emission, lengths)
    rare = delicate(*arguments, predicted) & (log_likelihood > -math.inf)
    if rare.any():
        smoothed[rare] = hmm_smooth_wide(*_chosen(rare, arguments))
    return smoothed


def _smoothed(transition, lengths, filtered, predicted, log_likelihood) -> Tensor:
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
