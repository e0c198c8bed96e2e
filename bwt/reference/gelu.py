"""The Gaussian error linear unit, written for reading."""

import math

import numpy as np

from bwt.reference._rows import of_each_row, sum_of_rows

ERFC = np.vectorize(math.erfc, otypes=[np.float64])


def gelu(x, bias=None) -> np.ndarray:
    """z Phi(z), z = x + bias, Phi the distribution function of the standard normal."""
    z = _sum(x, bias)
    return z * _cumulative(z)


def gelu_backward(x, grad_y, bias=None):
    """The gradient of x, and of the bias if there is one. The derivative of z Phi(z) is
    Phi(z) + z phi(z)."""
    z = _sum(x, bias)
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    grad = grad_y * (_cumulative(z) + z * density)
    return grad if bias is None else (grad, sum_of_rows(grad, bias))


def _sum(x, bias) -> np.ndarray:
    x = np.asarray(x, np.float64)
    return x if bias is None else x + of_each_row(bias, x)


def _cumulative(x: np.ndarray) -> np.ndarray:
    return ERFC(-x / math.sqrt(2)) / 2
