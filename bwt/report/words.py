"""Numbers as people read them."""

import math
from collections.abc import Sequence
from typing import TypeGuard

from bwt.records.estimates import Estimate


def known(x: float | None) -> TypeGuard[float]:
    """Whether there is a number at all."""
    return x is not None and math.isfinite(x)


def num(x: float | None) -> str:
    if not known(x):
        return "–"
    if x == 0 or abs(x) < 1e-12:
        return "0"
    return f"{x:.3g}" if abs(x) >= 1e-4 else f"{x:.1e}".replace("e-0", "e-")


def pm(x: Estimate | None) -> str:
    """Mean ± standard error."""
    if x is None or not known(x.mean):
        return "–"
    error = f" ± {x.se:.1g}".replace("e-0", "e-") if known(x.se) and x.se else ""
    return num(x.mean) + error


def percent(x: float | None) -> str:
    return f"{100 * x:.3g} %" if known(x) else "–"


def plural(n: int, noun: str) -> str:
    return f"{n} {noun}" + ("" if n == 1 else "s")


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
