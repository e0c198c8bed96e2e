"""Does a model carry its belief from step to step? States of another sequence are put in, and the
steps after that are read."""

import math
from collections.abc import Sequence

from bwt.records.estimates import Estimate
from bwt.records.geometry import Splice, SplicedPlace
from bwt.report import charts, words
from bwt.report.cards import Card, table
from bwt.report.charts import Series
from bwt.report.diagnostics.shown import Shown

KINDS = {
    "input": "input of the step",
    "residual": "output at the step",
    "blocks": "outputs at the step",
    "memory": "memory",
    "state": "state of the scan",
}
CARRIED = 0.5  # of the way: from here on a model is said to carry its belief
NEXT = 1  # steps after the exchange


def cards(section: Splice) -> list[Card]:
    return [_curves(section), _table(section)]


def _curves(section: Splice) -> Card:
    shown = _of(section, "input", "blocks") + _telling(section)
    curves = {name(place): place.follows for place in shown}
    curves["observation only, exact"] = section.one
    series = [
        Series.of(
            label,
            range(len(shares)),
            shares,
            color=i % charts.NUM_COLORS,
            dashed=i == len(curves) - 1,
        )
        for i, (label, shares) in enumerate(curves.items())
    ]
    picture = charts.lines(
        series,
        "States of another sequence",
        "steps since the exchange",
        "share of the way to the other's belief",
        names=[str(lag) for lag in range(len(section.one))],
        zero=True,
    )
    return Card("splice", "Is the belief carried along?", picture, in_words(section))


def _telling(section: Splice) -> list[SplicedPlace]:
    """The memory that is followed most, and the states of all layers."""
    whole = [x for x in _of(section, "state") if x.layer is None]
    return [x for x in [_most(_of(section, "memory"))] if x is not None] + whole


def _table(section: Splice) -> Card:
    lags = range(len(section.one))
    head = ["exchanged", *(f"+{lag}" if lag else "at the step" for lag in lags)]
    rows = [[name(place), *map(words.pm, place.follows)] for place in section.places]
    rows.append(["exact Bayes, only the observation", *map(words.pm, section.one)])
    bits = {
        "bits: exact, own sequence": section.apart,
        "bits: undisturbed model": section.plain,
        "bits: model that read the other": section.ceiling,
    }
    rows += [[label, *(words.pm(curve[lag]) for lag in lags)] for label, curve in bits.items()]
    reading = (
        "The share of the way from the undisturbed model to one that has read the other "
        "sequence's observations up to the step, in bits of KL to the exact posterior of these "
        "followed by the own ones; – where too little is left to tell. Memories and states are "
        "exchanged behind the step, so they show nothing at the step itself; those of all layers "
        "together would go all the way in any model."
    )
    return Card("splice-table", "The same, all places", table(head, rows), reading, wide=True)


def name(place: SplicedPlace) -> str:
    layer = "" if place.kind in ("input", "blocks") else ", all layers"
    layer = layer if place.layer is None else f", layer {place.layer}"
    return KINDS[place.kind] + layer


def in_words(section: Splice) -> str:
    steps = ", ".join(map(str, section.steps))
    text = (
        f"At steps {steps} states are exchanged for those of a sequence with the same header and "
        "other observations; the model then reads on in its own. "
    )
    blocks, seen = (_next(_of(section, kind)[0].follows) for kind in ("blocks", "input"))
    if blocks is None or seen is None:
        return text + "Its predictions depend too little on the sequence for that to show."
    used = past_used(section)
    if used is not None:
        text += (
            "Of what the observations up to the step are worth one step later "
            f"({words.num(section.apart[NEXT].mean)} bits), it takes {words.percent(used)}. "
        )
    if _unread(section):
        return f"{text}{_by_layer(section)}".strip()
    text += (
        f"One step later its prediction has gone {words.pm(blocks)} of the way to the other's "
        "belief, continued, if the outputs of all blocks at the step are exchanged, and "
        f"{words.pm(seen)} with nothing but the input of that step (exact Bayes: "
        f"{words.pm(_next(section.one))}). "
    )
    return (
        f"{text}{'' if section.recurrent else _verdict(blocks, seen)}{_by_layer(section)}".strip()
    )


def past_used(section: Splice) -> float | None:
    """Of the bits that the observations up to the exchange are worth one step later, the share by
    which the model is better off with the right ones than with others."""
    if len(section.one) <= NEXT or not section.apart[NEXT].mean > 0:
        return None
    gained = section.plain[NEXT].mean - section.ceiling[NEXT].mean
    return gained / section.apart[NEXT].mean


def _unread(section: Splice) -> bool:
    """Whether nothing later reads the outputs at a step: there is one layer, and it has a state."""
    return section.recurrent and len(_of(section, "residual")) == 1


def _verdict(blocks: Estimate, seen: Estimate) -> str:
    """Of a model that keeps every position: it might look at all of them again."""
    if blocks.mean - seen.mean <= 2 * math.hypot(blocks.se or 0.0, seen.se or 0.0):
        return (
            "So no more passes through this position than its observation, as far as can be told: "
            "the rest is computed again. "
        )
    if blocks.mean > CARRIED:
        return "So most of the belief passes through this one position: it is carried along. "
    return "So a part of the belief passes through this one position. "


def _by_layer(section: Splice) -> str:
    found = []
    for kind in ("memory", "state"):
        places = [(x.layer, _next(x.follows)) for x in _of(section, kind)]
        told = [
            f"{words.pm(share)} ({'all layers' if layer is None else f'layer {layer}'})"
            for layer, share in places
            if share
        ]
        if told:
            found.append(f"with the {KINDS[kind]} exchanged {', '.join(told)}")
    text = f"It has gone {'; '.join(found)}." if found else ""
    if _of(section, "state"):
        text += " What the states of the scan leave out is in the windows of the convolutions."
    return text


def _of(section: Splice, *kinds: str) -> list[SplicedPlace]:
    return [x for x in section.places if x.kind in kinds]


def _next(shares: Sequence[Estimate | None]) -> Estimate | None:
    return shares[NEXT] if len(shares) > NEXT else None


def _most(places: Sequence[SplicedPlace]) -> SplicedPlace | None:
    known = [(x, share.mean) for x in places if (share := _next(x.follows))]
    return max(known, key=lambda pair: pair[1])[0] if known else None


def _number(section: Splice, kind: str) -> float | None:
    """One step later, with the states of all layers exchanged."""
    shares = [_next(x.follows) for x in _of(section, kind) if x.layer is None]
    return shares[0].mean if shares and shares[0] else None


SHOWN = Shown(
    "splice",
    "Is the belief carried along",
    Splice,
    cards,
    command="ablate",
    sentences={"carried": in_words},
    numbers={
        "past_used": past_used,
        "carried_blocks": lambda x: None if _unread(x) else _number(x, "blocks"),
        "carried_input": lambda section: _number(section, "input"),
        "carried_state": lambda section: _number(section, "state"),
    },
    legend=(
        "of the bits that earlier observations are worth one step later, the share that the model "
        "takes from them; share of the way to another sequence's belief one step after the outputs "
        "of all blocks, the input alone, or the states of all scans were exchanged for those of it"
    ),
)
