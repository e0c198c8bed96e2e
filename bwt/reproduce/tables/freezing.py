"""What is still gained after a part of the model no longer learns."""

import math

from bwt.records.results import Cell, Curve
from bwt.reproduce.tables.table import factor, spread
from bwt.reproduce.tables.variants import Seeds


def columns(found: list[Seeds]) -> dict[str, list[str]]:
    """x of a variant is the step of freezing; the one without x is that in which nothing is."""
    whole = {cell.seed: cell for x in found if x.x is None for cell in x.cells}
    pairs = [_beside(x, whole) for x in found]
    return {
        "kl at freezing": [spread([start for start, _, _ in each]) for each in pairs],
        "gained after": [
            spread([_gain(start, cell) for start, cell, _ in each], factor) for each in pairs
        ],
        "gained with nothing frozen": [
            spread([_gain(start, other) for start, _, other in each], factor) for each in pairs
        ],
    }


def _beside(x: Seeds, whole: dict[int, Cell]) -> list[tuple[float, Cell, Cell]]:
    """The KL at the step of freezing, the cell that is frozen then, and the one that is not."""
    if x.x is None:
        return []
    pairs = [(cell, whole[cell.seed]) for cell in x.cells if cell.seed in whole]
    return [(_start(x.x, cell, other), cell, other) for cell, other in pairs]


def _start(step: float, cell: Cell, whole: Cell) -> float:
    """The KL at the step of freezing. Up to there both are one run, and the one that is frozen then
    is evaluated there."""
    for evaluated, kl in zip(cell.curve.steps, cell.curve.kl, strict=True):
        if evaluated == step:
            return kl
    return at(whole.curve, step)


def _gain(start: float, cell: Cell) -> float:
    end = cell.metrics["kl"].mean
    return start / end if end > 0 else math.nan


def at(curve: Curve, step: float) -> float:
    """The KL at a step between two evaluations, on log scales; nan outside of them."""
    points = [(s, k) for s, k in zip(curve.steps, curve.kl, strict=True) if s > 0 and k > 0]
    for (s, k), (t, m) in zip(points, points[1:], strict=False):
        if s <= step <= t:
            share = math.log(step / s) / math.log(t / s)
            return math.exp((1 - share) * math.log(k) + share * math.log(m))
    return math.nan
