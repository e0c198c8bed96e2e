"""A curve on a log scale, drawn with plain characters."""

import math
from collections.abc import Mapping, Sequence
from typing import TypeGuard

LABEL = 7  # characters of a number at the axis


def draw(
    curve: Sequence[float | None],
    marks: Mapping[int, float],
    level: float | None,
    *,
    height: int,
) -> list[str]:
    """Lines of a picture with a column for each value of the curve: `.`, above them marks by
    column: `o`, and behind all a level: `-`. What is not positive has no place on a log scale.

    >>> print(*draw([1, 0.5, None, 0.1, 0.03], {4: 0.02}, 0.3, height=5), sep="\\n")
          1 |.
            |-.---
        0.1 |   .
            |    o
       0.01 |
    """
    values = [x for x in (*curve, *marks.values(), level) if _has_place(x)]
    if not values:
        return [" " * LABEL + " |"] * height
    top, bottom = _decades(values)

    def row(value: float) -> int:
        return round((top - math.log10(value)) / (top - bottom) * (height - 1))

    grid = [[" "] * len(curve) for _ in range(height)]
    if _has_place(level):
        grid[row(level)] = ["-"] * len(curve)
    for column, value in enumerate(curve):
        if _has_place(value):
            grid[row(value)][column] = "."
    for column, value in marks.items():
        if _has_place(value):
            grid[row(value)][column] = "o"
    labels = {row(10.0**power): f"{10.0**power:g}" for power in range(bottom, top + 1)}
    return [
        f"{labels.get(i, ''):>{LABEL}} |{''.join(line)}".rstrip() for i, line in enumerate(grid)
    ]


def _has_place(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value) and value > 0


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """The powers of ten between which all of them are."""
    top, bottom = math.ceil(math.log10(max(values))), math.floor(math.log10(min(values)))
    return max(top, bottom + 1), bottom
