"""attention in eager torch: what one would write without a kernel, and the baseline of the
benchmarks. Autograd comes by itself."""

import math

import torch
from torch import Tensor


def attention_torch(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float):
    """Returns out, lse, weights, entropy; those not asked for cost a view at most."""
    scores = (q * scale) @ k.transpose(-1, -2)
    if causal:
        queries, keys = scores.shape[-2:]
        hidden = torch.ones(queries, keys, dtype=torch.bool, device=q.device)
        scores = scores.masked_fill(hidden.triu(keys - queries + 1), -math.inf)
    weights = scores.softmax(-1)
    return weights @ v, scores.logsumexp(-1), weights, entropy_bits(weights)


def entropy_bits(weights: Tensor) -> Tensor:
    # A weight that underflowed to zero would have gradient -inf * 0.
    positive = torch.where(weights > 0, weights, 1.0)
    return -(weights * positive.log2()).sum(-1)
