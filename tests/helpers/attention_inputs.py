"""Inputs of attention, and what can be captured."""

import torch

ALL = ("weights", "entropy")


def draw(B, H, T, S, D, dtype=torch.float64, size=1.0):
    shapes = [(B, H, T, D), (B, H, S, D), (B, H, S, D)]
    return [(size * torch.randn(shape, dtype=torch.float64)).to(dtype) for shape in shapes]


def arrays(tensors):
    return [x.detach().double().numpy() for x in tensors]
