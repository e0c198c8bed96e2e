"""Pictures that several benchmarks draw."""

import sys
import textwrap
from typing import Any

from summary import per_unit


def bars(
    rows: list[dict], path: str, *, mode: str, cases: list[str], colours: dict[str, str], title: str
) -> None:
    """Times per unit on the fewest threads measured, a group of bars for each case."""
    rows = [row for row in rows if row["mode"] == mode and row["provider"] in colours]
    if not rows:
        print(f"--plot: nothing to draw: no {mode} was measured", file=sys.stderr)
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    threads = min(row["threads"] for row in rows)
    times = {(r["case"], r["provider"]): per_unit(r) * 1e3 for r in rows if r["threads"] == threads}
    cases = [case for case in cases if any(name == case for name, _ in times)]
    where = f"{rows[0]['device']}, {threads} thread{'s' * (threads > 1)}"
    with pyplot.rc_context({"svg.fonttype": "none", "font.size": 9, "axes.axisbelow": True}):
        figure, axes = pyplot.subplots(figsize=(8.4, 4.2), layout="constrained")
        _draw(axes, times, cases, colours)
        axes.set(yscale="log", ylabel=f"{mode.replace('+', ' + ')}, ms per {rows[0]['unit']}")
        axes.set_title(f"{title}, {where}")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
        names = [textwrap.fill(name.replace("-", " "), 9) for name in cases]
        axes.set_xticks(range(len(cases)), names)
        axes.tick_params(axis="x", length=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(True, axis="y", color="#dddddd", linewidth=0.6)
        figure.legend(frameon=False, ncols=len(colours), loc="outside upper center")
        figure.savefig(path)
        pyplot.close(figure)


def _draw(axes: Any, times: dict[tuple[str, str], float], cases: list[str], colours: dict) -> None:
    names = [name for name in colours if any(other == name for _, other in times)]
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        found = [(j, times[case, name]) for j, case in enumerate(cases) if (case, name) in times]
        places = [j + (i - (len(names) - 1) / 2) * width for j, _ in found]
        drawn = axes.bar(places, [t for _, t in found], width, color=colours[name], label=name)
        axes.bar_label(drawn, fmt=_two_digits, fontsize=6, padding=1)


def _two_digits(x: float) -> str:
    return f"{x:.0f}" if x >= 10 else f"{x:.2g}"
