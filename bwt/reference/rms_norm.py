"""Normalisation by the root mean square, written for reading."""

import numpy as np

from bwt.reference._rows import of_each_row, sum_of_rows


def rms_norm(x, weight, *, epsilon=1e-6) -> np.ndarray:
    """See bwt.ops.rms_norm; arrays in, float64 arrays out."""
    x = np.asarray(x, np.float64)
    return x * _scale(x, epsilon) * of_each_row(weight, x)


def rms_norm_backward(x, weight, grad_y, *, epsilon=1e-6):
    """Gradients of x and weight. With u = x scale, scale = (mean(x^2) + epsilon)^(-1/2), that of
    scale is -scale^2 u / C, which gives x the second term."""
    x, weight, grad_y = (np.asarray(array, np.float64) for array in (x, weight, grad_y))
    scale = _scale(x, epsilon)
    unit = x * scale
    grad_unit = grad_y * of_each_row(weight, x)
    along = (grad_unit * unit).mean(-1, keepdims=True)
    return scale * (grad_unit - unit * along), sum_of_rows(grad_y * unit, weight)


def _scale(x: np.ndarray, epsilon: float) -> np.ndarray:
    return 1 / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon)
