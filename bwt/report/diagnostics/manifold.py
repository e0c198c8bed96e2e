"""Do states lie on a curve, and is the curve ordered by uncertainty?"""

from collections.abc import Callable, Iterable

from bwt import paper
from bwt.records.estimates import mean_of
from bwt.records.geometry import Alignment, Cloud, Manifold
from bwt.report import charts, words
from bwt.report.cards import Card, table
from bwt.report.diagnostics.shown import Shown


def cards(section: Manifold) -> list[Card]:
    last = list(section.clouds)[-2:]
    planes = [draw(section, label) for label in last for draw in (_by_entropy, _by_step)]
    return [*planes, _table(section), *_alignment(section)]


def _by_entropy(section: Manifold, label: str) -> Card:
    reading, note = in_words(section, label), paper.NOTES["manifold"]
    return _plane(section, label, "entropy", "exact entropy / bits", reading, note)


def _by_step(section: Manifold, label: str) -> Card:
    reading = (
        "The same points coloured by their step: where both pictures look alike, uncertainty and "
        "position cannot be told apart by eye."
    )
    return _plane(section, label, "step", "step", reading, "")


def _plane(section: Manifold, label: str, value: str, unit: str, reading: str, note: str) -> Card:
    points = section.points[label]
    picture = charts.scatter(
        points.x,
        points.y,
        getattr(points, value),
        f"{label} by {value}",
        "component 1",
        "component 2",
        unit,
    )
    name = label.replace(" ", "-")
    title = f"{label.capitalize()}, coloured by {value}"
    return Card(f"manifold-{name}-{value}", title, picture, reading, note)


def _table(section: Manifold) -> Card:
    head = ["", "PC1", "PC1+2", "dim.", "R² PC1", "given position", "|ρ| PC1", "given position"]
    head += ["R² fitted", "given position"]
    rows = [
        [
            label,
            words.percent(cloud.share[0]),
            words.percent(sum(cloud.share[:2])),
            words.num(cloud.dimensions),
            words.pm(cloud.first.r2),
            words.pm(cloud.first.r2_within),
            words.pm(cloud.first.spearman),
            words.pm(cloud.first.spearman_within),
            words.pm(cloud.fitted.r2),
            words.pm(cloud.fitted.r2_within),
        ]
        for label, cloud in section.clouds.items()
    ]
    reading = (
        "How well one coordinate gives the posterior entropy: the first principal component (R² "
        "and Spearman's ρ), and the best linear one, fitted on half of the sequences and scored on "
        "the others. “Given position” is what remains when each position's mean is taken away; – "
        "where nothing remains."
    )
    return Card("manifold", "States and uncertainty", table(head, rows), reading, wide=True)


def _alignment(section: Manifold) -> list[Card]:
    if not section.alignment:
        return []
    head = ["", "|cos| with PC1", "shuffled", "random", "untrained", "in PC1+2"]
    head += ["variance along it", "along PC1", "R² PC1", "R² best", "untrained"]
    rows = [
        [
            label,
            words.pm(x.cosine),
            words.num(x.shuffled),
            words.num(x.random),
            words.num(x.untrained_cosine),
            words.num(x.plane),
            words.percent(x.share),
            words.percent(x.first_share),
            words.num(x.first_r2),
            words.num(x.best_r2),
            words.num(x.untrained_best_r2),
        ]
        for label, x in section.alignment.items()
    ]
    picture, reading = table(head, rows), alignment_in_words(section)
    return [Card("alignment", "Is uncertainty what states vary in?", picture, reading, wide=True)]


def alignment_in_words(section: Manifold) -> str:
    """Of the last attention's output, or the last states."""
    if not section.alignment:
        return ""
    label = _last_label(section.alignment)
    x, held = section.alignment[label], section.entropy_varies_within_position
    text = (
        f"In {label}{', with the position held fixed,' if held else ''} the direction in which "
        f"states move with the posterior entropy has |cos| {words.pm(x.cosine)} with the first "
        f"component (with labels of other sequences {words.num(x.shuffled)}, a random direction "
        f"{words.num(x.random)}) and {words.percent(x.share)} of the variance; the first component "
        f"has {words.percent(x.first_share)}. That one gives the entropy with R² "
        f"{words.num(x.first_r2)}, the best direction with {words.num(x.best_r2)}"
    )
    if x.untrained_best_r2 is not None:
        text += f" (untrained: {words.num(x.untrained_best_r2)})"
    return text + "."


def finding(section: Manifold) -> str:
    label = _last_label(section.clouds)
    fitted, held = section.clouds[label].fitted, section.entropy_varies_within_position
    r2 = fitted.r2_within if held else fitted.r2
    return (
        f"One linear coordinate of {label} gives the entropy of the exact posterior with R² "
        f"{words.pm(r2)} on sequences it was not fitted to"
        f"{', with the position held fixed' if held else ''}."
    )


def control(section: Manifold) -> str:
    x = _aligned(section)
    if not section.entropy_varies_within_position:
        return "In this task the position determines the entropy: it may be nothing but position."
    if x is None or x.untrained_best_r2 is None:
        return "The position is held fixed, so that it cannot be what is read."
    return f"The same in the untrained model: R² {words.num(x.untrained_best_r2)}."


def in_words(section: Manifold, label: str) -> str:
    cloud = section.clouds[label]
    text = (
        f"The first component holds {words.percent(cloud.share[0])} of the variance, the first two "
        f"{words.percent(sum(cloud.share[:2]))}; effectively {_dimensions(cloud.dimensions)}. "
        f"The first component gives the entropy with R² {words.pm(cloud.first.r2)}, the best "
        f"linear coordinate with {words.pm(cloud.fitted.r2)} on other sequences. "
    )
    if not section.entropy_varies_within_position:
        return text + (
            "In this task the position determines the entropy: a curve ordered by uncertainty "
            "cannot be told from one ordered by position, and nothing here shows which it is."
        )
    return text + (
        f"With the position held fixed: {words.pm(cloud.first.r2_within)} and "
        f"{words.pm(cloud.fitted.r2_within)}."
    )


def _dimensions(x: float) -> str:
    return f"{words.num(x)} dimension" + ("" if abs(x - 1) < 0.05 else "s")


def _last(section: Manifold) -> Cloud:
    return section.clouds[_last_label(section.clouds)]


def _aligned(section: Manifold) -> Alignment | None:
    return section.alignment[_last_label(section.alignment)] if section.alignment else None


def _of_alignment(number: Callable[[Alignment], float]) -> Callable[[Manifold], float | None]:
    return lambda section: None if (x := _aligned(section)) is None else number(x)


def _last_label(labels: Iterable[str]) -> str:
    """The last attention's output, or the last states of a model without attention."""
    labels = list(labels)
    return ([x for x in labels if x.startswith("attention")] or labels)[-1]


def _values_by_layer(section: Manifold) -> list[float | None]:
    """R2 of the entropy from the best direction of the values of each layer."""
    found = section.alignment or {}
    layers = [int(name.split()[1]) for name in found if name.startswith("values ")]
    return [
        found[f"values {i}"].best_r2 if i in layers else None
        for i in range(max(layers, default=-1) + 1)
    ]


SHOWN = Shown(
    "manifold",
    "States",
    Manifold,
    cards,
    finding=finding,
    control=control,
    sentences={
        "states": lambda section: in_words(section, list(section.clouds)[-1]),
        "alignment": alignment_in_words,
    },
    numbers={
        "pc1": lambda section: _last(section).share[0],
        "entropy_r2": lambda section: mean_of(_last(section).first.r2),
        "entropy_r2_within": lambda section: mean_of(_last(section).first.r2_within),
        "entropy_cosine": _of_alignment(lambda x: x.cosine.mean),
        "entropy_cosine_shuffled": _of_alignment(lambda x: x.shuffled),
        "entropy_best_r2": _of_alignment(lambda x: x.best_r2),
    },
    legend=(
        "share of the first component of the last attention's output, and its R2 with the exact "
        "entropy, over all states and within a position (without repeated keys the entropy of a "
        "bijection is a function of the position: there is nothing within); |cos| of the first "
        "component and the direction in which states move with the entropy, the same with labels "
        "of other sequences, and R2 of the entropy from the best direction"
    ),
    by_layer={"values_entropy": _values_by_layer},
)
