"""What the model would answer if it stopped earlier, layer by layer."""

from collections.abc import Sequence
from functools import partial

from bwt.records.estimates import Estimate
from bwt.records.floors import MEMORY, beats
from bwt.records.geometry import Lens
from bwt.report import charts, words
from bwt.report.cards import Card
from bwt.report.charts import Series
from bwt.report.diagnostics.probes import is_block, short_stage, stage
from bwt.report.diagnostics.shown import Shown


def cards(section: Lens) -> list[Card]:
    readings = section.readings
    curves: dict[str, Sequence[Estimate | None]] = {
        "tuned lens": [x.tuned for x in readings],
        "model's own head": [x.raw for x in readings],
        "tuned, untrained": [x.untrained for x in readings],
    }
    places = list(range(len(readings)))
    series = [
        Series.of(label, places, curve, color=i) for i, (label, curve) in enumerate(curves.items())
    ]
    series += [
        Series(name, places, [floor.mean] * len(places), color=(3 + i) % 6, dashed=True)
        for i, (name, floor) in enumerate(_scale(section).items())
    ]
    picture = charts.lines(
        series,
        "Logit lens",
        "layer (a: after its attention)",
        "KL / bits",
        names=[short_stage(x) for x in section.stages],
        log_y=True,
    )
    return [Card("lens", "How far has the answer come in each layer?", picture, in_words(section))]


def _scale(section: Lens) -> dict[str, Estimate]:
    """Filters with a memory where there are any, else all floors."""
    filters = {name: x for name, x in section.floors.items() if name.startswith(MEMORY)}
    return filters or section.floors


def first_to_beat(section: Lens, floor: str, kind: str = "tuned") -> int | None:
    """The first stage whose reading is clearly nearer to exact Bayes than a floor."""
    for i, reading in enumerate(section.readings):
        bits = getattr(reading, kind)
        if bits is not None and beats(bits, section.floors[floor]):
            return i
    return None


def in_words(section: Lens) -> str:
    raw = [(i, x.raw) for i, x in enumerate(section.readings) if x.raw]
    last = section.readings[-1]
    text = (
        f"The answer itself is {words.pm(section.model)} bits from exact Bayes. Read off earlier "
        "stages by an affine map that was fitted to the answer on other sequences: "
        f"{words.pm(section.readings[0].tuned)} bits at {stage(section.stages[0])}, "
        f"{words.pm(last.tuned)} at {stage(section.stages[-1])}"
    )
    if raw:
        first, bits = raw[0]
        text += (
            f"; by the model's own head, which need not fit there, {words.pm(bits)} at "
            f"{stage(section.stages[first])}"
        )
    control = min((x.untrained for x in section.readings), key=lambda x: x.mean)
    text += f". The best such map of the untrained model's states: {words.pm(control)}. "
    return text + " ".join(_beaten(section, name) for name in _scale(section))


def _beaten(section: Lens, floor: str) -> str:
    place = first_to_beat(section, floor)
    bits = words.num(section.floors[floor].mean)
    if place is None:
        return f"No stage beats {floor} ({bits} bits)."
    head = first_to_beat(section, floor, "raw")
    by_head = "no stage" if head is None else stage(section.stages[head])
    return (
        f"The first to beat {floor} ({bits} bits) is {stage(section.stages[place])} "
        f"(by the model's own head: {by_head})."
    )


def _layer(section: Lens, floor: str) -> float | None:
    """The layer that first beats a floor; -1 for the input."""
    if floor not in section.floors or (place := first_to_beat(section, floor)) is None:
        return None
    parts = section.stages[place].split(".")
    return float(parts[1]) if len(parts) > 1 else -1.0


def _by_layer(section: Lens) -> list[float | None]:
    """KL of the tuned lens behind each layer."""
    pairs = zip(section.stages, section.readings, strict=True)
    return [x.tuned.mean for name, x in pairs if is_block(name)]


SHOWN = Shown(
    "lens",
    "Logit lens",
    Lens,
    cards,
    sentences={"lens": in_words},
    numbers={
        "lens_first_layer": lambda section: next(iter(_by_layer(section)), None),
        **{f"lens_beats_memory_{k}": partial(_layer, floor=f"{MEMORY}{k}") for k in (1, 2, 5)},
    },
    legend=(
        "KL in bits of what an affine map reads off the output of the first layer, and the layer "
        "(from 0) that first beats the exact filters of the last 1, 2 and 5 observations"
    ),
    by_layer={"lens_kl": _by_layer},
)
