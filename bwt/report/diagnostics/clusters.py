"""Do the final states form clusters, and are the clusters the likeliest hypotheses?"""

from bwt import paper
from bwt.records.geometry import Clusters
from bwt.report import charts, words
from bwt.report.cards import Card
from bwt.report.diagnostics.shown import Shown


def cards(section: Clusters) -> list[Card]:
    trained = section.trained
    x, y = zip(*trained.plane, strict=True)
    picture = charts.scatter(
        x,
        y,
        trained.outcome,
        "Final states by likeliest outcome",
        "component 1",
        "component 2",
        "colour: likeliest outcome under the exact posterior",
        groups=True,
    )
    reading = in_words(section)
    if trained.outcomes > charts.NUM_COLORS:
        reading += f" Colours repeat after {charts.NUM_COLORS} outcomes."
    note = paper.NOTES["clusters"]
    return [Card("clusters", "Do the final states cluster?", picture, reading, note)]


def in_words(section: Clusters) -> str:
    trained, control = section.trained, section.untrained
    quality = trained.silhouette
    kind = "distinct" if quality > 0.5 else "weak" if quality > 0.25 else "no"
    return (
        f"{kind.capitalize()} clusters: the best number by silhouette is {trained.clusters} "
        f"(silhouette {words.num(quality)}; untrained {words.num(control.silhouette)}). Agreement "
        f"with the likeliest outcome: adjusted Rand index {words.num(trained.rand)} (untrained "
        f"{words.num(control.rand)}); with as many clusters as outcomes, {trained.outcomes}: "
        f"{words.num(trained.rand_given_outcomes)}."
    )


SHOWN = Shown(
    "clusters",
    "Clusters",
    Clusters,
    cards,
    sentences={"clusters": in_words},
    numbers={
        "clusters": lambda section: section.trained.clusters,
        "clusters_rand": lambda section: section.trained.rand,
    },
    legend=(
        "clusters of the states, and how they agree with the likeliest outcome (adjusted Rand "
        "index)"
    ),
)
