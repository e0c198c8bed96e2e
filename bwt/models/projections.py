"""Queries, keys and values of attention from its input: learned, or with keys that are given."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from bwt.models.parts import Linear, linear


def learned(width: int) -> Linear:
    return linear(width, 3 * width, bias=False)


class Collapsed(nn.Module):
    """All keys are alike, namely zero, which no rotation changes: attention looks everywhere alike,
    whatever is asked. So queries have nothing to learn either, and are zero too."""

    def __init__(self, width: int):
        super().__init__()
        self.value = linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        v = self.value(x)
        return torch.cat((torch.zeros_like(v), torch.zeros_like(v), v), -1)


class Orthogonal(nn.Module):
    """Keys are a random rotation of the input, cut into heads: rows of norm one, as those of a
    learned projection begin. It is a buffer: saved, and neither trained nor counted."""

    fixed_key: Tensor

    def __init__(self, width: int):
        super().__init__()
        self.query_value = linear(width, 2 * width, bias=False)
        self.register_buffer("fixed_key", nn.init.orthogonal_(torch.empty(width, width)))

    def forward(self, x: Tensor) -> Tensor:
        q, v = self.query_value(x).chunk(2, -1)
        return torch.cat((q, functional.linear(x, self.fixed_key.to(x.dtype)), v), -1)


PROJECTIONS = {"learned": learned, "collapsed": Collapsed, "orthogonal": Orthogonal}
