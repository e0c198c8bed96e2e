"""Plain text in rows and columns, and numbers over seeds."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bwt.records.results import Cell
from bwt.report.words import known, mean, num

APART = 10.0  # factor between neighbours that makes two outcomes of one
SHARES_APART = 0.25  # the same for accuracies, where a factor says little
RESOLUTION = 1e-6  # bits; what is less is rounding, and no outcome of its own
SPREAD = (
    "Numbers are mean ± standard deviation over seeds. Where neighbours among the sorted seeds are "
    f"at least a factor of {APART:g} apart (accuracy: {100 * SHARES_APART:g} points), or some are "
    "at a floor or worse than the best of them and others not, seeds came to different outcomes, "
    "and each is given by itself."
)


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str]
    study: str = ""  # in whose section it stands; "": in one of its own


def number(x: float | None) -> str:
    return num(x) if known(x) else "-"


def percent(x: float) -> str:
    return f"{100 * x:.1f}%"


def factor(x: float) -> str:
    return f"{x:.0f}x" if x >= 100 else f"{x:.3g}x"


def spread(
    values: Sequence[float],
    show: Callable[[float], str] = number,
    *,
    outcomes: bool = True,
    states: Sequence[str] = (),
    one: str = " (1 seed)",
) -> str:
    """Mean and standard deviation over seeds; of several outcomes each by itself, see SPREAD.
    states: of each seed, if it is known; those of different ones are different outcomes. one: what
    is said of a number that has no spread."""
    if not values:
        return "-"
    if len(values) == 1 and known(values[0]):
        return f"{show(values[0])}{one}"
    alike: dict[str, list[float]] = {}
    for value, state in zip(values, states or [""] * len(values), strict=True):
        alike.setdefault(state, []).append(value)
    parts = [
        part
        for each in alike.values()
        for part in _outcomes(sorted(filter(known, each)), show is percent, outcomes)
    ]
    parts.sort()
    texts = [_plain(part, show) for part in parts]
    sizes = [len(part) for part in parts]
    missing = len(values) - sum(sizes)
    if missing:
        texts, sizes = [*texts, "no number"], [*sizes, missing]
    if len(texts) == 1:
        return texts[0]
    first, *rest = sorted(zip(sizes, texts, strict=True), key=lambda pair: -pair[0])
    said = f"{first[0]} of {len(values)} seeds {first[1]}"
    if len(rest) == 1:
        return f"{said}, the other{'s' * (rest[0][0] > 1)} {rest[0][1]}"
    return said + "".join(f", {count} at {text}" for count, text in rest)


def _outcomes(ordered: list[float], shares: bool, several: bool) -> list[list[float]]:
    """Parts between which there is a gap, if there may be several."""
    parts: list[list[float]] = []
    for x in ordered:
        if parts and not (several and _apart(parts[-1][-1], x, shares)):
            parts[-1].append(x)
        else:
            parts.append([x])
    return parts


def _apart(less: float, more: float, shares: bool) -> bool:
    if shares:
        return more - less >= SHARES_APART
    return more >= APART * max(less, RESOLUTION)


def _plain(values: list[float], show: Callable[[float], str]) -> str:
    middle, apart = show(mean(values)), deviation(values)
    return middle if apart is None else f"{middle} ± {_short(apart, show)}"


def deviation(values: Sequence[float]) -> float | None:
    """The standard deviation; None of one value."""
    if len(values) < 2:
        return None
    return math.sqrt(sum((x - mean(values)) ** 2 for x in values) / (len(values) - 1))


def _short(x: float, show: Callable[[float], str]) -> str:
    """One digit says enough."""
    return show(x if show is percent else float(f"{x:.1g}"))


def together(words: Sequence[str]) -> str:
    """What is said of each seed, said of all of them."""
    (first, count), *rest = Counter(words).most_common()
    if not rest:
        return first
    said = f"{first} in {count} of {len(words)} seeds"
    return said + "".join(f", {other} in {n}" for other, n in rest)


def spread_of(cells: Sequence[Cell], metric: str) -> str:
    show = percent if metric == "accuracy" else number
    return spread([x.metrics[metric].mean for x in cells], show, states=states_of(cells))


def states_of(cells: Sequence[Cell]) -> list[str]:
    return [x.state() for x in cells]
