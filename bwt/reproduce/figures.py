"""results.json -> figures of each study: what it varies, how its models learned, and what is inside
them."""

import re
from collections.abc import Iterator, Sequence

from bwt.records.estimates import Estimate
from bwt.records.results import Cell, Results, StudyText
from bwt.report import charts
from bwt.report.charts import Series
from bwt.report.page import file_name
from bwt.report.words import known, mean
from bwt.reproduce.by_layer import by_layer
from bwt.reproduce.drawing import COLORS, GREY, WIDTH, Figure, level, series
from bwt.reproduce.tables.variants import Seeds, variants

READABLE = 8  # series in one chart
SEEDS = "The median over seeds, and a small dot for each seed."

Placed = tuple[float, Seeds]  # on the axis of a figure


def build(results: Results) -> list[Figure]:
    return [figure for text in results.studies for figure in _of_study(results, text)]


def _of_study(results: Results, text: StudyText) -> Iterator[Figure]:
    found = variants(results, text.name)
    if any(x.x is not None for x in found):
        yield _by_axis(found, text)
    for setting in dict.fromkeys(x.setting for x in found):
        own = [x for x in found if x.setting == setting]
        draw = _curves if len(own) <= READABLE else _dots
        yield draw(own, text, setting)
    yield from by_layer(found, text)


def _by_axis(found: list[Seeds], text: StudyText) -> Figure:
    metric = "accuracy" if all(x.task == "recall" for x in found) else "kl"
    placed = [(x.x, x) for x in found if x.x is not None]
    grouped: dict[str, list[Placed]] = {}
    for at, x in placed:
        grouped.setdefault(_name(x, [y for _, y in placed]), []).append((at, x))
    drawn = [
        one
        for number, (name, each) in enumerate(grouped.items())
        for one in _along(name, each, metric, number)
    ]
    ends = [min(at for at, _ in placed), max(at for at, _ in placed)]
    for x in found:
        if x.x is None:
            drawn.append(level(x.row, ends, _median(x, metric)))
    label = "accuracy" if metric == "accuracy" else "KL (bits)"
    svg = charts.lines(
        drawn,
        f"{text.title}: {label} by {text.axis}",
        text.axis,
        label,
        log_x=ends[0] > 0 and ends[1] >= 8 * ends[0],
        log_y=metric == "kl",
        zero=metric == "accuracy",
        width=WIDTH,
    )
    return Figure(file_name(f"{text.name}-axis"), text.name, f"By {text.axis}", SEEDS, svg)


def _name(x: Seeds, placed: list[Seeds]) -> str:
    """Of a series: the setting, or what else tells variants at one place apart."""
    beside = [y for y in placed if (y.setting, y.x) == (x.setting, x.x)]
    return x.setting if len(beside) == 1 else re.sub(r"( at)? *[\d.,]+", "", x.row).strip()


def _along(name: str, each: list[Placed], metric: str, number: int) -> list[Series]:
    """A line through the medians, and a dot for each seed."""
    each = sorted(each, key=lambda placed: placed[0])
    medians = [_median(x, metric) for _, x in each]
    line = series(number, name, [at for at, _ in each], medians)
    dots = [(at, value) for at, x in each for value in _values(x, metric)]
    points = [p for p, _ in dots], [v for _, v in dots]
    return [line, Series("", *points, color=line.color, dots=True, joined=False)]


def _values(x: Seeds, metric: str) -> list[float]:
    return [cell.metrics[metric].mean for cell in x.cells]


def _median(x: Seeds, metric: str) -> float:
    return _middle(x.cells, metric).metrics[metric].mean


def _middle(cells: Sequence[Cell], metric: str) -> Cell:
    """The cell of the median, of two the lower; what is no number is the highest."""

    def place(cell: Cell) -> tuple[bool, float]:
        value = cell.metrics[metric].mean
        return not known(value), value

    ordered = sorted(cells, key=place)
    return ordered[(len(ordered) - 1) // 2]


def _curves(own: list[Seeds], text: StudyText, setting: str) -> Figure:
    drawn = [line for number, x in enumerate(own) for line in _seeds(x, number)]
    steps = [s for line in drawn for s in line.x]
    if steps:
        drawn += _floor(own, [min(steps), max(steps)])
    svg = charts.lines(
        drawn,
        f"{text.title}, {setting}: KL while training",
        "steps",
        "KL (bits)",
        log_x=True,
        log_y=True,
        width=WIDTH,
    )
    caption = "KL while training, of the seed whose KL at the end is the median; thin: the others."
    name = file_name(f"{text.name}-curves-{setting}")
    return Figure(name, text.name, f"Learning curves: {setting}", caption, svg)


def _seeds(x: Seeds, number: int) -> list[Series]:
    """The curve of the median, and thinly those of the other seeds."""
    middle = _middle(x.cells, "kl")
    others = [_curve(cell, "", number) for cell in x.cells if cell is not middle]
    for other in others:
        other.thin = True
    return [*others, _curve(middle, x.row, number)]


def _curve(cell: Cell, name: str, number: int) -> Series:
    curve = cell.curve
    points = [(s, k) for s, k in zip(curve.steps, curve.kl, strict=True) if s > 0]
    return series(number, name, [s for s, _ in points], [k for _, k in points])


def _floor(own: list[Seeds], ends: list[float]) -> list[Series]:
    """The best predictor that lacks something, if it is the same for all of them."""
    names = {x.best_floor() for x in own}
    if len(names) != 1:
        return []
    (name,) = names
    return [level(f"floor: {name}", ends, mean([x.floor_kl(name) for x in own]))]


def _dots(own: list[Seeds], text: StudyText, setting: str) -> Figure:
    rows = [(x.row, Estimate(_median(x, "kl"), None), COLORS[0]) for x in own]
    floors = {name: x.floor_kl(name) for x in own for name in [x.best_floor()]}
    rows += [(f"floor: {name}", Estimate(kl, None), GREY) for name, kl in floors.items()]
    each = [_values(x, "kl") for x in own]
    svg = charts.dots(rows, f"{text.title}, {setting}: KL", "KL (bits)", each=each)
    name = file_name(f"{text.name}-kl-{setting}")
    return Figure(name, text.name, f"KL: {setting}", SEEDS, svg)
