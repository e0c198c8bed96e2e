"""When a difference of times is more than noise: ratios with an interval, and what they say."""

import math
from typing import NamedTuple

import numpy as np

MARGIN = 0.05  # what two processes of the same code may differ by: where memory came to lie
FEWEST_PAIRS = 8  # with fewer there is no 99% interval
RESAMPLES = 1000
RULE = (
    f"slower is what has its whole interval above {1 + MARGIN:g}, faster what has it below "
    f"{1 / (1 + MARGIN):.3g}"
)


class Ratio(NamedTuple):
    """Between `low` and `high` it may well be."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} ({self.low:.3g} to {self.high:.3g})"


def verdict(ratio: Ratio) -> str:
    """On the time now over that before."""
    if ratio.low > 1 + MARGIN:
        return "slower"
    return "faster" if ratio.high < 1 / (1 + MARGIN) else "same"


def of_pairs(before: list[float], now: list[float]) -> Ratio:
    """The median of now over before, pair by pair, and the 99% interval of a median: that between
    two order statistics, whatever the distribution of the noise."""
    ratios = sorted(y / x for x, y in zip(before, now, strict=True))
    n = len(ratios)
    # As many may be left out at either end as 0.5% of n tosses of a coin come below.
    ways, left_out = 0, -1
    while left_out < n and (ways + math.comb(n, left_out + 1)) / 2**n <= 0.005:
        left_out += 1
        ways += math.comb(n, left_out)
    value = float(np.median(ratios))
    if left_out < 0:
        return Ratio(value, 0.0, math.inf)
    return Ratio(value, ratios[left_out], ratios[n - 1 - left_out])


def of_medians(slow: list[float], fast: list[float]) -> Ratio:
    """The ratio of two medians and its 95% interval by drawing the samples again, always alike."""
    rng = np.random.default_rng(0)

    def medians(samples):
        return np.median(rng.choice(samples, (RESAMPLES, len(samples))), 1)

    low, high = np.quantile(medians(slow) / medians(fast), [0.025, 0.975])
    return Ratio(float(np.median(slow) / np.median(fast)), float(low), float(high))


def of_quantiles(before: dict, now: dict, drift: float = 1.0) -> Ratio:
    """Of rows recorded at different times: the medians, and the interval from p20 over p80 to p80
    over p20. `drift` is the ratio of what cannot have changed; the value is divided by it, and the
    interval holds what it is with and without: a drift is noisy, too, and must not decide alone."""

    def ratio(a: str, b: str) -> float:
        times = (row[f"{name}_ms"] / row["units"] for row, name in ((now, a), (before, b)))
        return next(times) / next(times)

    low, high = ratio("p20", "p80"), ratio("p80", "p20")
    return Ratio(ratio("median", "median") / drift, min(low, low / drift), max(high, high / drift))
