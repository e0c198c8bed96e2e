"""What all figures of results have in common."""

from collections.abc import Sequence
from dataclasses import dataclass

from bwt.report import charts
from bwt.report.charts import Series

GREY = 2  # of what is no model
COLORS = tuple(i for i in range(charts.NUM_COLORS) if i != GREY)
WIDTH = 560.0


@dataclass(frozen=True)
class Figure:
    name: str  # of its file
    study: str
    title: str
    caption: str
    svg: str


def series(number: int, name: str, x: Sequence[float], y: Sequence[float | None]) -> Series:
    """Told from others by its colour and its dashes."""
    return Series(name, x, y, color=COLORS[number % len(COLORS)], dashed=number >= len(COLORS))


def level(name: str, ends: Sequence[float], value: float, color: int = GREY) -> Series:
    """A dashed line across, of what does not change."""
    return Series(name, [ends[0], ends[-1]], [value, value], color=color, dashed=True)
