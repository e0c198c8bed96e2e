"""The error by position, beyond the length of training."""

from bwt import paper
from bwt.records.geometry import Lengths
from bwt.report import charts, words
from bwt.report.cards import Card
from bwt.report.charts import Series
from bwt.report.diagnostics.shown import Shown


def cards(section: Lengths) -> list[Card]:
    steps = list(range(1, section.tested + 1))
    curves = {"KL": section.kl, "entropy error": section.entropy_mae}
    series = [
        Series(label, steps, curve.mean, curve.se, color=i)
        for i, (label, curve) in enumerate(curves.items())
    ]
    picture = charts.lines(
        series,
        "Longer sequences",
        "step in the sequence",
        "bits",
        log_y=True,
        marker=(section.trained + 0.5, "trained to here"),
    )
    note = paper.NOTES["lengths"]
    return [Card("lengths", "Beyond the trained length", picture, in_words(section), note)]


def in_words(section: Lengths) -> str:
    trained, kl = section.trained, section.kl.mean
    inside, outside = words.mean(kl[:trained]), words.mean(kl[trained:])
    return (
        f"Trained on {trained} steps, tested on {section.tested}: {words.num(inside)} bits up to "
        f"step {trained}, {words.num(outside)} bits after it (mean KL), "
        f"{words.num(outside / max(inside, 1e-12))} times as much."
    )


SHOWN = Shown("lengths", "Longer sequences", Lengths, cards, sentences={"length": in_words})
