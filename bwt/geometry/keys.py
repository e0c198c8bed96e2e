"""Key orthogonality: how well attention could tell its addresses apart.

Mean |cos| over pairs of different addresses in a sequence, of the keys attention really uses: after
norm, token shift, projection and rotation. `centred` takes away the mean key of the sequence first,
because softmax is blind to what all keys share.
"""

import math

import torch
from torch import Tensor

from bwt.geometry.stats import estimates
from bwt.geometry.subject import Subject
from bwt.records.geometry import KeyCosines, Keys


def keys(subject: Subject, untrained: Subject) -> Keys:
    """Per layer and head, beside the same model with random weights."""
    size = subject.model.blocks[0].attn.qkv.in_features // subject.model.blocks[0].attn.heads
    return Keys(
        trained=_cosines(subject),
        untrained=_cosines(untrained),
        gaussian=gaussian_cosine(size),
        head_size=size,
        addresses=len(subject.task.addresses),
        sequences=len(subject.batch.tokens),
    )


def _cosines(subject: Subject) -> KeyCosines:
    trace = subject.look("blocks.*.attn.k")
    at = subject.task.addresses.to(subject.positions.device)
    apart = subject.task.different_addresses(subject.batch)
    layers = [trace[f"blocks.{i}.attn.k"][:, :, at] for i in range(len(trace))]
    return KeyCosines(
        plain=[estimates(mean_cosine(k, apart)) for k in layers],
        centred=[estimates(mean_cosine(k - k.mean(2, keepdim=True), apart)) for k in layers],
    )


def mean_cosine(k: Tensor, apart: Tensor) -> Tensor:
    """[B, H] mean |cos| of keys [B, H, n, D] over the pairs [B, n, n]."""
    unit = torch.nn.functional.normalize(k.double(), dim=-1)
    cosine = (unit @ unit.transpose(-1, -2)).abs() * apart[:, None]
    return cosine.sum((-1, -2)) / apart.sum((-1, -2)).clamp_min(1)[:, None]


def gaussian_cosine(size: int) -> float:
    """E |cos| of two independent Gaussian vectors, about sqrt(2 / (pi size))."""
    return math.exp(math.lgamma(size / 2) - math.lgamma((size + 1) / 2)) / math.sqrt(math.pi)
