"""Softmax attention that also gives its weights and their entropy, written for reading."""

from typing import Any, NamedTuple

import numpy as np


class AttentionOutput(NamedTuple):
    """Arrays from bwt.reference, tensors from bwt.ops; what was not captured is None."""

    out: Any  # [B, H, T, D]  weights @ v
    lse: Any  # [B, H, T]  natural log-sum-exp of the scaled scores of a query
    weights: Any  # [B, H, T, S]  rows sum to 1, hidden keys are exactly 0
    entropy: Any  # [B, H, T]  of each row of weights, in bits


def attention(q, k, v, *, causal=True, scale=None, capture=()) -> AttentionOutput:
    """See bwt.ops.attention; arrays in, float64 arrays out."""
    weights, lse, seen = _softmax(q, k, causal, scale)
    out = _product(seen, weights, np.asarray(v, np.float64))
    entropy = _entropy_bits(weights)
    return AttentionOutput(
        out,
        lse,
        weights if "weights" in capture else None,
        entropy if "entropy" in capture else None,
    )


def attention_backward(
    q,
    k,
    v,
    *,
    grad_out=None,
    grad_weights=None,
    grad_entropy=None,
    grad_lse=None,
    causal=True,
    scale=None,
):
    """Gradients of q, k, v given those of any of the outputs.

    With dw = grad_out v^T + grad_weights and H the entropy of a row, the gradient of a score is
    w_j (dw_j - sum_i w_i dw_i) - grad_entropy w_j (log2 w_j + H) + grad_lse w_j.
    """
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    weights, _, seen = _softmax(q, k, causal, scale)
    grad_v = np.zeros_like(v)
    grad_scores = np.zeros_like(weights)
    if grad_out is not None:
        grad_out = np.asarray(grad_out, np.float64)
        grad_v = _product(_transposed(seen), _transposed(weights), grad_out)
        grad_scores += _softmax_backward(weights, np.where(seen, grad_out @ _transposed(v), 0.0))
    if grad_weights is not None:
        grad_scores += _softmax_backward(weights, np.where(seen, grad_weights, 0.0))
    if grad_entropy is not None:
        entropy = _entropy_bits(weights)[..., None]
        grad_scores -= _column(grad_entropy) * weights * (_log2(weights) + entropy)
    if grad_lse is not None:
        grad_scores += _column(grad_lse) * weights
    grad_scores = np.where(seen, grad_scores, 0.0)
    grad_q = scale * _product(seen, grad_scores, k)
    grad_k = scale * _product(_transposed(seen), _transposed(grad_scores), q)
    return grad_q, grad_k, grad_v


def _softmax(q, k, causal, scale):
    """Weights [B, H, T, S], log-sum-exp [B, H, T], and which keys a query sees: none if all its
    scores are -inf."""
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
    return np.where(seen, weights / total, 0.0), (largest + np.log(total))[..., 0], seen


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
