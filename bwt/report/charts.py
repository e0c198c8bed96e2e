"""Charts of a report: lines, scatters, heat maps, dots. Each returns one <svg>."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain

from bwt.records.estimates import Estimate, mean_of
from bwt.report.svg import CHAR, Drawing, Scale, cells, fitted, label, short
from bwt.report.words import known, num, pm

NUM_COLORS = 6  # classes c0 .. c5
RAMP = ("#2f6db5", "#6b63b8", "#a4569f", "#d1546f", "#e8714a", "#eda23c")  # low .. high


@dataclass
class Series:
    name: str  # "": not in the legend
    x: Sequence[float]
    y: Sequence[float | None]
    error: Sequence[float | None] | None = None
    color: int = 0
    dashed: bool = False
    dots: bool = False
    joined: bool = True  # by a line
    thin: bool = False

    @classmethod
    def of(
        cls,
        name: str,
        x: Sequence[float],
        estimates: Sequence[Estimate | None],
        *,
        color: int = 0,
        dashed: bool = False,
    ) -> "Series":
        """Dots with their standard errors; a gap where there is no estimate."""
        error = [e.se if e else None for e in estimates]
        return cls(name, x, list(map(mean_of, estimates)), error, color, dashed, dots=True)


def _legend(drawing: Drawing, series: Sequence[Series], left: float) -> float:
    """Above the plot, in as many rows as needed; where the plot may begin."""
    x, y = left, 12.0
    for s in (s for s in series if s.name):
        width = 26 + CHAR * len(s.name) + 12
        if x + width > drawing.width and x > left:
            x, y = left, y + 17
        style = f"line c{s.color}" + (" dash" if s.dashed else "")
        drawing.path(f"M{short(x)} {short(y - 4)}h18", class_=style)
        drawing.text(x + 23, y, s.name)
        x += width
    return y + 12


def _axes(
    drawing: Drawing,
    x: Scale,
    y: Scale,
    x_label: str,
    y_label: str,
    names: Sequence[str] | None = None,
) -> None:
    """names: of places along x, instead of numbers."""
    bottom = y.start
    for tick in y.ticks():
        at = y(tick)
        drawing.path(f"M{short(x.start)} {short(at)}H{short(x.end)}", class_="grid")
        drawing.text(x.start - 6, at + 4, label(tick), "end", class_="tick")
    ticks: dict[float, str] = {t: label(t) for t in x.ticks()}
    if names:
        ticks = dict(enumerate(names))
    for tick, text in ticks.items():
        drawing.path(f"M{short(x(tick))} {short(bottom)}v4", class_="axis")
        drawing.text(x(tick), bottom + 17, text, "middle", class_="tick")
    drawing.path(f"M{short(x.start)} {short(bottom)}H{short(x.end)}", class_="axis")
    drawing.text((x.start + x.end) / 2, bottom + 35, x_label, "middle")
    middle = (y.start + y.end) / 2
    drawing.text(13, middle, y_label, "middle", transform=f"rotate(-90 13 {short(middle)})")


def lines(
    series: Sequence[Series],
    title: str,
    x_label: str,
    y_label: str,
    *,
    log_x: bool = False,
    log_y: bool = False,
    zero: bool = False,
    names: Sequence[str] | None = None,
    marker: tuple[float, str] | None = None,
    width: float = 440,
) -> str:
    """Lines with error bands. marker: a place on the x axis to point out."""
    drawing = Drawing(width, 282, title)
    left = 62.0
    top = _legend(drawing, series, left)
    xs = [float(v) for s in series for v in s.x]
    ys = [v + e * d for s in series for v, e in _with_error(s) for d in (-1, 1)]
    if names:
        x = Scale(-0.35, len(names) - 0.65, left, width - 12)
    elif log_x:
        x = Scale(min(xs), max(max(xs), 2 * min(xs)), left, width - 12, True)
    else:
        x = fitted(xs, left, width - 12)
    y = fitted(ys, 236, top, log=log_y, zero=zero)
    _axes(drawing, x, y, x_label, y_label, names)
    drawing.explain(x, y)
    if names:
        drawing.data["data-names"] = "|".join(names)
    if marker is not None:
        drawing.path(f"M{short(x(marker[0]))} {short(top)}V236", class_="marker")
        drawing.text(x(marker[0]) + 5, top + 11, marker[1], class_="tick")
    for s in series:
        _draw_series(drawing, s, x, y)
    return drawing.render()


def _with_error(s: Series) -> list[tuple[float, float]]:
    errors = s.error or [0.0] * len(s.y)
    return [(v, _size(e)) for v, e in zip(s.y, errors, strict=True) if known(v)]


def _size(error: float | None) -> float:
    return error if known(error) else 0.0


def _draw_series(drawing: Drawing, s: Series, x: Scale, y: Scale) -> None:
    errors = s.error or [0.0] * len(s.y)
    rows = [
        (x(a), b, _size(e))
        for a, b, e in zip(s.x, s.y, errors, strict=True)
        if known(b) and (b > 0 or not y.log)
    ]
    if not rows:
        return

    def at(value: float) -> float:
        return y(max(value, y.low))

    if s.error:
        above = [f"{short(a)} {short(at(b + e))}" for a, b, e in rows]
        below = [f"{short(a)} {short(at(b - e))}" for a, b, e in reversed(rows)]
        drawing.path(f"M{'L'.join(above + below)}Z", class_=f"band f{s.color}")
    style = f"line c{s.color}" + (" dash" if s.dashed else "") + (" thin" if s.thin else "")
    if len(rows) > 1 and s.joined:
        line = "M" + "L".join(f"{short(a)} {short(at(b))}" for a, b, _ in rows)
        drawing.path(line, class_=style, data_name=escape(s.name))
    if s.dots or len(rows) == 1:
        for a, b, e in rows:
            if e:
                drawing.path(f"M{short(a)} {short(at(b - e))}V{short(at(b + e))}", class_=style)
            drawing.add("circle", cx=a, cy=at(b), r=3, class_=f"f{s.color}")


def _tip(text: str) -> dict[str, str]:
    """What the pointer shows; a page without its script does without."""
    return {"data_tip": escape(text)}


def scatter(
    xs: Sequence[float],
    ys: Sequence[float],
    values: Sequence[float],
    title: str,
    x_label: str,
    y_label: str,
    value_label: str,
    *,
    groups: bool = False,
) -> str:
    """Points coloured by a value (with a colour bar) or, with `groups`, by their group."""
    drawing = Drawing(440, 300, title)
    points = [p for p in zip(xs, ys, values, strict=True) if all(map(known, p))]
    ends = (62, 428), (250, 48 if groups else 34)
    x, y = (fitted([p[i] for p in points], *ends[i]) for i in range(2))
    _axes(drawing, x, y, x_label, y_label)
    drawing.explain(x, y)
    shown = [value for *_, value in points]
    low, high = min(shown, default=0.0), max(shown, default=0.0)
    levels = len(RAMP)
    paths: dict[int, list[str]] = {}
    for a, b, v in points:
        share = (v - low) / (high - low) if high > low else 0
        level = int(v) % NUM_COLORS if groups else min(levels - 1, int(levels * share))
        # A line of no length with round ends is a dot, in a third of a circle's bytes.
        paths.setdefault(level, []).append(f"M{short(x(a))} {short(y(b))}h0")
    for level, dots in sorted(paths.items()):
        color = {"class_": f"dot c{level}"}
        if not groups:
            color = {"class_": "dot", "stroke": RAMP[level]}
        drawing.path("".join(dots), **color)
    if groups:
        drawing.text(62, 14, value_label)
        _groups_legend(drawing, sorted({int(v) for v in shown}))
    else:
        _colour_bar(drawing, low, high, value_label)
    return drawing.render()


def _groups_legend(drawing: Drawing, groups: Sequence[int]) -> None:
    """Which groups have which colour; colours repeat, and names that do not fit are cut."""
    x = 66.0
    for color in range(min(NUM_COLORS, 1 + max(groups, default=0))):
        named = [str(group) for group in groups if group % NUM_COLORS == color]
        text = ", ".join(named[:2]) + (" …" if len(named) > 2 else "")
        if text:
            drawing.path(f"M{short(x)} 27h0", class_=f"dot c{color}")
            drawing.text(x + 7, 31, text, class_="tick")
            x += 20 + 6.2 * len(text)


def _colour_bar(drawing: Drawing, low: float, high: float, text: str) -> None:
    drawing.text(62, 14, text)
    left = 62 + CHAR * len(text) + 14
    drawing.text(left, 14, label(low), class_="tick")
    left += CHAR * len(label(low)) + 6
    for i, color in enumerate(RAMP):
        drawing.add("rect", x=left + 16.0 * i, y=5.0, width=16.5, height=10, fill=color)
    drawing.text(left + 16 * len(RAMP) + 6, 14, label(high), class_="tick")


def heat_maps(
    maps: Sequence[Sequence[tuple[str, Sequence[Sequence[float]]]]],
    title: str,
    x_label: str,
    y_label: str,
    *,
    cell: tuple[float, float] = (120, 84),
    marks: Sequence[Sequence[Sequence[int]]] | None = None,
    share_scale: bool = True,
    first: tuple[int, int] = (0, 0),
    boundary: int | None = None,
) -> str:
    """Rows of named heat maps of numbers from 0 to 1. share_scale: each is scaled to its largest.
    marks: for each map of each row, a row index for every column to point out. first: the numbers
    of the first column and row. boundary: a column before which a line is drawn."""
    wide, high = cell
    columns, left = max(map(len, maps)), 46
    bottom = 18 + len(maps) * (high + 26)
    drawing = Drawing(max(left + columns * (wide + 12), 330.0), bottom + 38, title)
    named = {"data_row": f"{y_label} {first[1]}", "data_column": f"{x_label} {first[0]}"}
    for i, row in enumerate(maps):
        for j, (name, matrix) in enumerate(row):
            x, y = left + j * (wide + 12), 18 + i * (high + 26)
            drawing.text(x, y - 4, name, class_="tick")
            top = max(filter(known, chain(*matrix)), default=0.0) if share_scale else 1.0
            top = top if top > 0 else 1.0
            cells(drawing, matrix, x, y, wide, high, top, data_name=escape(name), **named)
            if marks:
                point_out(drawing, marks[i][j], len(matrix), x, y, wide, high)
            if boundary:
                at = x + wide * boundary / len(matrix[0])
                drawing.path(f"M{short(at)} {short(y)}v{short(high)}", class_="marker")
            if i == len(maps) - 1:
                for k, at in _middles(len(matrix[0]), x, wide):
                    drawing.text(at, y + high + 13, str(first[0] + k), "middle", class_="tick")
            if j == 0:
                row_ticks(drawing, len(matrix), x, y, high, first[1])
    drawing.text(left + columns * (wide + 12) / 2, bottom + 10, x_label, "middle")
    middle = bottom / 2
    drawing.text(13, middle, y_label, "middle", transform=f"rotate(-90 13 {short(middle)})")
    _shades(drawing, left, bottom + 30, "largest of each map" if share_scale else "1")
    return drawing.render()


def transposed(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    return [list(row) for row in zip(*matrix, strict=True)]


def _middles(count: int, start: float, length: float) -> list[tuple[int, float]]:
    """Where the first, the middle and the last of `count` cells have their ticks."""
    chosen = sorted({0, (count - 1) // 2, count - 1} if count > 6 else {0, count - 1})
    return [(k, start + (k + 0.5) * length / count) for k in chosen]


def row_ticks(
    drawing: Drawing, count: int, x: float, y: float, high: float, first: int = 0
) -> None:
    """The numbers of a few rows of a heat map whose corner is at x, y."""
    for k, at in _middles(count, y, high):
        drawing.text(x - 5, at + 4, str(first + k), "end", class_="tick")


def _shades(drawing: Drawing, x: float, y: float, most: str) -> None:
    """The colour bar of heat maps: opacity is the square root of a share."""
    drawing.text(x, y, "0", class_="tick")
    for i in range(10):
        opacity = f"{(i / 9) ** 0.5:.2f}"
        place = {"x": x + 12 + 9.0 * i, "y": y - 9, "width": 9.0, "height": 10}
        drawing.add("rect", class_="heat", fill_opacity=opacity, **place)
    drawing.text(x + 108, y, most, class_="tick")


def point_out(
    drawing: Drawing,
    rows: Sequence[int],
    count: int,
    x: float,
    y: float,
    wide: float,
    high: float,
) -> None:
    """A dot in one row of each column of a heat map of `count` rows."""
    dots = "".join(
        f"M{short(x + (j + 0.5) * wide / len(rows))} {short(y + (i + 0.5) * high / count)}h0"
        for j, i in enumerate(rows)
    )
    drawing.path(dots, class_="truth")


def table_map(
    values: Sequence[Sequence[float | None]],
    texts: Sequence[Sequence[str]],
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
) -> str:
    """Numbers in cells that are shaded by a value from 0 to 1."""
    left = 14 + CHAR * max(map(len, rows))
    wide = max(52.0, 16 + CHAR * max(map(len, [*columns, *(t for row in texts for t in row)])))
    drawing = Drawing(left + wide * len(columns) + 4, 26 + 28 * len(rows), title)
    for j, name in enumerate(columns):
        drawing.text(left + wide * (j + 0.5), 15, name, "middle", class_="tick")
    for i, name in enumerate(rows):
        y = 22.0 + 28 * i
        drawing.text(left - 8, y + 18, name, "end", class_="tick")
        for j, value in enumerate(values[i]):
            if value is None:
                continue
            x = left + wide * j
            shade = f"{0.6 * min(1.0, max(0.0, value)):.2f}"
            place = {"x": x, "y": y, "width": wide - 3, "height": 25.0}
            drawing.add("rect", class_="heat framed", fill_opacity=shade, **place)
            drawing.text(x + (wide - 3) / 2, y + 17, texts[i][j], "middle")
    return drawing.render()


def dots(
    rows: Sequence[tuple[str, Estimate, int]],
    title: str,
    x_label: str,
    *,
    log: bool = True,
    each: Sequence[Sequence[float]] = (),
    width: float = 440,
    above: bool = False,
) -> str:
    """One row a name: a point with its error bar and colour. each: for each row, further values to
    be drawn smaller. above: names stand above their points, so that long ones fit a phone."""
    left = 14.0 if above else 24 + CHAR * max(len(row[0]) for row in rows)
    pitch = 40.0 if above else 22.0
    drawing = Drawing(max(width, left + 280), (58 if above else 52) + pitch * len(rows), title)
    bottom = 10.0 + pitch * len(rows)
    shown = [e.mean for _, e, _ in rows] + list(chain(*each))
    x = fitted(shown, left, drawing.width - 16, log=log, zero=not log)
    for tick in x.ticks():
        drawing.path(f"M{short(x(tick))} 6V{short(bottom)}", class_="grid")
        drawing.text(x(tick), bottom + 15, label(tick), "middle", class_="tick")
    for i, (name, estimate, color) in enumerate(rows):
        value, error = estimate.mean, estimate.se
        y = pitch * (i + 1) - (8 if above else 4)
        if above:
            _name_above(drawing, name, x, value, y, log)
        else:
            drawing.text(left - 10, y + 4, name, "end", class_="tick")
        for other in each[i] if i < len(each) else ():
            if known(other) and (other > 0 or not log):
                drawing.add("circle", cx=x(other), cy=y, r=2, class_=f"f{color}")
        if not known(value) or (log and value <= 0):
            continue
        low, high = (max(value + d * _size(error), x.low) for d in (-1, 1))
        drawing.path(f"M{short(x(low))} {short(y)}H{short(x(high))}", class_=f"line c{color}")
        tip = _tip(f"{name}: {pm(estimate)}")
        radius = 7.0 if above else 4.5
        drawing.add("circle", cx=x(value), cy=y, r=radius, class_=f"f{color}", **tip)
    drawing.text((left + drawing.width) / 2, bottom + (40 if above else 34), x_label, "middle")
    return drawing.render()


def _name_above(drawing: Drawing, name: str, x: Scale, value: float, y: float, log: bool) -> None:
    """At the side of its point on which there is room."""
    at = x(value) if known(value) and (value > 0 or not log) else x.start
    right = at > (x.start + x.end) / 2
    shown = f"{name}: {num(value)}"
    drawing.text(at + 6 if right else at - 6, y - 12, shown, "end" if right else "start")
