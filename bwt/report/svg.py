"""Drawing in SVG: scales, ticks, shapes. Colours are classes, so that one style sheet serves light,
dark and paper."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from bwt.report.words import known

CHAR = 7.0  # mean width of a letter at 12 pixels
LEVELS = 20  # of a heat map


@dataclass(frozen=True)
class Scale:
    """Numbers to places along an axis."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = (math.log10(x) for x in (value, low, high))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def in_words(self) -> str:
        ends = " ".join(f"{v:.6g}" for v in (self.low, self.high, self.start, self.end))
        return f"{ends} {'log' if self.log else 'even'}"

    def ticks(self) -> list[float]:
        return _log_ticks(self.low, self.high) if self.log else _even_ticks(self.low, self.high)


def fitted(
    values: Sequence[float], start: float, end: float, *, log: bool = False, zero: bool = False
) -> Scale:
    """A scale that shows all values; a log one leaves out those that are not positive."""
    values = [v for v in values if known(v) and (v > 0 or not log)]
    low, high = (min(values), max(values)) if values else (1.0, 10.0)
    if log:
        low, high = low / 1.15, high * 1.15
        if high / low < 4:
            low, high = low / 2, high * 2
    else:
        low = min(low, 0.0) if zero else low
        pad = 0.04 * (high - low) or 0.5 * abs(high) or 1.0
        low, high = (low if zero and low == 0 else low - pad), high + pad
    return Scale(low, high, start, end, log)


def _even_ticks(low: float, high: float) -> list[float]:
    step = 10 ** math.floor(math.log10((high - low) / 4))
    for factor in (1, 2, 5, 10):
        if (high - low) / (step * factor) <= 5:
            step *= factor
            break
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = max(1, math.ceil(len(decades) / 6))
    ticks = [10.0**d for d in decades if d % every == 0 and low <= 10.0**d <= high]
    if len(ticks) < 3:
        ticks = [m * 10.0**d for d in decades for m in (1, 2, 5) if low <= m * 10.0**d <= high]
    return ticks


def label(value: float) -> str:
    """A number as a tick."""
    if value == 0:
        return "0"
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    if abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) >= 1e-3 else f"{value:.0e}".replace("e-0", "e-")


@dataclass
class Drawing:
    width: float
    height: float
    title: str  # for those who cannot see it
    parts: list[str] = field(default_factory=list)
    # For the script that shows values under the pointer; nothing without it.
    data: dict[str, str] = field(default_factory=dict)

    def explain(self, x: Scale, y: Scale) -> None:
        """Lets a place in the drawing be read as numbers."""
        self.data |= {"data-x": x.in_words(), "data-y": y.in_words()}

    def add(self, tag: str, text: str | None = None, /, **attributes: object) -> None:
        names = {key.rstrip("_").replace("_", "-"): v for key, v in attributes.items()}
        shown = "".join(
            f' {k}="{short(v) if isinstance(v, float) else v}"' for k, v in names.items()
        )
        self.parts.append(f"<{tag}{shown}/>" if text is None else f"<{tag}{shown}>{text}</{tag}>")

    def text(self, x: float, y: float, text: str, anchor: str = "start", **more: object) -> None:
        self.add("text", escape(text), x=float(x), y=float(y), text_anchor=anchor, **more)

    def path(self, d: str, **attributes: object) -> None:
        self.add("path", d=d, **attributes)

    def render(self) -> str:
        box = f"0 0 {short(self.width)} {short(self.height)}"
        data = "".join(f' {name}="{escape(value)}"' for name, value in self.data.items())
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" role="img"{data}'
        size = f'style="max-width:{short(self.width * 1.25)}px"'
        return f"{head} {size}><title>{escape(self.title)}</title>{''.join(self.parts)}</svg>"


def short(x: float) -> str:
    return f"{x:.1f}".rstrip("0").rstrip(".")


def cells(
    drawing: Drawing,
    matrix: Sequence[Sequence[float]],
    x: float,
    y: float,
    w: float,
    h: float,
    top: float = 1.0,
    /,
    **data: str,
) -> None:
    """A heat map in the rectangle: the opacity of one colour is the square root of a value's share
    of `top`, so that small values are seen. Runs of equal cells in a row are one line, as wide as
    a cell is high, and each level is one path."""
    paths: dict[int, list[str]] = {}
    high, wide = h / len(matrix), w / len(matrix[0])
    for i, row in enumerate(matrix):
        levels = [min(LEVELS, round(LEVELS * math.sqrt(max(0.0, v) / top))) for v in row]
        start = 0
        for j in range(1, len(row) + 1):
            if j == len(row) or levels[j] != levels[start]:
                if levels[start]:
                    paths.setdefault(levels[start], []).append(f"M{start} {i}h{j - start}")
                start = j
    # A line runs along the middle of its row.
    place = f"translate({short(x)} {y + high / 2:.2f}) scale({wide:.4g} {high:.4g})"
    inner = "".join(
        f'<path d="{"".join(d)}" stroke-opacity="{level / LEVELS:g}"/>'
        for level, d in sorted(paths.items())
    )
    drawing.add("rect", x=float(x), y=float(y), width=float(w), height=float(h), class_="frame")
    drawing.add("g", inner, transform=place, class_="heat", data_top=f"{top:.3g}", **data)
