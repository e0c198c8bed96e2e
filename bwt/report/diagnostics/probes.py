"""What can be read off the states by a linear probe, layer by layer."""

from bwt import paper
from bwt.records.estimates import Estimate
from bwt.records.geometry import Probes, ProbeTarget
from bwt.report import charts, words
from bwt.report.cards import Card
from bwt.report.charts import Series
from bwt.report.diagnostics.shown import Shown

TARGETS = {
    "posterior": "posterior",
    "entropy": "entropy",
    "eliminated": "set of ruled-out outcomes",
}


def cards(section: Probes) -> list[Card]:
    return [_card(section, target) for target in section.targets]


def _card(section: Probes, target: str) -> Card:
    probed = section.targets[target]
    curves = {"trained": _trained(probed), "untrained": _untrained(probed)}
    if _held(probed):
        curves["shuffled labels"] = [x.shuffled_within for x in probed.stages]
    series = [
        Series.of(label, range(len(curve)), curve, color=i, dashed=i > 0)
        for i, (label, curve) in enumerate(curves.items())
    ]
    name = TARGETS.get(target, target)
    picture = charts.lines(
        series,
        f"Probe of the {name}",
        "layer (a: after its attention)",
        "R² given position" if _held(probed) else "R²",
        names=[short_stage(stage) for stage in section.stages],
        zero=True,
    )
    return Card(
        f"probe-{target}",
        f"Can the {name} be read off the states?",
        picture,
        in_words(section, target),
        paper.NOTES["probes"] if target == "posterior" else "",
    )


def _held(probed: ProbeTarget) -> bool:
    """Whether anything is left to read with the position held fixed."""
    return probed.stages[0].within is not None


def _trained(probed: ProbeTarget) -> list[Estimate | None]:
    return [x.within if _held(probed) else x.r2 for x in probed.stages]


def _untrained(probed: ProbeTarget) -> list[Estimate | None]:
    return [x.untrained_within if _held(probed) else x.untrained_r2 for x in probed.stages]


def in_words(section: Probes, target: str) -> str:
    probed = section.targets[target]
    held, trained = _held(probed), _trained(probed)
    means = [x.mean if x and words.known(x.mean) else float("-inf") for x in trained]
    best = means.index(max(means))
    scores = probed.stages[best]
    text = (
        f"The {TARGETS.get(target, target)} can be read linearly best at "
        f"{stage(section.stages[best])}: {'with the position held fixed, ' if held else ''}R² "
        f"{words.pm(trained[best])}; in the untrained model "
        f"{words.pm(_untrained(probed)[best])}"
    )
    if held:
        text += f", with the labels of other sequences {words.pm(scores.shuffled_within)}. "
    else:
        text += ". The position determines this target, so this may be nothing but the position. "
    if scores.accuracy is not None:
        text += (
            f"Taken as yes or no it is right in {words.percent(scores.accuracy.mean)} of cases "
            "(always the more frequent answer of the position: "
            f"{words.percent(scores.majority)}). "
        )
    return text + _what_mlps_add(dict(zip(section.stages, trained, strict=True)))


def _what_mlps_add(trained: dict[str, Estimate | None]) -> str:
    gains = []
    for name, before in trained.items():
        after = trained.get(name.removesuffix(".mid"))
        if name.endswith(".mid") and before and after:
            gains.append(f"{after.mean - before.mean:+.3f} (layer {name.split('.')[1]})")
    return "MLPs change R² by " + ", ".join(gains) + "." if gains else ""


def stage(name: str) -> str:
    """A name of the residual stream in words."""
    parts = name.split(".")
    if len(parts) == 1:
        return {"embed": "the input", "hidden": "the hidden state"}.get(name, name)
    place = "after attention" if parts[-1] == "mid" else "the output"
    return f"layer {parts[1]}, {place}"


def short_stage(name: str) -> str:
    parts = name.split(".")
    if len(parts) == 1:
        return {"embed": "in"}.get(name, name)
    return f"{parts[1]}a" if parts[-1] == "mid" else parts[1]


SHOWN = Shown(
    "probes",
    "Probes",
    Probes,
    cards,
    sentences={
        "probes": lambda section: (
            in_words(section, "posterior") if "posterior" in section.targets else ""
        )
    },
)
