"""Softmax attention that also gives its weights and their entropy, written for reading."""

from typing import Any, NamedTuple

import numpy as np

LN2 = np.log(2.0)


class AttentionOutput(NamedTuple):
    """Arrays from bwt.reference, tensors from bwt.ops; what was not captured is None."""

    out: Any  # [B, H, T, D]  weights @ v
    lse: Any  # [B, H, T]  natural log-sum-exp of the scaled scores of a query
    weights: Any  # [B, H, T, S]  rows sum to 1, hidden keys are exactly 0
    entropy: Any  # [B, H, T]  of each row of weights, in bits


def attention(q, k, v, *, causal=True, scale=None, capture=()) -> AttentionOutput:
    """See bwt.ops.attention; arrays in, float64 arrays out."""
    weights, scores, lse = _softmax(q, k, causal, scale)
    out = weights @ np.asarray(v, np.float64)
    entropy = _entropy_bits(weights, scores, lse)
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
    weights, scores, lse = _softmax(q, k, causal, scale)
    grad_v = np.zeros_like(v)
    grad_scores = np.zeros_like(weights)
    if grad_out is not None:
        grad_out = np.asarray(grad_out, np.float64)
        grad_v = np.swapaxes(weights, -1, -2) @ grad_out
        grad_scores += _softmax_backward(weights, grad_out @ np.swapaxes(v, -1, -2))
    if grad_weights is not None:
        grad_scores += _softmax_backward(weights, np.asarray(grad_weights, np.float64))
    if grad_entropy is not None:
        entropy = _entropy_bits(weights, scores, lse)[..., None]
        log2_weights = (np.where(weights > 0, scores, lse[..., None]) - lse[..., None]) / LN2
        grad_scores -= _column(grad_entropy) * weights * (log2_weights + entropy)
    if grad_lse is not None:
        grad_scores += _column(grad_lse) * weights
    grad_q = scale * grad_scores @ k
    grad_k = scale * np.swapaxes(grad_scores, -1, -2) @ q
    return grad_q, grad_k, grad_v


def _softmax(q, k, causal, scale):
    """Weights [B, H, T, S], scaled scores with -inf where hidden, log-sum-exp [B, H, T]."""
    q, k = np.asarray(q, np.float64), np.asarray(k, np.float64)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = scale * q @ np.swapaxes(k, -1, -2)
    queries, keys = scores.shape[-2:]
    if causal:  # the last query sees the last key
        visible = np.arange(keys) <= np.arange(queries)[:, None] + keys - queries
        scores = np.where(visible, scores, -np.inf)
    largest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - largest)
    total = weights.sum(axis=-1, keepdims=True)
    return weights / total, scores, (largest + np.log(total))[..., 0]


def _softmax_backward(weights, grad_weights) -> np.ndarray:
    return weights * (grad_weights - (weights * grad_weights).sum(axis=-1, keepdims=True))


def _entropy_bits(weights, scores, lse) -> np.ndarray:
    mean_score = (weights * np.where(weights > 0, scores, 0.0)).sum(axis=-1)
    return np.maximum((lse - mean_score) / LN2, 0.0)


def _column(x) -> np.ndarray:
    return np.asarray(x, np.float64)[..., None]
