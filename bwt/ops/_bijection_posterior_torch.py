"""bijection_posterior in eager torch: the vectorised version one would write without a kernel.

It is the baseline of the benchmarks and runs on any device; autograd comes by itself. With a
channel it needs 2^V numbers per sequence and step.
"""

import math

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
        posterior = _noisy(keys, values, num_symbols, channel)
        entropy = torch.special.entr(posterior).sum(-1) / math.log(2)
        log_predictive = (posterior * channel.t()[values]).sum(-1).log()
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
    return posterior, log_unused / math.log(2), log_predictive


def _noisy(keys: Tensor, values: Tensor, num_symbols: int, channel: Tensor) -> Tensor:
    batch, length = keys.shape
    if length == 0:
        return channel.new_zeros((batch, 0, num_symbols))
    observed = channel.t()[values]  # [B, K, V]
    same = keys[:, :, None] == keys[:, None, :]
    first = ~same.tril(-1).any(-1)  # the step is the first of its key
    rows = []
    for t in range(length):
        like = torch.where(same[:, :t, :t, None], observed[:, :t, None, :], 1.0).prod(1)
        own = torch.where(same[:, :t, t, None], observed[:, :t], 1.0).prod(1)
        weight = _subset_weights(like, first[:, :t] & ~same[:, :t, t], num_symbols)
        rows.append(own * _without_each(weight, num_symbols))
    posterior = torch.stack(rows, 1)
    return posterior / posterior.sum(-1, keepdim=True)


def _subset_weights(like: Tensor, used: Tensor, num_symbols: int) -> Tensor:
    """Summed likelihood of giving the used keys exactly the values of a subset, for each subset."""
    subsets = torch.arange(1 << num_symbols, device=like.device)
    weight = (subsets == 0).to(like.dtype).expand(len(like), -1)
    for s in range(like.shape[1]):
        grown = torch.zeros_like(weight)
        for v in range(num_symbols):
            smaller = weight[:, subsets & ~(1 << v)]
            grown = grown + torch.where(subsets >> v & 1 == 1, smaller * like[:, s, v, None], 0.0)
        grown = grown / grown.sum(-1, keepdim=True).clamp_min(torch.finfo(weight.dtype).tiny)
        weight = torch.where(used[:, s, None], grown, weight)
    return weight


def _without_each(weight: Tensor, num_symbols: int) -> Tensor:
    subsets = torch.arange(1 << num_symbols, device=weight.device)
    lacks = subsets[:, None] >> torch.arange(num_symbols, device=weight.device) & 1 == 0
    return weight @ lacks.to(weight.dtype)
