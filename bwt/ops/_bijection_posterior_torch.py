"""bijection_posterior in eager torch: the vectorised version one would write without a kernel.

It is the baseline of the benchmarks and runs on any device; autograd comes by itself. With a
channel it needs V * 2^V numbers per sequence and step. The gradient at a channel entry of exactly
zero is right as long as a double holds the ratio of the likelihoods that meet in a sum.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

NO_FAULT = 0x7F7F7F7F7F7F7F7F


def bijection_posterior_torch(
    keys: Tensor, values: Tensor, num_symbols: int, channel: Tensor | None, dtype: torch.dtype
):
    keys, values = keys.long(), values.long()
    range_fault = _first(_outside(keys, num_symbols), 0).minimum(
        _first(_outside(values, num_symbols), 1)
    )
    keys, values = keys.clamp(0, num_symbols - 1), values.clamp(0, num_symbols - 1)
    if channel is None:
        posterior, entropy, log_predictive = _noiseless(keys, values, num_symbols, dtype)
    else:
        posterior, log_predictive = _noisy(keys, values, num_symbols, channel)
        if keys.shape[1] < 2:  # the channel enters no posterior: its gradient is 0, not missing
            nothing = 0 * channel.sum()
            posterior, log_predictive = posterior + nothing, log_predictive + nothing
        # An impossible value stays impossible: no gradient, where entr would say infinity.
        surprise = -torch.where(posterior > 0, posterior, 1.0).log2()
        entropy = (posterior * surprise).sum(-1)
    fault = range_fault.minimum(_first(log_predictive == -math.inf, 2))
    log_evidence = log_predictive.cumsum(-1)
    return posterior.to(dtype), entropy.to(dtype), log_evidence.to(dtype), fault.view(1)


def _outside(ids: Tensor, num_symbols: int) -> Tensor:
    return (ids < 0) | (ids >= num_symbols)


def _first(wrong: Tensor, code: int) -> Tensor:
    step = torch.arange(wrong.numel(), device=wrong.device).view(wrong.shape)
    return (
        torch.where(wrong, step * 4 + code, NO_FAULT).min()
        if wrong.numel()
        else step.new_tensor(NO_FAULT)
    )


def _noiseless(keys: Tensor, values: Tensor, num_symbols: int, dtype: torch.dtype):
    batch, length = keys.shape
    steps = torch.arange(length, device=keys.device).expand(batch, length)
    never = torch.full((batch, num_symbols), length, device=keys.device)
    first = never.scatter_reduce(1, keys, steps, "amin").gather(1, keys)
    first_of_value = never.scatter_reduce(1, values, steps, "amin")
    known = first < steps
    unused = num_symbols - (~known).cumsum(1) + ~known  # values no key had before this step
    share = unused.double().reciprocal().to(dtype)
    free = first_of_value[:, None, :] >= steps[..., None]  # [B, K, V]
    hit = values.gather(1, first) if length else values
    is_hit = hit[..., None] == torch.arange(num_symbols, device=keys.device)
    posterior = torch.where(known[..., None], is_hit.to(dtype), free * share[..., None])
    consistent = posterior.gather(-1, values[..., None])[..., 0] > 0
    log_unused = torch.where(known, 0.0, unused.double().log())
    log_predictive = torch.where(consistent, -log_unused, -math.inf)
    contradicted = (~consistent).cumsum(1) > ~consistent  # by an earlier step
    posterior.masked_fill_(contradicted[..., None], 0.0)
    entropy = (log_unused / math.log(2)).masked_fill(contradicted, 0.0)
    return posterior, entropy, log_predictive


class Scaled(NamedTuple):
    """mantissa * 2^exponent: likelihoods of many observations leave the range of a double, and
    logarithms have no gradient where a channel is zero. Exponents are constants to autograd; that
    of a zero says how large its gradient is."""

    mantissa: Tensor  # float64, 0 or 0.5 <= . < 1
    exponent: Tensor  # int64

    def at(self, *index) -> "Scaled":
        return Scaled(self.mantissa[index], self.exponent[index])

    def take(self, dim: int, index: Tensor) -> "Scaled":
        """As indexing, whose derivative has no rule for Hessians by vmap."""
        return Scaled(
            *(x.index_select(dim, index.flatten()).unflatten(dim, index.shape) for x in self)
        )


BELOW_ALL = -(1 << 40)  # no product of likelihoods is so small
NEVER = -(1 << 60)


def _scaled(x: Tensor, exponent: Tensor | int = 0) -> Scaled:
    shift = torch.frexp(x.detach()).exponent.long()
    return Scaled(x * _power_of_two(-shift), shift + exponent)


def _power_of_two(exponent: Tensor) -> Tensor:
    """Made of its bits, as torch.ldexp goes through float32; 0 below the normal numbers."""
    return (exponent.clamp(-1023, 1023) + 1023 << 52).view(torch.float64)


def _product(a: Scaled, b: Scaled) -> Scaled:
    return _scaled(a.mantissa * b.mantissa, a.exponent + b.exponent)


def _sum(x: Scaled, dim: int) -> Scaled:
    """Aligned at the largest term that is not zero."""
    largest = torch.where(x.mantissa == 0, NEVER, x.exponent).amax(dim, keepdim=True)
    largest = torch.where(largest == NEVER, x.exponent.amax(dim, keepdim=True), largest)
    aligned = x.mantissa * _power_of_two(x.exponent - largest)
    return _scaled(aligned.sum(dim), largest.squeeze(dim))


def _noisy(keys: Tensor, values: Tensor, num_symbols: int, channel: Tensor):
    """The rows, and the logarithm of p(values[t] | everything before)."""
    batch, length = keys.shape
    if length == 0:
        return channel.new_zeros((batch, 0, num_symbols)), channel.new_zeros((batch, 0))
    rows, log_predictive = [], []
    symbols = torch.arange(num_symbols, device=keys.device)
    likelihood = _scaled(channel.new_ones((batch, num_symbols, num_symbols)))  # [B, key, V]
    seen = torch.zeros((batch, num_symbols), dtype=torch.bool, device=keys.device)
    observed = _scaled(channel.t()).take(0, values)  # [B, K, V]
    for t in range(length):
        own = keys[:, t, None] == symbols
        weight = _subset_weights(likelihood, seen & ~own, num_symbols)
        places = keys[:, t, None, None].expand(-1, 1, num_symbols)
        mine = Scaled(*(x.gather(1, places).squeeze(1) for x in likelihood))
        row = _product(mine, _without_each(weight, num_symbols))
        posterior, log_p = _normalise(row, observed.at(slice(None), t))
        rows.append(posterior)
        log_predictive.append(log_p)
        likelihood = _where(
            own[..., None], _product(likelihood, observed.at(slice(None), t, None)), likelihood
        )
        seen = seen | own
    return torch.stack(rows, 1), torch.stack(log_predictive, 1)


def _where(condition: Tensor, yes: Scaled, no: Scaled) -> Scaled:
    return Scaled(*(torch.where(condition, a, b) for a, b in zip(yes, no, strict=True)))


def _normalise(row: Scaled, observed: Scaled) -> tuple[Tensor, Tensor]:
    total = _sum(row, -1)
    shown = _sum(_product(row, observed), -1)
    # After a contradiction nothing is left: rows of zeros, evidence zero.
    whole = torch.where(total.mantissa > 0, total.mantissa, 1.0)[..., None]
    share = row.mantissa * _power_of_two(row.exponent - total.exponent[..., None])
    shift = (shown.exponent - total.exponent).double() * math.log(2)
    possible = shown.mantissa > 0
    ratio = torch.where(possible, shown.mantissa, 1.0) / whole[..., 0]
    return share / whole, torch.where(possible, ratio.log() + shift, -math.inf)


def _subset_weights(likelihood: Scaled, used: Tensor, num_symbols: int) -> Scaled:
    """Summed likelihood of giving the used keys exactly the values of a subset, for each subset."""
    subsets = torch.arange(1 << num_symbols, device=used.device)
    bits = 1 << torch.arange(num_symbols, device=used.device)[:, None]
    smaller = subsets & ~bits  # [V, 2^V]
    contains = subsets & bits != 0
    weight = _scaled((subsets == 0).to(likelihood.mantissa).expand(len(used), -1))
    nothing = Scaled(weight.mantissa.new_zeros(()), subsets.new_tensor(BELOW_ALL))
    for key in range(num_symbols):
        parts = weight.take(1, smaller)  # [B, V, 2^V]
        parts = _where(contains, parts, nothing)
        grown = _sum(_product(parts, likelihood.at(slice(None), key, slice(None), None)), 1)
        weight = _where(used[:, key, None], grown, weight)
    return weight


def _without_each(weight: Scaled, num_symbols: int) -> Scaled:
    half = torch.arange(1 << (num_symbols - 1), device=weight.mantissa.device)
    # The subsets without v: a bit of 0 is put in its place.
    without = [2 * half - (half & (1 << v) - 1) for v in range(num_symbols)]
    free = [_sum(weight.take(1, subsets), 1) for subsets in without]
    return Scaled(*(torch.stack(parts, 1) for parts in zip(*free, strict=True)))
