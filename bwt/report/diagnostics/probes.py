"""What can be read off the states by a linear probe, layer by layer."""

import re
from collections.abc import Callable
from functools import partial

from bwt import paper
from bwt.records.estimates import Estimate, mean_of
from bwt.records.geometry import Probes, ProbeTarget
from bwt.report import charts, words
from bwt.report.cards import Card
from bwt.report.charts import Series
from bwt.report.diagnostics.shown import Shown

Number = float | None
NEAR = 0.05  # of R²: as good as
TARGETS = {
    "posterior": "posterior",
    "entropy": "entropy",
    "eliminated": "set of ruled-out outcomes",
}


def cards(section: Probes) -> list[Card]:
    return [_card(section, target) for target in section.targets]


def _card(section: Probes, target: str) -> Card:
    probed = section.targets[target]
    curves = {
        "trained": _trained(probed),
        "untrained": _untrained(probed),
        "what was shown, counted": [_history(probed)] * len(section.stages),
    }
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


def _history(probed: ProbeTarget) -> Estimate | None:
    return probed.history.within if _held(probed) else probed.history.r2


def in_words(section: Probes, target: str) -> str:
    probed = section.targets[target]
    held, trained = _held(probed), _trained(probed)
    best = _best(probed)
    scores = probed.stages[best]
    text = (
        f"The {TARGETS.get(target, target)} can be read linearly best at "
        f"{stage(section.stages[best])}: {'with the position held fixed, ' if held else ''}R² "
        f"{words.pm(trained[best])}; in the untrained model "
        f"{words.pm(_untrained(probed)[best])}, off a count of what was shown, without a model, "
        f"{words.pm(_history(probed))}. "
    )
    if not held:
        text += "The position determines this target, so this may be nothing but the position. "
    elif _is_a_sum(probed):
        text += "So a sum of the inputs is enough for it, which says nothing about inference. "
    if scores.accuracy is not None:
        text += (
            f"Taken as yes or no it is right in {words.percent(scores.accuracy.mean)} of cases "
            "(always the more frequent answer of the position: "
            f"{words.percent(scores.majority)}). "
        )
    return text + _what_mlps_add(dict(zip(section.stages, trained, strict=True)))


def _best(probed: ProbeTarget) -> int:
    """The stage where the trained model can be read best."""
    trained = _trained(probed)
    means = [x.mean if x and words.known(x.mean) else float("-inf") for x in trained]
    return means.index(max(means))


def _is_a_sum(probed: ProbeTarget) -> bool:
    """Whether a count of the inputs gives it as well as the states do."""
    counted, best = _history(probed), _trained(probed)[_best(probed)]
    return counted is not None and best is not None and counted.mean >= best.mean - NEAR


def _at_best(curve: Callable[[ProbeTarget], list[Estimate | None]], section: Probes) -> Number:
    """Of the posterior, where it can be read best."""
    probed = section.targets.get("posterior")
    return None if probed is None else mean_of(curve(probed)[_best(probed)])


def _counted(section: Probes) -> Number:
    probed = section.targets.get("posterior")
    return None if probed is None else mean_of(_history(probed))


def _by_layer(section: Probes) -> list[Number]:
    """R2 of the posterior behind each layer."""
    if "posterior" not in section.targets:
        return []
    pairs = zip(section.stages, _trained(section.targets["posterior"]), strict=True)
    return [mean_of(x) for name, x in pairs if is_block(name)]


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


def is_block(name: str) -> bool:
    """Whether it is the output of a whole layer."""
    return re.fullmatch(r"blocks\.\d+", name) is not None


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
    numbers={
        "posterior_read": partial(_at_best, _trained),
        "posterior_read_untrained": partial(_at_best, _untrained),
        "posterior_read_counted": _counted,
    },
    legend=(
        "R² with which a linear probe reads the exact posterior off the states where it does so "
        "best, with the position held fixed; the same of the untrained model; and off a count of "
        "what was shown, without a model"
    ),
    by_layer={"posterior_r2": _by_layer},
)
