"""How far a provider may be from the reference: the bounds of the tests, which have them alone."""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

_TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.append(str(_TESTS))

from helpers.tolerances import (  # noqa: E402
    attention_error,
    gelu_error,
    hmm_error,
    model_error,
    norm_error,
    rounding,
    scan_error,
    slope_error,
)

__all__ = [
    "attention_error",
    "deviation",
    "gelu_error",
    "hmm_error",
    "model_error",
    "norm_error",
    "rounding",
    "scan_error",
    "slope_deviation",
]


def deviation(
    name: str, got: Tensor, want: np.ndarray, bound: float, least: float = 1.0
) -> str | None:
    """What is wrong with a result, or None. The bound is relative to its largest entry, or to
    `least` if that is larger."""
    error = np.abs(got.detach().double().cpu().numpy() - want).max(initial=0.0)
    return _judge(name, error, bound * max(least, np.abs(want).max(initial=0.0)))


def slope_deviation(
    terms: list[np.ndarray], want: float, dtype: torch.dtype, roundings: int
) -> str | None:
    """What is wrong with a gradient, of which `terms` are the entries times a direction and `want`
    is the slope along it."""
    error = abs(sum(term.sum() for term in terms) - want)
    size = sum(np.abs(term).sum() for term in terms)
    return _judge("gradient", error, slope_error(dtype, roundings) * size)


def _judge(name: str, error: float, allowed: float) -> str | None:
    # Not `error > allowed`, which NaN would pass.
    return None if error <= allowed else f"{name} is off by {error:.3g}, allowed {allowed:.3g}"
