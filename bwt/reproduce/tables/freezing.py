"""What is still gained after a part of the model no longer learns."""

import math

from bwt.records.results import Cell, Curve
from bwt.reproduce.tables.table import factor, spread
from bwt.reproduce.tables.variants import Seeds


def columns(found: list[Seeds]) -> dict[str, list[str]]:
    """x of a variant is the step of freezing; the one without x is that in which nothing is."""
    whole = {cell.seed: cell for x in found if x.x is None for cell in x.cells}
    pairs = [
        [(cell, whole[cell.seed]) for cell in x.cells if x.x is not None and cell.seed in whole]
        for x in found
    ]
    return {
        "kl at freezing": [spread([_start(*pair) for pair in each]) for each in pairs],
        "gained after": [
            spread([_gain(_start(*pair), pair[0]) for pair in each], factor) for each in pairs
        ],
        "gained with nothing frozen": [
            spread([_gain(_start(*pair), pair[1]) for pair in each], factor) for each in pairs
        ],
    }


def _start(cell: Cell, whole: Cell) -> float:
    """The KL at the step of freezing. Up to there both are one run, and the one that is frozen then
    is evaluated there."""
    if cell.x in cell.curve.steps:
        return cell.curve.kl[cell.curve.steps.index(cell.x)]
    return at(whole.curve, cell.x)


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
