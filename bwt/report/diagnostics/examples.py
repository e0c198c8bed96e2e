"""A few sequences: the exact posterior above, the model below."""

from bwt.records.geometry import Examples
from bwt.report import charts, words
from bwt.report.cards import Card
from bwt.report.diagnostics.shown import Shown


def cards(section: Examples) -> list[Card]:
    rows = [
        [
            (f"{kind}, sequence {i + 1}", charts.transposed(getattr(example, kind)))
            for i, example in enumerate(section.sequences)
        ]
        for kind in ("exact", "model")
    ]
    furthest = max(
        max(abs(a - b) for a, b in zip(p, q, strict=True))
        for example in section.sequences
        for p, q in zip(example.exact, example.model, strict=True)
    )
    picture = charts.heat_maps(
        rows,
        "Example sequences",
        "step in the sequence",
        "outcome",
        cell=(190, 130),
        marks=[[example.targets for example in section.sequences]] * len(rows),
        share_scale=False,
        first=(1, 0),
    )
    reading = (
        "Stronger colour is more probable (square root); a dot is what was really the case. Above "
        "the exact posterior, below the model. The largest difference in these sequences is "
        f"{words.num(furthest)}."
    )
    return [Card("examples", "Three sequences", picture, reading, wide=True)]


SHOWN = Shown("examples", "Examples", Examples, cards)
