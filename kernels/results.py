"""Shapes, dtypes and layouts of what the ops return, as tensors without content: the fakes of
bwt.ops return them and the launchers of this package fill them.

The native kernels allocate in C++ and lay out alike; tests compare every backend with the fakes.
Only torch is needed here, for the fakes exist without Triton too.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .contracts import HALVES


def merged_heads(like: Tensor) -> Tensor:
    """[B, H, T, D] laid out as [B, T, H, D]: merging the heads afterwards costs nothing."""
    batch, heads, time, size = shape = like.shape
    strides = (time * heads * size, size, heads * size, 1)
    return torch.empty_strided(shape, strides, dtype=like.dtype, device=like.device)


class Captures(NamedTuple):
    """What a call of attention captures, in the order of its schema."""

    weights: bool = False
    entropy: bool = False
    received: bool = False
    peak: bool = False  # the largest score of a row and its position
    top_k: int = 0
    heads: tuple[int, ...] | None = None  # of which; None: of all
    queries: tuple[int, ...] | None = None

    def present(self) -> tuple[bool, ...]:
        """Which results of attention there are."""
        top_k = self.top_k > 0
        rows = (self.weights, self.entropy, self.received, self.peak, self.peak)
        return True, True, *rows, top_k, top_k


def attention(q: Tensor, k: Tensor, captures: Captures) -> tuple[Tensor | None, ...]:
    """out, lse, weights, entropy, received, max_logit, argmax, and the weights and positions of
    top_k; None for what is not captured."""
    batch, heads, time, _ = q.shape
    keys = k.shape[2]
    heads_chosen = heads if captures.heads is None else len(captures.heads)
    rows = (batch, heads_chosen, time if captures.queries is None else len(captures.queries))
    statistics = torch.float64 if q.dtype == torch.float64 else torch.float32
    top = (*rows, captures.top_k)
    return (
        merged_heads(q),
        q.new_empty((batch, heads, time), dtype=statistics),
        q.new_empty((*rows, keys)) if captures.weights else None,
        q.new_empty(rows, dtype=statistics) if captures.entropy else None,
        q.new_empty((*rows[:2], keys), dtype=statistics) if captures.received else None,
        q.new_empty(rows, dtype=statistics) if captures.peak else None,
        q.new_empty(rows, dtype=torch.int64) if captures.peak else None,
        q.new_empty(top, dtype=statistics) if captures.top_k else None,
        q.new_empty(top, dtype=torch.int64) if captures.top_k else None,
    )


def hmm_filter(observations: Tensor, initial: Tensor) -> tuple[Tensor, ...]:
    """filtered, predicted, log_likelihood; that of halves is float32."""
    batch, steps = observations.shape
    rows = (batch, steps, initial.shape[-1])
    wide = torch.float32 if initial.dtype in HALVES else initial.dtype
    return (
        initial.new_empty(rows),
        initial.new_empty(rows),
        initial.new_empty((batch,), dtype=wide),
    )


def selective_scan(u: Tensor, A: Tensor, every: int, last: bool) -> tuple[Tensor, ...]:
    """y, the states after every so many steps (0: none), and the last one (or none)."""
    batch, steps, channels = u.shape
    saved = steps // every if every else 0
    wide = torch.float32 if u.dtype in HALVES else u.dtype
    shape = (batch, A.shape[-1], channels if last else 0)
    return (
        u.new_empty(u.shape),
        u.new_empty((batch, saved, A.shape[-1], channels), dtype=wide),
        u.new_empty(shape, dtype=wide),
    )


def selective_scan_gradients(
    u, delta, A, B, C, D: Tensor | None, initial: Tensor | None
) -> tuple[Tensor, ...]:
    """Of D also where there is none, and an empty one of initial then."""
    skip = A[..., 0] if D is None else D
    return *dense(u, delta, A, B, C, skip), initial_gradient(A, initial)


def initial_gradient(like: Tensor, initial: Tensor | None) -> Tensor:
    return like.new_empty(0) if initial is None else initial.new_empty(initial.shape)


def dense(*tensors: Tensor) -> tuple[Tensor, ...]:
    """One like each, contiguous whatever its strides: the layout of gradients."""
    return tuple(x.new_empty(x.shape) for x in tensors)
