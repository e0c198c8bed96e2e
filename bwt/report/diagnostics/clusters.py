"""Does what a model believes form clusters, and are the clusters the likeliest hypotheses?"""

from bwt import paper
from bwt.records.geometry import Clustering, Clusters, ClusterScores
from bwt.report import charts, words
from bwt.report.cards import Card, table
from bwt.report.diagnostics.shown import Shown

NO_CEILING = 0.1  # exact posteriors that agree less than this do not cluster by outcome either


def cards(section: Clusters) -> list[Card]:
    shown, what = section.trained, "states"
    if section.predicted is not None:
        shown, what = section.predicted, "predictions"
    reading = in_words(section)
    if shown.outcomes > charts.NUM_COLORS:
        reading += f" Colours repeat after {charts.NUM_COLORS} outcomes."
    title = f"Do the {what} cluster?"
    picture = _picture(shown, f"Final {what} by likeliest outcome")
    first = Card("clusters", title, picture, reading, paper.NOTES["clusters"])
    return [first, *_beside(section)]


def _picture(shown: Clustering, title: str) -> str:
    x, y = zip(*shown.plane, strict=True)
    return charts.scatter(
        x,
        y,
        shown.outcome,
        title,
        "component 1",
        "component 2",
        "colour: likeliest outcome under the exact posterior",
        groups=True,
    )


def _beside(section: Clusters) -> list[Card]:
    if section.compared is None:
        return []
    predicted, untrained, ceiling = section.compared
    rows = {
        "exact posteriors (the ceiling)": ceiling,
        **{f"exact filter, {name}": x for name, x in (section.limited or {}).items()},
        "predictions": predicted,
        "predictions, untrained": untrained,
        "states as they are": section.trained,
        "states, untrained": section.untrained,
    }
    head = ["", "clusters", "silhouette", "agreement", "with as many as outcomes"]
    body = [
        [name, str(x.clusters), *map(words.num, (x.silhouette, x.rand, x.rand_given_outcomes))]
        for name, x in rows.items()
    ]
    reading = (
        "The number of clusters of best silhouette, and their agreement with the likeliest outcome "
        "(adjusted Rand index: 1 the same, 0 chance). Distances of states, unlike those of "
        "distributions, do not end where a belief is certain: exact log-posteriors as states would "
        "not cluster by outcome either."
    )
    return [Card("clusters-beside", "Clusters beside their ceiling", table(head, body), reading)]


def in_words(section: Clusters) -> str:
    if section.compared is None:
        return (
            f"{_kind(section.trained)} among the states, agreeing with the likeliest outcome by "
            f"{words.num(section.trained.rand)} (adjusted Rand index; untrained "
            f"{words.num(section.untrained.rand)}). No ceiling is known for this: examine the run "
            "again."
        )
    predicted, untrained, ceiling = section.compared
    return (
        f"{_kind(predicted)} among the predictions; exact posteriors have silhouette "
        f"{words.num(ceiling.silhouette)}. {_agreement(predicted, untrained, ceiling)} The states "
        f"as they are: {words.num(section.trained.rand)} (untrained "
        f"{words.num(section.untrained.rand)}).{_limited(section)}"
    )


def _limited(section: Clusters) -> str:
    if not section.limited:
        return ""
    named = ", ".join(f"{name} {words.num(x.rand)}" for name, x in section.limited.items())
    return f" Exact filters of the last observations agree, too: {named}."


def _kind(found: ClusterScores) -> str:
    quality = found.silhouette
    kind = "Distinct" if quality > 0.5 else "Weak" if quality > 0.25 else "No"
    return (
        f"{kind} clusters (the best number is {found.clusters}, of silhouette {words.num(quality)})"
    )


def _agreement(predicted: ClusterScores, untrained: ClusterScores, ceiling: ClusterScores) -> str:
    text = (
        f"Grouped so, they agree with the likeliest outcome by {words.num(predicted.rand)} "
        f"(adjusted Rand index; untrained {words.num(untrained.rand)}), and "
        f"exact posteriors, the ceiling, by {words.num(ceiling.rand)} with "
        f"{ceiling.clusters} clusters"
    )
    if ceiling.rand < NO_CEILING:
        return text + ": in this task not even exact beliefs fall into their hypotheses."
    return text + f": {words.percent(predicted.rand / ceiling.rand)} of what is possible."


def _share(section: Clusters) -> float | None:
    """Agreement relative to the ceiling."""
    if section.compared is None:
        return None
    predicted, _, ceiling = section.compared
    return None if ceiling.rand < NO_CEILING else predicted.rand / ceiling.rand


def _rand_of(section: Clusters, name: str) -> float | None:
    found = (section.limited or {}).get(name)
    return None if found is None else found.rand


SHOWN = Shown(
    "clusters",
    "Clusters",
    Clusters,
    cards,
    sentences={"clusters": in_words},
    numbers={
        "clusters": lambda section: section.predicted and section.predicted.clusters,
        "clusters_rand": lambda section: section.predicted and section.predicted.rand,
        "clusters_ceiling": lambda section: section.ceiling and section.ceiling.clusters,
        "clusters_rand_ceiling": lambda section: section.ceiling and section.ceiling.rand,
        "clusters_rand_share": _share,
        "clusters_rand_states": lambda section: section.trained.rand,
        "clusters_rand_memory_1": lambda section: _rand_of(section, "memory-1"),
        "clusters_rand_memory_2": lambda section: _rand_of(section, "memory-2"),
    },
    legend=(
        "clusters of the predictions, and how they agree with the likeliest outcome (adjusted Rand "
        "index); both for exact posteriors, which are the ceiling; agreement as a share of that; "
        "agreement of clusters of the states as they are, and of the predictions of exact filters "
        "of the last 1 and 2 observations"
    ),
)
