"""Inputs of attention, and what can be captured."""

import torch

from helpers.strided import offset

ALL = ("weights", "entropy")


def draw(B, H, T, S, D, dtype=torch.float64, size=1.0):
    shapes = [(B, H, T, D), (B, H, S, D), (B, H, S, D)]
    return apart([(size * torch.randn(shape, dtype=torch.float64)).to(dtype) for shape in shapes])


def apart(tensors, room=3):
    """q, k and v with strides that differ in every dimension but the last: heads behind positions,
    NaN between rows, heads in front of the batch."""
    q, k, v = tensors
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    return [q, offset(k, (0, 0, 0, room)), offset(v.transpose(0, 1), (0, 0, 1, 0)).transpose(0, 1)]


def arrays(tensors):
    return [x.detach().double().numpy() for x in tensors]
