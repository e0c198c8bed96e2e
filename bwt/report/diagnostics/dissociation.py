"""Does attention settle before the predictions are precise?"""

from collections.abc import Callable

from bwt import paper
from bwt.records.estimates import mean_of
from bwt.records.geometry import PLATEAU, Checkpoint, Dissociation, Slopes
from bwt.report import charts, words
from bwt.report.cards import Card
from bwt.report.charts import Series
from bwt.report.diagnostics.shown import Shown

ALIKE = 1.25  # ratios nearer to 1 are not worth a name, however sure
UNSURE = 2.0  # an upper end of the interval beyond which nothing is ruled out


def cards(section: Dissociation) -> list[Card]:
    start, rows = section.checkpoints[0], section.checkpoints[1:]
    return [
        Card(
            "dissociation",
            "Does attention settle before precision?",
            _shares(start, rows),
            in_words(section) + " Distances are to the last two checkpoints, which are left out.",
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
    def share(name: str, value: Callable[[Checkpoint], float | None], color: int) -> Series:
        first = value(start)
        values = [value(row) for row in rows]
        shares = [x / first if first and x is not None else None for x in values]
        return Series(name, [row.step for row in rows], shares, color=color, dots=True)

    series = [share("KL", lambda row: row.kl.mean, 0)]
    if start.attention is not None:
        series.append(share("attention", lambda row: mean_of(row.attention), 1))
    series.append(share("states", lambda row: row.distance, 2))
    return charts.lines(
        series,
        "Frame and precision",
        "training step",
        "share of the value before training",
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
    start, rows = section.checkpoints[0], section.checkpoints[1:]
    end = rows[-1].kl.mean
    course = f"from {words.num(start.kl.mean)} to {words.num(end)} bits"
    if start.attention is None:
        return f"No attention to set against the KL, which goes {course}."
    if not end < start.kl.mean / 2:
        return f"Too little was learned to say what settles first: the KL goes {course}."
    if section.slopes is None:
        return (
            f"Too few checkpoints to say what settles first, too small a fall of the KL ({course}) "
            "or too sudden a one: it takes four at which the KL is falling, to a fifth of what it "
            "was, and still is twice that of the last two, over so many doublings of the steps "
            "that the ratio has an interval. Train on, or with more --evaluations."
        )
    at_floor = _at_floor(section, section.slopes)
    noise = _noise(section) if at_floor else ""
    return f"{_verdict(section.slopes, at_floor)}{noise}{_weighting(section)}{_annealing(section)}"


def _verdict(found: Slopes, at_floor: bool) -> str:
    course = (
        f"From step {found.steps[0]} to {found.steps[-1]} ({len(found.steps)} checkpoints), on log "
        f"scales, attention nears its late form {words.num(found.ratio)} times as fast as the KL "
        f"falls ({words.num(found.low)} to {words.num(found.high)}): "
    )
    if found.low > 1 and found.ratio > ALIKE:
        verdict = "it settles before precision, a dissociation"
    elif found.high < 1 and found.ratio < 1 / ALIKE and not at_floor:
        verdict = "it settles more slowly than precision, the reverse of a dissociation"
    else:
        verdict = "no dissociation"
        if found.high > UNSURE:
            verdict += f" is shown, though a ratio of {words.num(found.high)} is not ruled out"
    return (
        f"{course}{verdict}. Since learning began, its distance has fallen by a factor of "
        f"{words.num(found.attention_factor)} and the KL by {words.num(found.kl_factor)}."
    )


def _weighting(section: Dissociation) -> str:
    if section.shares is None or section.slopes_alike is None:
        return ""
    found = section.slopes_alike
    return (
        " Heads count by the bits that are lost with their keys alike; with all alike the ratio is "
        f"{words.num(found.ratio)} ({words.num(found.low)} to {words.num(found.high)})."
    )


def _at_floor(section: Dissociation, found: Slopes) -> bool:
    """Whether the maps come as near as their own noise lets them."""
    last = next(row for row in section.checkpoints if row.step == found.steps[-1])
    return last.attention is not None and last.attention.mean <= 2 * (section.floor or 0)


def _noise(section: Dissociation) -> str:
    return (
        f" At the end its distance is no more than noise ({words.num(section.floor)} bits), which "
        "hides what lies below: the ratio is a lower bound."
    )


def _annealing(section: Dissociation) -> str:
    if section.decay in (None, "none"):
        return ""
    if section.decay == PLATEAU:
        return " The learning rate was held until a plateau, and fell to 0 behind it."
    return (
        f" The learning rate was annealed ({section.decay}), which brings everything to rest at "
        "the end; --decay none shows what settles by itself."
    )


SHOWN = Shown(
    "dissociation",
    "Dissociation",
    Dissociation,
    cards,
    sentences={"training": in_words},
    numbers={
        "dissociation_ratio": lambda section: section.slopes and section.slopes.ratio,
        "dissociation_low": lambda section: section.slopes and section.slopes.low,
        "dissociation_high": lambda section: section.slopes and section.slopes.high,
        "dissociation_ratio_alike": lambda section: (
            section.slopes_alike and section.slopes_alike.ratio
        ),
    },
    legend=(
        "how fast attention nears its late form on a log scale, over how fast the KL falls (1: "
        "alike, above: attention settles first; 2 or 1/2 may be a matter of units), with the ends "
        "of its interval, heads counting by the bits that are lost with their keys alike; the same "
        "with all heads alike"
    ),
)
