"""The Gaussian error linear unit, written for reading."""

import math

import numpy as np

ERFC = np.vectorize(math.erfc, otypes=[np.float64])


def gelu(x) -> np.ndarray:
    """x Phi(x), Phi the distribution function of the standard normal."""
    x = np.asarray(x, np.float64)
    return x * _cumulative(x)


def gelu_backward(x, grad_y) -> np.ndarray:
    """The derivative of x Phi(x) is Phi(x) + x phi(x)."""
    x = np.asarray(x, np.float64)
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    return grad_y * (_cumulative(x) + x * density)


def _cumulative(x: np.ndarray) -> np.ndarray:
    return ERFC(-x / math.sqrt(2)) / 2
