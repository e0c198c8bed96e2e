"""attention in eager torch: what one would write without a kernel, and the baseline of the
benchmarks. Autograd comes by itself, but for products with what is hidden."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

# Rows of a product against what they sum over: queries over keys, or keys over queries.
BY_QUERY, BY_KEY = "queries over keys", "keys over queries"
OTHER = {None: None, BY_QUERY: BY_KEY, BY_KEY: BY_QUERY}


def attention_torch(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, captures):
    """What results.attention lists; None for what is not captured."""
    stairs = BY_QUERY if causal else None
    # torch.compile traces no functions with derivatives of forward mode.
    compiling = torch.compiler.is_compiling()
    seen_scores = _seen_scores if compiling else SeenScores.apply
    seen_product = _seen_product if compiling else SeenProduct.apply
    raw = seen_scores(q * scale, k, stairs, -math.inf)
    blind = _is_blind(raw)
    scores = raw.masked_fill(blind, 0.0)
    # Also of what is hidden in a row with NaN.
    unseen = blind if stairs is None else blind | _hidden(scores.shape, stairs, q.device)
    weights = scores.softmax(-1).masked_fill(unseen, 0.0)
    out = seen_product(weights, v, stairs).masked_fill(blind, 0.0)
    lse = scores.logsumexp(-1).masked_fill(blind[..., 0], -math.inf)
    return out, lse, *_captured(captures, _chosen(captures, raw, weights, lse))


def _chosen(captures, *tensors: Tensor) -> Sequence[Tensor]:
    """Of the chosen heads and queries."""
    chosen: Sequence[Tensor] = tensors
    for axis, indices in enumerate((captures.heads, captures.queries), start=1):
        if indices is not None:
            indices = torch.tensor(indices, device=tensors[0].device)
            chosen = [x.index_select(axis, indices) for x in chosen]
    return chosen


def _captured(captures, rows):
    scores, weights, lse = rows
    top_k = max(captures.top_k, int(captures.peak))
    positions = counted = None
    if top_k:
        order = scores.sort(dim=-1, descending=True, stable=True).indices
        order = order.narrow(-1, 0, min(top_k, order.shape[-1]))
        counted = scores.gather(-1, order) != -math.inf
        positions = order.masked_fill(~counted, -1)
    max_logit = None
    if captures.peak:
        blind = ~counted[..., 0]
        first = order.narrow(-1, 0, 1)
        max_logit = scores.masked_fill(blind[..., None], 0.0).gather(-1, first)[..., 0]
        max_logit = torch.where(lse.isnan(), lse, max_logit.masked_fill(blind, -math.inf))
    top_weights = None
    if captures.top_k:
        missing = (0, captures.top_k - positions.shape[-1])
        top_weights = functional.pad(weights.gather(-1, order).masked_fill(~counted, 0.0), missing)
        positions = functional.pad(positions, missing, value=-1)
    return (
        weights if captures.weights else None,
        entropy_bits(weights) if captures.entropy else None,
        weights.sum(-2) if captures.received else None,
        max_logit,
        positions[..., 0] if captures.peak else None,
        top_weights,
        positions if captures.top_k else None,
    )


def entropy_bits(weights: Tensor) -> Tensor:
    # A weight that underflowed to zero would have gradient -inf * 0.
    positive = torch.where(weights > 0, weights, 1.0)
    return -(weights * positive.log2()).sum(-1)


def _seen_scores(left, right, stairs, other):
    """left right^T, and `other` where a query does not see a key."""
    scores = left @ right.mT
    return scores if stairs is None else _fill_hidden(scores, stairs, other)


def _seen_product(left, right, stairs):
    """left right, where left is 0 at what is hidden: even if that is not finite, for which 0 will
    not do as a factor."""
    if stairs is None:
        return left @ right
    return left @ right.nan_to_num(0.0, 0.0, 0.0) + _spoilt(right, left.shape[-2], stairs)


class SeenScores(torch.autograd.Function):
    """Gradients come from what is seen, and none from a row of -inf."""

    generate_vmap_rule = True
    forward = staticmethod(_seen_scores)

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, ctx.stairs, _ = inputs
        ctx.save_for_backward(*tensors, output)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx, grad):
        left, right, scores = ctx.saved_tensors
        blind = _is_blind(scores)
        grad = grad if ctx.stairs is None else _fill_hidden(grad, ctx.stairs, 0.0)
        grad_left = SeenProduct.apply(grad, right, ctx.stairs).masked_fill(blind, 0.0)
        grad_right = SeenProduct.apply(grad.mT, left.masked_fill(blind, 0.0), OTHER[ctx.stairs])
        return grad_left, grad_right, None, None

    @staticmethod
    def jvp(ctx, left_tangent, right_tangent, *_):
        left, right = ctx.saved_tensors
        return SeenScores.apply(left_tangent, right, ctx.stairs, 0.0) + SeenScores.apply(
            left, right_tangent, ctx.stairs, 0.0
        )


class SeenProduct(torch.autograd.Function):
    """Gradients come from what is seen."""

    generate_vmap_rule = True
    forward = staticmethod(_seen_product)

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, ctx.stairs = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx, grad):
        left, right = ctx.saved_tensors
        return (
            SeenScores.apply(grad, right, ctx.stairs, 0.0),
            SeenProduct.apply(left.mT, grad, OTHER[ctx.stairs]),
            None,
        )

    @staticmethod
    def jvp(ctx, left_tangent, right_tangent, _):
        left, right = ctx.saved_tensors
        return SeenProduct.apply(left_tangent, right, ctx.stairs) + SeenProduct.apply(
            left, right_tangent, ctx.stairs
        )


def _is_blind(scores: Tensor) -> Tensor:
    """Rows that see no score but -inf, [..., T, 1]."""
    return scores.amax(-1, keepdim=True) == -math.inf


def _hidden(shape: torch.Size, stairs: str, device: torch.device) -> Tensor:
    rows, columns = shape[-2:]
    queries, keys = (rows, columns) if stairs == BY_QUERY else (columns, rows)
    hidden = torch.ones(queries, keys, dtype=torch.bool, device=device).triu(keys - queries + 1)
    return hidden if stairs == BY_QUERY else hidden.mT


def _fill_hidden(x: Tensor, stairs: str, value: float) -> Tensor:
    return x.masked_fill(_hidden(x.shape, stairs, x.device), value)


def _spoilt(x: Tensor, rows: int, stairs: str) -> Tensor:
    """[..., rows, D]: NaN where a row sees a number of x that is not finite, 0 elsewhere."""
    zero = torch.zeros_like(x).masked_fill(~x.isfinite(), math.nan)
    if stairs == BY_QUERY:
        # Indexing makes an alias of a whole range, and vectorized jacobians have no rule for it.
        return zero.cumsum(-2).narrow(-2, x.shape[-2] - rows, rows)
    later = zero.flip(-2).cumsum(-2).flip(-2)
    seen_by_all = later.narrow(-2, 0, 1).expand(*x.shape[:-2], rows - x.shape[-2], x.shape[-1])
    return torch.cat((seen_by_all, later), -2)
