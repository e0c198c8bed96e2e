"""Does attention settle before the predictions are precise?"""

from collections.abc import Callable

from bwt import paper
from bwt.records.geometry import Checkpoint, Dissociation
from bwt.report import charts, words
from bwt.report.cards import Card
from bwt.report.charts import Series
from bwt.report.diagnostics.shown import Shown


def cards(section: Dissociation) -> list[Card]:
    start, rows = section.checkpoints[0], section.checkpoints[1:]
    return [
        Card(
            "dissociation",
            "Does attention settle before precision?",
            _shares(start, rows),
            in_words(section) + " Distances to the final maps and states end at zero by "
            "definition; that point is left out.",
            paper.NOTES["dissociation"],
        ),
        Card(
            "unfurling",
            "How the states spread out",
            _unfurling(rows),
            f"Last layer. Scatter of the most certain quarter of the states, relative to all: "
            f"{words.num(start.spread)} before training, {words.num(rows[-1].spread)} at the "
            f"end. Variance along the first component: {words.percent(start.pc1)} and "
            f"{words.percent(rows[-1].pc1)}.",
        ),
    ]


def _shares(start: Checkpoint, rows: list[Checkpoint]) -> str:
    def share(name: str, value: Callable[[Checkpoint], float], rows: list, color: int) -> Series:
        first = value(start)
        shares = [value(row) / first if first > 0 else None for row in rows]
        return Series(name, [row.step for row in rows], shares, color=color, dots=True)

    series = [share("KL", lambda row: row.kl.mean, rows, 0)]
    if all(row.attention is not None for row in (start, *rows)):
        maps = share("attention to final", lambda row: row.attention.mean, rows[:-1], 1)
        series.append(maps)
    series.append(share("states to final", lambda row: row.distance, rows[:-1], 2))
    return charts.lines(
        series,
        "Frame and precision",
        "training step",
        "share of the value at the start",
        log_x=True,
        log_y=True,
    )


def _unfurling(rows: list[Checkpoint]) -> str:
    steps = [row.step for row in rows]
    series = [
        Series("spread of certain states", steps, [row.spread for row in rows], dots=True),
        Series("PC1 share", steps, [row.pc1 for row in rows], color=1, dots=True),
    ]
    if rows[-1].entropy_r2 is not None:
        r2 = [row.entropy_r2 for row in rows]
        series.append(Series("entropy R²", steps, r2, color=2, dots=True))
    return charts.lines(series, "Unfurling", "training step", "share", log_x=True, zero=True)


def in_words(section: Dissociation) -> str:
    settled, last = section.settled, section.checkpoints[-1].step
    if len(section.checkpoints) < 4:
        return "Too few checkpoints to say when anything settles."
    text = ""
    if settled.attention is not None:
        factor = section.kl_factor_after
        text = (
            "Attention maps stay within a tenth of the way to their final form from step "
            f"{settled.attention} on (of {last}); the KL is "
            f"{words.num(section.kl_when_attention_settled)} bits then and "
        )
        if factor is not None and factor > 2:
            text += (
                f"falls by another factor of {words.num(factor)} while attention goes the last "
                "tenth. "
            )
        else:
            text += (
                f"changes by a factor of {words.num(factor)} after that: no dissociation to speak "
                "of. "
            )
    return text + (
        f"States settle at step {settled.distance}, precision (log KL) at step "
        f"{settled.precision}. “Settled” depends on the checkpoints there are, which are spaced "
        "on a log scale."
    )


SHOWN = Shown("dissociation", "Dissociation", Dissociation, cards, sentences={"training": in_words})
