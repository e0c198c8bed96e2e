"""The norm of a sum, written for reading."""

from typing import NamedTuple

import numpy as np

from bwt.reference._rows import of_each_row, sum_of_rows
from bwt.reference.rms_norm import rms_norm, rms_norm_backward


class AddRMSNormOutput(NamedTuple):
    total: np.ndarray
    normalised: np.ndarray


def add_rms_norm(x, branch, weight, bias=None, *, epsilon=1e-6) -> AddRMSNormOutput:
    """See bwt.ops.add_rms_norm; arrays in, float64 arrays out."""
    total = np.asarray(x, np.float64) + np.asarray(branch, np.float64)
    if bias is not None:
        total = total + of_each_row(bias, total)
    return AddRMSNormOutput(total, rms_norm(total, weight, epsilon=epsilon))


def add_rms_norm_backward(
    x, branch, weight, grad_total, grad_normalised, bias=None, *, epsilon=1e-6
):
    """Gradients of x, branch, weight and, if there is one, bias."""
    total = add_rms_norm(x, branch, weight, bias, epsilon=epsilon).total
    through_norm, grad_weight = rms_norm_backward(total, weight, grad_normalised, epsilon=epsilon)
    grad = through_norm + grad_total
    found = (grad, grad, grad_weight)
    return found if bias is None else (*found, sum_of_rows(grad, bias))
