"""Normalisation by the root mean square, written for reading."""

import numpy as np


def rms_norm(x, weight, *, epsilon=1e-6) -> np.ndarray:
    """See bwt.ops.rms_norm; arrays in, float64 arrays out."""
    x = np.asarray(x, np.float64)
    return x * _scale(x, epsilon) * weight


def rms_norm_backward(x, weight, grad_y, *, epsilon=1e-6):
    """Gradients of x and weight. With u = x scale, scale = (mean(x^2) + epsilon)^(-1/2), that of
    scale is -scale^2 u / C, which gives x the second term."""
    x, weight, grad_y = (np.asarray(array, np.float64) for array in (x, weight, grad_y))
    scale = _scale(x, epsilon)
    unit = x * scale
    along = (grad_y * weight * unit).mean(-1, keepdims=True)
    grad_weight = (grad_y * unit).reshape(-1, x.shape[-1]).sum(0)
    return scale * (grad_y * weight - unit * along), grad_weight


def _scale(x: np.ndarray, epsilon: float) -> np.ndarray:
    return 1 / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon)
