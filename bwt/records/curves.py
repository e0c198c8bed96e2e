"""Learning curves, and how fast they still fall."""

import math
from collections.abc import Sequence

from bwt.records.estimates import Estimate

FALL = 0.25  # steps in which the rate falls after a plateau, by those before it
OCTAVES = 2.0  # of steps at the end of a curve, over which its slope is fitted


def slope(steps: Sequence[float], kl: Sequence[float]) -> Estimate | None:
    """d log KL / d log step over the last two doublings of the steps, by least squares, with its
    standard error (None of two points). None for fewer points, or where a KL is not positive.

    -1: the KL halves when the steps double. Near 0: it has converged. A learning rate that falls to
    0 makes the end of a curve steeper than more training would be.
    """
    last = max(steps, default=0)
    chosen = [
        (s, k) for s, k in zip(steps, kl, strict=True) if s * 2**OCTAVES >= last > 0 and s > 0
    ]
    if len(chosen) < 2 or not all(math.isfinite(k) and k > 0 for _, k in chosen):
        return None
    x, y = ([math.log(value) for value in column] for column in zip(*chosen, strict=True))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((a - mean_x) ** 2 for a in x)
    if spread == 0:
        return None
    value = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
    if len(x) == 2:
        return Estimate(value, None)
    rest = sum((b - mean_y - value * (a - mean_x)) ** 2 for a, b in zip(x, y, strict=True))
    return Estimate(value, math.sqrt(rest / (len(x) - 2) / spread))


def per_doubling(exponent: float) -> float:
    """The share of the KL that a doubling of the steps takes away."""
    return 1 - 2**exponent


def in_words(exponent: Estimate | None) -> str:
    """Whether a run has converged, as a number; nothing where there is none."""
    if exponent is None:
        return ""
    share = per_doubling(exponent.mean)
    error = f" ± {exponent.se:.2f}" if exponent.se is not None else ""
    change = f"falls by {share:.0%}" if share >= 0 else f"rises by {-share:.0%}"
    return (
        f"At the end the KL {change} with each doubling of the steps (slope "
        f"{exponent.mean:.2f}{error} on a log scale, over the last two doublings)."
    )
