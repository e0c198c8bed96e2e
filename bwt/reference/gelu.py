"""The Gaussian error linear unit, written for reading."""

import math

import numpy as np

from bwt.reference._rows import of_each_row, sum_of_rows

ERFC = np.vectorize(math.erfc, otypes=[np.float64])
FAR = 40.0  # exp(-FAR^2 / 2) is 0 in float64


def gelu(x, bias=None) -> np.ndarray:
    """z Phi(z), z = x + bias, Phi the distribution function of the standard normal."""
    z = _sum(x, bias)
    return z * _cumulative(z)


def gelu_backward(x, grad_y, bias=None):
    """The gradient of x, and of the bias if there is one. The derivative of z Phi(z) is
    Phi(z) + z phi(z)."""
    z = _sum(x, bias)
    grad = grad_y * (_cumulative(z) + z * _density(z))
    return grad if bias is None else (grad, sum_of_rows(grad, bias))


def _sum(x, bias) -> np.ndarray:
    x = np.asarray(x, np.float64)
    return x if bias is None else x + of_each_row(bias, x)


def _cumulative(z: np.ndarray) -> np.ndarray:
    """erfc(u) / 2 at u = -z / sqrt(2); exp(u^2 - z^2 / 2) corrects the rounding of u, to which the
    lower tail is sensitive."""
    far = np.clip(z, -FAR, 0.0)
    (high, low), (u_high, u_low) = _square(far), _square(far / math.sqrt(2))
    return ERFC(-z / math.sqrt(2)) / 2 * np.exp(u_high - high / 2 + (u_low - low / 2))


def _density(z: np.ndarray) -> np.ndarray:
    high, low = _square(np.clip(z, -FAR, FAR))
    return np.exp(-high / 2) * np.exp(-low / 2) / math.sqrt(2 * math.pi)


def _square(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return z^2 as a sum of an exact number and a small one: the exponential of a rounded square
    loses digits."""
    short = z.astype(np.float32).astype(np.float64)
    return short**2, (z - short) * (z + short)
