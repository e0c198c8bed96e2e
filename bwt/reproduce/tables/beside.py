"""The paper's figures beside ours: compared only where generator and metric are the same."""

from collections.abc import Sequence

from bwt import paper
from bwt.report.words import known, mean
from bwt.reproduce.tables.circumstances import differences
from bwt.reproduce.tables.table import number, percent
from bwt.reproduce.tables.variants import Seeds

FACTOR, POINTS = 2.0, 0.02
RULE = (
    f"Beside the paper: agrees if within a factor of {FACTOR:g} (accuracy: {100 * POINTS:g} "
    "points) of a figure of it, for the same generator and metric only. Its bijection is taken to "
    "draw keys with replacement, as the uniform guess then scores its MLP's figure; its entropies "
    "of the bijection are averaged over sequences before they are compared, and so are ours for "
    "this comparison."
)


def papers(seeds: Seeds) -> str:
    """Its figures, of versions 1 and 3 if there are two."""
    show = percent if seeds.task == "recall" else number
    return " / ".join(show(x.value) for x in _figures(seeds)) or "-"


def _figures(seeds: Seeds) -> tuple[paper.Figure, ...]:
    """Of the row, or where rows are no models, of the model."""
    model = seeds.cells[0].config["model"]
    found = (paper.HEADLINE.get((seeds.task, name), ()) for name in (seeds.row, model))
    return next(filter(None, found), ())


def other_generator(seeds: Seeds) -> list[str]:
    """In what ours differs from that of the paper's figures, if there are any."""
    if not _figures(seeds):
        return []
    return differences(seeds.cells[0].config, paper.GENERATORS[seeds.task])


def beside(seeds: Seeds) -> str:
    figures = _figures(seeds)
    if not figures:
        return "-"
    notes = [x.note for x in figures if x.note]
    other = other_generator(seeds)
    if other:
        return "; ".join([f"another generator ({', '.join(other)}): not comparable", *notes])
    return "; ".join([_compared(seeds, figures), *notes])


def _compared(seeds: Seeds, figures: Sequence[paper.Figure]) -> str:
    metric = next((x.metric for x in figures if x.metric), None)
    if metric is None:
        return "not comparable"
    each = [x.metrics[metric].mean for x in seeds.cells]
    if not all(map(known, each)):
        return "no number"
    ours, theirs = mean(each), [x.value for x in figures if x.metric]

    def agrees(value: float) -> bool:
        if metric == "accuracy":
            return abs(ours - value) <= POINTS
        return value / FACTOR <= ours <= value * FACTOR

    if any(map(agrees, theirs)):
        return "agrees"
    show = percent if metric == "accuracy" else number
    if ours > max(theirs):
        return f"higher than {show(max(theirs))}"
    return f"lower than {show(min(theirs))}" if ours < min(theirs) else "between the two"
