"""How well attention could tell its addresses apart."""

from bwt import paper
from bwt.records.estimates import Estimate, Estimates
from bwt.records.geometry import KeyCosines, KeyGroup, Keys
from bwt.report import words
from bwt.report.cards import Card, table
from bwt.report.diagnostics.shown import Shown


def cards(section: Keys) -> list[Card]:
    rows = [row for name, group in section.groups.items() for row in _rows(name, group)]
    head = ["", "|cos|", "untrained", "|cos| centred", "untrained", "centred, by head"]
    counts = ", ".join(f"{group.addresses} {name}" for name, group in section.groups.items())
    reading = in_words(section) + (
        f" Means over heads, with the largest standard error of a head; {counts} in a sequence, "
        f"heads of size {section.head_size}."
    )
    title, note = "Are the keys orthogonal?", paper.NOTES["keys"]
    return [Card("keys", title, table(head, rows), reading, note, wide=True)]


def _rows(name: str, group: KeyGroup) -> list[list[str]]:
    trained, untrained = group.trained, group.untrained
    columns = (trained.plain, untrained.plain, trained.centred, untrained.centred)
    return [
        [
            f"{name}, layer {i}",
            *(words.pm(_over_heads(heads)) for heads in layer),
            " ".join(words.num(x) for x in trained.centred[i].mean),
        ]
        for i, layer in enumerate(zip(*columns, strict=True))
    ]


def _over_heads(heads: Estimates) -> Estimate:
    """Their mean, with the largest standard error of one."""
    return Estimate(words.mean(heads.mean), max(filter(words.known, heads.se), default=None))


def _nearest(cosines: KeyCosines) -> int:
    """The layer whose keys are nearest to orthogonal, with what they share taken away."""
    means = [words.mean(heads.mean) for heads in cosines.centred]
    return min(range(len(means)), key=lambda i: means[i] if words.known(means[i]) else 2.0)


def in_words(section: Keys) -> str:
    """Where attention needs to tell addresses apart."""
    name, group = next(iter(section.groups.items()))
    layer = _nearest(group.trained)
    if not words.known(_centred(group.trained, layer).mean):
        return _whether_needed(group) + f"The keys of all {name} are alike: none can be told apart."
    place = f"layer {layer}" if len(_layers(group)) == 1 else f"layer {layer} (nearest of all)"
    at = "" if group.needed is None else f" at {name}"
    trained, untrained = (_centred(x, layer) for x in (group.trained, group.untrained))
    text = (
        f"In {place} the keys of different addresses{at} are {_verdict(trained, untrained)} those "
        f"of the untrained model: mean |cos| {words.num(trained.mean)} against "
        f"{words.num(untrained.mean)}, with what all keys share taken away (independent Gaussian "
        f"vectors of this size: {words.num(section.gaussian)})."
    )
    others = ", ".join(text for i, text in enumerate(_layers(group)) if i != layer)
    text += f" The others: {others}." if others else ""
    return _whether_needed(group) + text + _dearest_in_words(section, group)


def _dearest_in_words(section: Keys, group: KeyGroup) -> str:
    place = dearest(section)
    if place is None:
        return ""
    (layer, head), worth = place, section.worth or []
    trained, untrained = (x.centred[layer].mean[head] for x in (group.trained, group.untrained))
    return (
        f" In head {head} of layer {layer}, whose keys matter most (alike they cost "
        f"{words.num(worth[layer][head])} bits), it is {words.num(trained)}, and was "
        f"{words.num(untrained)} before training."
    )


def dearest(section: Keys) -> tuple[int, int] | None:
    """Layer and head whose keys cost most bits when they are alike; None if none does, or it is
    not known."""
    places = [
        (worth, (layer, head))
        for layer, heads in enumerate(section.worth or [])
        for head, worth in enumerate(heads)
    ]
    worth, place = max(places, default=(0.0, None))
    return place if worth > 0 else None


def _whether_needed(group: KeyGroup) -> str:
    if group.needed is None:
        return ""
    if group.needed:
        return f"Keys matter in this task: {group.why}. "
    return f"Keys mean nothing in this task: {group.why}. What follows tests nothing. "


def _centred(cosines: KeyCosines, layer: int) -> Estimate:
    return _over_heads(cosines.centred[layer])


def _verdict(trained: Estimate, untrained: Estimate) -> str:
    if not words.known(untrained.mean):
        return "not to be compared with"
    if abs(trained.mean - untrained.mean) <= 3 * ((trained.se or 0) + (untrained.se or 0)):
        return "no different from"
    return "nearer to orthogonal than" if trained.mean < untrained.mean else "LESS orthogonal than"


def _layers(group: KeyGroup) -> list[str]:
    pairs = zip(group.trained.centred, group.untrained.centred, strict=True)
    return [
        f"layer {i} {words.num(words.mean(heads.mean))} against {words.num(words.mean(old.mean))}"
        for i, (heads, old) in enumerate(pairs)
    ]


def _first(section: Keys) -> KeyGroup:
    return next(iter(section.groups.values()))


def _last(section: Keys) -> KeyGroup:
    return list(section.groups.values())[-1]


def _plain_there(cosines: KeyCosines) -> float:
    return words.mean(cosines.plain[_nearest(cosines)].mean)


def _in_dearest(section: Keys, cosines: KeyCosines) -> float | None:
    place = dearest(section)
    return None if place is None else cosines.centred[place[0]].mean[place[1]]


def _least(cosines: KeyCosines) -> float:
    return words.mean(cosines.centred[_nearest(cosines)].mean)


SHOWN = Shown(
    "keys",
    "Keys",
    Keys,
    cards,
    sentences={"keys": in_words},
    numbers={
        "key_cosine": lambda section: words.mean(_last(section).trained.plain[0].mean),
        "key_cosine_untrained": lambda section: words.mean(_last(section).untrained.plain[0].mean),
        "key_cosine_centred": lambda section: words.mean(_last(section).trained.centred[0].mean),
        "lookup_cosine": lambda section: _plain_there(_first(section).trained),
        "lookup_cosine_centred": lambda section: _least(_first(section).trained),
        "lookup_cosine_centred_untrained": lambda section: _least(_first(section).untrained),
        "lookup_layer": lambda section: _nearest(_first(section).trained),
        "lookup_head_cosine": lambda section: _in_dearest(section, _first(section).trained),
        "lookup_head_cosine_untrained": lambda section: _in_dearest(
            section, _first(section).untrained
        ),
    },
    legend=(
        "mean |cos| of the keys of layer 0 where addresses are shown (key tokens; HMM: the "
        "header), the same before training and without the mean key; lookup: where attention looks "
        "up (value tokens; HMM: the header), with and without the mean key, in the layer where the "
        "latter is least, of the trained and of the untrained model, and which layer that is; the "
        "same without the mean key in the one head whose keys cost most bits when they are alike, "
        "and in that head before training. A bijection without repeated keys has nothing to look up"
    ),
)
