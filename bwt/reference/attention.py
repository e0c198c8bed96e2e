"""Softmax attention that also gives its weights and what can be said of them, written for
reading."""

from typing import Any, NamedTuple

import numpy as np


class AttentionOutput(NamedTuple):
    """Arrays from bwt.reference, tensors from bwt.ops; what was not captured is None."""

    out: Any  # [B, H, T, D]  weights @ v
    lse: Any  # [B, H, T]  natural log-sum-exp of the scaled scores of a query
    weights: Any  # [B, H, T, S]  rows sum to 1, hidden keys are exactly 0
    entropy: Any  # [B, H, T]  of each row of weights, in bits


class TopK(NamedTuple):
    """The largest weights of each query; 0 at position -1 where it sees fewer keys."""

    weights: Any  # [B, H, T, n]  descending, equal ones by position
    positions: Any  # [B, H, T, n]  of their keys, int64


class CapturedAttention(NamedTuple):
    """As AttentionOutput, and what else was captured."""

    out: Any
    lse: Any
    weights: Any
    entropy: Any
    received: Any  # [B, H, S]  sum over the queries of the weights that each key gets
    max_logit: Any  # [B, H, T]  the largest scaled score that a query sees
    argmax: Any  # [B, H, T]  its position, int64; -1 if it is -inf
    top_k: TopK | None


def attention(
    q, k, v, *, causal=True, scale=None, capture=(), capture_heads=None, capture_queries=None
) -> AttentionOutput | CapturedAttention:
    """See bwt.ops.attention; arrays in, float64 arrays out."""
    weights, lse, seen, scores = _softmax(q, k, causal, scale)
    out = _product(seen, weights, np.asarray(v, np.float64))
    chosen = _choice(weights.shape, capture_heads, capture_queries)
    weights, scores, rows = weights[chosen], scores[chosen], lse[chosen]
    order = np.argsort(-scores, axis=-1, kind="stable")
    counted = np.take_along_axis(scores, order, -1) != -np.inf
    positions = np.where(counted, order, -1)
    found = {
        "weights": weights,
        "entropy": _entropy_bits(weights),
        "received": weights.sum(axis=-2),
        "max_logit": np.where(np.isnan(rows), np.nan, scores.max(axis=-1, initial=-np.inf)),
        "argmax": positions[..., 0],
    }
    captured = [x if name in capture else None for name, x in found.items()]
    count = next((int(name[6:]) for name in capture if name.startswith("top_k=")), 0)
    if all(x is None for x in captured[2:]) and not count:
        return AttentionOutput(out, lse, *captured[:2])
    largest = np.where(counted, np.take_along_axis(weights, order, -1), 0.0)
    top_k = None
    if count:
        top_k = TopK(_first(largest, count, 0.0), _first(positions, count, -1))
    return CapturedAttention._make((out, lse, *captured, top_k))


def attention_backward(
    q,
    k,
    v,
    *,
    grad_out=None,
    grad_weights=None,
    grad_entropy=None,
    grad_lse=None,
    grad_received=None,
    grad_max_logit=None,
    grad_top_k=None,
    causal=True,
    scale=None,
    capture_heads=None,
    capture_queries=None,
):
    """Gradients of q, k, v given those of any of the outputs; grad_top_k is that of its weights.

    With dw = grad_out v^T + grad_weights and H the entropy of a row, the gradient of a score is
    w_j (dw_j - sum_i w_i dw_i) - grad_entropy w_j (log2 w_j + H) + grad_lse w_j.
    Those of received and of the largest weights are gradients of weights too, and that of the
    largest score is a gradient of a score.
    """
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    weights, _, seen, scores = _softmax(q, k, causal, scale)
    chosen = _choice(weights.shape, capture_heads, capture_queries)
    order = np.argsort(-scores[chosen], axis=-1, kind="stable")
    grad_v = np.zeros_like(v)
    grad_scores = np.zeros_like(weights)
    if grad_out is not None:
        grad_out = np.asarray(grad_out, np.float64)
        grad_v = _product(_transposed(seen), _transposed(weights), grad_out)
        grad_scores += _softmax_backward(weights, np.where(seen, grad_out @ _transposed(v), 0.0))
    captured = np.zeros_like(scores[chosen])
    if grad_weights is not None:
        captured += grad_weights
    if grad_received is not None:
        captured += np.asarray(grad_received, np.float64)[..., None, :]
    if grad_top_k is not None:
        captured += _spread(grad_top_k, order, captured.shape[-1])
    grad_weights = np.zeros_like(scores)
    grad_weights[chosen] = captured
    grad_scores += _softmax_backward(weights, np.where(seen, grad_weights, 0.0))
    if grad_entropy is not None:
        w = weights[chosen]
        grad_scores[chosen] -= _column(grad_entropy) * w * (_log2(w) + _column(_entropy_bits(w)))
    if grad_max_logit is not None:
        grad_scores[chosen] += _spread(_column(grad_max_logit), order, scores.shape[-1])
    if grad_lse is not None:
        grad_scores += _column(grad_lse) * weights
    grad_scores = np.where(seen, grad_scores, 0.0)
    grad_q = scale * _product(seen, grad_scores, k)
    grad_k = scale * _product(_transposed(seen), _transposed(grad_scores), q)
    return grad_q, grad_k, grad_v


def _choice(shape, heads, queries):
    """An index of the chosen heads and queries."""
    heads, queries = (
        np.arange(size) if chosen is None else np.asarray(chosen, np.int64)
        for size, chosen in zip(shape[1:3], (heads, queries), strict=True)
    )
    return np.ix_(np.arange(shape[0]), heads, queries)


def _first(x, count, missing) -> np.ndarray:
    """The first `count` of each row, filled up where it has fewer."""
    x = x[..., :count]
    room = [(0, 0)] * (x.ndim - 1) + [(0, count - x.shape[-1])]
    return np.pad(x, room, constant_values=missing)


def _spread(x, order, size) -> np.ndarray:
    """[.., size] with x at the first positions of each order."""
    spread = np.zeros((*order.shape[:-1], size))
    order = order[..., : np.shape(x)[-1]]
    np.put_along_axis(spread, order, np.asarray(x, np.float64)[..., : order.shape[-1]], -1)
    return spread


def _softmax(q, k, causal, scale):
    """Weights [B, H, T, S], log-sum-exp [B, H, T], which keys a query sees (none if all its scores
    are -inf), and scores, -inf where hidden."""
    q, k = np.asarray(q, np.float64), np.asarray(k, np.float64)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = scale * q @ _transposed(k)
    queries, keys = scores.shape[-2:]
    seen = np.ones((queries, keys), bool)
    if causal:  # the last query sees the last key
        seen = np.arange(keys) <= np.arange(queries)[:, None] + keys - queries
    scores = np.where(seen, scores, -np.inf)
    largest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    seen = seen & (largest != -np.inf)
    weights = np.where(seen, np.exp(scores - np.where(largest == -np.inf, 0.0, largest)), 0.0)
    total = weights.sum(axis=-1, keepdims=True)
    total = np.where(total == 0, 1.0, total)
    return np.where(seen, weights / total, 0.0), (largest + np.log(total))[..., 0], seen, scores


def _product(seen, left, right) -> np.ndarray:
    """left @ right over what a row sees: what it does not see may be NaN, and 0 * NaN is NaN."""
    finite = np.isfinite(right)
    spoilt = seen.astype(float) @ ~finite > 0
    return np.where(spoilt, np.nan, left @ np.where(finite, right, 0.0))


def _transposed(x) -> np.ndarray:
    return np.swapaxes(x, -1, -2)


def _softmax_backward(weights, grad_weights) -> np.ndarray:
    return weights * (grad_weights - (weights * grad_weights).sum(axis=-1, keepdims=True))


def _entropy_bits(weights) -> np.ndarray:
    return np.maximum(-(weights * _log2(weights)).sum(axis=-1), 0.0)


def _log2(weights) -> np.ndarray:
    """With 0 for a weight of 0, at which it comes to nothing."""
    return np.log2(np.where(weights > 0, weights, 1.0))


def _column(x) -> np.ndarray:
    return np.asarray(x, np.float64)[..., None]
