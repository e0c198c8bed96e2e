"""What happens when a model is changed: parts taken out, subspaces removed, states exchanged."""

from collections.abc import Sequence

from bwt import paper
from bwt.records.geometry import AblatedPart, Ablation, Interchange, KeyEdit, Removal
from bwt.report import charts, words
from bwt.report.cards import Card, table
from bwt.report.charts import Series
from bwt.report.diagnostics.shown import Shown

KEY_EDITS = {
    "halved": "half way to their mean",
    "alike": "all the way: attention looks everywhere alike",
    "permuted": "in random order within the sequence",
    "exchanged": "those of another sequence",
    "shifted": "less one vector for all: a control that must cost nothing",
}


def cards(section: Ablation) -> list[Card]:
    zero, mean = (_taken_out(section, mode) for mode in ("zero", "mean"))
    bits = "Bits of KL added when a part is {} (± standard error, paired). "
    maps = [
        Card(
            "ablation-zero",
            "What breaks without a part",
            _map(zero, "Ablation by zero"),
            bits.format("removed") + parts_in_words(section),
            paper.NOTES["ablation"],
            wide=True,
        ),
        Card(
            "ablation-mean",
            "The same, by mean",
            _map(mean, "Ablation by mean"),
            bits.format("replaced by its mean over sequences at each position"),
            wide=True,
        ),
    ]
    keys = [_keys(section.keys)] if section.keys else []
    removal = [_removal(section.removal)] if section.removal else []
    return [*maps, *keys, *removal, _interchange(section.interchange)]


def _taken_out(section: Ablation, mode: str, part: str | None = None) -> list[AblatedPart]:
    return [x for x in section.parts if x.mode == mode and part in (None, x.part)]


def _layers(section: Ablation, mode: str = "zero") -> list[AblatedPart]:
    """Whole layers, removed."""
    return [x for x in _taken_out(section, mode) if x.part in ("block", "layer")]


def _map(parts: Sequence[AblatedPart], title: str) -> str:
    def name(x: AblatedPart) -> str:
        return x.part if x.head is None else f"head {x.head}"

    layers = sorted({x.layer for x in parts})
    columns = list(dict.fromkeys(map(name, parts)))
    added = {(x.layer, name(x)): x.kl_added for x in parts}
    top = max([x.mean for x in added.values() if words.known(x.mean)], default=0.0)
    top = max(top, 1e-12)
    # By the square root: small effects stay visible, large ones do not hide each other.
    values = [
        [max(0.0, added[i, c].mean / top) ** 0.5 if (i, c) in added else None for c in columns]
        for i in layers
    ]
    texts = [[words.pm(added[i, c]) if (i, c) in added else "" for c in columns] for i in layers]
    return charts.table_map(values, texts, [f"layer {i}" for i in layers], columns, title)


def _keys(rows: Sequence[KeyEdit]) -> Card:
    places = list(dict.fromkeys(x.layer for x in rows))
    added = {(x.edit, x.layer): x.kl_added for x in rows}
    body = [
        [edit, meaning, *(words.pm(added.get((edit, layer))) for layer in places)]
        for edit, meaning in KEY_EDITS.items()
    ]
    head = ["keys", "", *("all layers" if i is None else f"layer {i}" for i in places)]
    reading = keys_in_words(rows) + (
        " The table: bits of KL added by changing the keys that attention uses (± standard error, "
        "paired), without training."
    )
    return Card("key-edits", "What are the keys worth?", table(head, body), reading, wide=True)


def keys_in_words(rows: Sequence[KeyEdit]) -> str:
    """In the layer where it matters most that keys differ; nothing of an older file."""
    if not rows:
        return ""
    single = [x for x in rows if x.layer is not None]
    row = max((x for x in single if x.edit == "alike"), key=lambda x: x.kl_added.mean)
    there = {x.edit: x.kl_added for x in single if x.layer == row.layer}
    control = max(abs(x.kl_added.mean) for x in rows if x.edit == "shifted")
    text = (
        f"With all keys of layer {row.layer} alike the model loses {words.pm(row.kl_added)} bits, "
        f"half way there {words.pm(there['halved'])}, with keys in random order "
        f"{words.pm(there['permuted'])}, with those of another sequence "
        f"{words.pm(there['exchanged'])}"
    )
    every = next((x.kl_added for x in rows if x.edit == "alike" and x.layer is None), None)
    if every is not None:
        text += f"; alike in all layers {words.pm(every)}"
    return text + (
        f". Taking one vector from all keys of a head, to which softmax is blind, changes "
        f"{words.num(control)} bits at most."
    )


def _key_cost(section: Ablation, edit: str) -> float | None:
    """KL added, in the layer where it is most."""
    costs = [x.kl_added.mean for x in section.keys if x.edit == edit and x.layer is not None]
    return max(costs, default=None)


def _removal(rows: Sequence[Removal]) -> Card:
    head = ["output of", "target", "rank", "encoded", "readout", "random", "principal", "R² left"]
    body = [
        [
            f"layer {x.layer}",
            x.target,
            str(x.rank),
            words.pm(x.kl_added.encoded),
            words.pm(x.kl_added.readout),
            words.pm(x.kl_added.random),
            words.pm(x.kl_added.principal),
            words.pm(x.r2_left.readout),
        ]
        for x in rows
    ]
    reading = removal_in_words(rows) + (
        " The table: bits of KL added by removing subspaces of equal rank, and what a new probe "
        "finds after the readout directions are gone."
    )
    return Card("removal", "Is what is read also used?", table(head, body), reading, wide=True)


def _interchange(rows: Sequence[Interchange]) -> Card:
    curves = {
        "to the other's posterior": [x.other for x in rows],
        "to its own": [x.own for x in rows],
        "undisturbed": [x.plain for x in rows],
    }
    series = [
        Series(
            name,
            list(range(len(rows))),
            [x.mean for x in curve],
            [x.se for x in curve],
            color=i,
            dots=True,
            dashed=name == "undisturbed",
        )
        for i, (name, curve) in enumerate(curves.items())
    ]
    picture = charts.lines(
        series,
        "Interchange",
        "state exchanged after layer",
        "KL / bits",
        names=[str(x.layer) for x in rows],
        log_y=True,
    )
    reading = interchange_in_words(rows)
    return Card("interchange", "Does a state carry the belief?", picture, reading)


def _costliest(section: Ablation) -> AblatedPart:
    """The head that matters most, or the part of a model without heads."""
    heads = _taken_out(section, "zero", "head") or _taken_out(section, "zero")
    return max(heads, key=lambda x: x.kl_added.mean if words.known(x.kl_added.mean) else -1.0)


def _called(x: AblatedPart) -> str:
    return f"{x.part if x.head is None else f'head {x.head}'} of layer {x.layer}"


def finding(section: Ablation) -> str:
    part = _costliest(section)
    return (
        f"Without {_called(part)} the model loses {words.pm(part.kl_added)} bits; intact it is "
        f"{words.pm(section.kl)} bits from exact Bayes."
    )


def control(section: Ablation) -> str:
    part = _costliest(section)
    (mean,) = (
        x
        for x in _taken_out(section, "mean", part.part)
        if (x.layer, x.head) == (part.layer, part.head)
    )
    text = (
        f"Replaced by its mean over sequences instead of removed it costs {words.pm(mean.kl_added)}"
    )
    beliefs = [x.kl_added for x in section.removal if x.target == "posterior"]
    if not beliefs:
        return text + " bits."
    most = max(beliefs, key=lambda x: x.encoded.mean)
    return text + (
        f" bits; the directions that encode the posterior cost {words.pm(most.encoded)}, as many "
        f"random ones {words.pm(most.random)}."
    )


def parts_in_words(section: Ablation) -> str:
    text = f"Intact: {words.pm(section.kl)} bits. "
    layers = _layers(section)
    if layers:
        least = min(layers, key=lambda x: x.entropy_mae_factor)
        text += (
            "Taking a layer out makes the entropy error at least "
            f"{words.num(least.entropy_mae_factor)} times as large (layer {least.layer} matters "
            "least). "
        )
    heads = _heads(section, "zero")
    if len(heads) > 1:
        first, second = heads[:2]
        text += (
            f"The head that matters most is head {first.head} of layer {first.layer} "
            f"({words.pm(first.kl_added)} bits added); the next, head {second.head} of layer "
            f"{second.layer}, adds {words.pm(second.kl_added)}."
        )
    return text


def removal_in_words(rows: Sequence[Removal]) -> str:
    """Of the posterior, in the layer where removing it costs most."""
    rows = [x for x in rows if x.target == "posterior"]
    if not rows:
        return ""
    row = max(rows, key=lambda x: x.kl_added.encoded.mean)
    added, left = row.kl_added, row.r2_left.readout
    text = (
        f"Taking the {words.plural(row.rank, 'dimension')} in which layer {row.layer} encodes the "
        f"posterior out of its output adds {words.pm(added.encoded)} bits; random ones add "
        f"{words.pm(added.random)}, the leading principal components {words.pm(added.principal)}. "
        f"Removing the probe's own directions adds {words.pm(added.readout)} bits and leaves R² "
        f"{words.pm(left)} for a new probe"
    )
    if left is not None and left.mean > 0.1:
        text += ": the state says it in other directions too, so that removal tests nothing"
    return text + "."


def interchange_in_words(rows: Sequence[Interchange]) -> str:
    follows: list[int] = []  # the last layers in a row at which the other sequence wins
    for row in reversed(rows):
        if row.other.mean >= row.own.mean:
            break
        follows.insert(0, row.layer)
    steps = ", ".join(map(str, rows[0].steps))
    text = (
        f"The state of one position (steps {steps}) is replaced by that of another sequence, whose "
        f"posterior differs by {words.num(rows[0].tvd_between.mean)} (total variation). "
    )
    if not follows:
        return text + "After the last layer the prediction is not nearer to that posterior."
    return text + (
        f"From layer {follows[0]} on the prediction is nearer to the other sequence's posterior "
        "than to its own. After the last layer this is so in any good model: only the head follows."
    )


def _layer_factors(section: Ablation, mode: str) -> list[float]:
    """By how much the entropy error grows without each layer, least first."""
    return sorted(x.entropy_mae_factor for x in _layers(section, mode))


def _heads(section: Ablation, mode: str) -> list[AblatedPart]:
    """Most important first."""
    return sorted(_taken_out(section, mode, "head"), key=lambda x: -x.kl_added.mean)


def _head_costs(section: Ablation, mode: str) -> list[float]:
    """KL added without each head, in bits, most first."""
    return [x.kl_added.mean for x in _heads(section, mode)]


def _head_layer(section: Ablation, mode: str) -> float | None:
    """The layer of the head that matters most."""
    return _at([x.layer for x in _heads(section, mode)], 0)


def _part_by_layer(section: Ablation, part: str) -> list[float | None]:
    """KL added with a part of each layer replaced by its mean."""
    return [x.kl_added.mean for x in _taken_out(section, "mean", part)]


def _at(values: Sequence[float], index: int) -> float | None:
    return values[index] if -len(values) <= index < len(values) else None


SHOWN = Shown(
    "ablation",
    "Ablation",
    Ablation,
    cards,
    command="ablate",
    finding=finding,
    control=control,
    numbers={
        "layer_least": lambda section: _at(_layer_factors(section, "zero"), 0),
        "layer_most": lambda section: _at(_layer_factors(section, "zero"), -1),
        "layer_least_mean": lambda section: _at(_layer_factors(section, "mean"), 0),
        "layer_most_mean": lambda section: _at(_layer_factors(section, "mean"), -1),
        "head_most": lambda section: _at(_head_costs(section, "zero"), 0),
        "head_second": lambda section: _at(_head_costs(section, "zero"), 1),
        "head_most_layer": lambda section: _head_layer(section, "zero"),
        "head_most_mean": lambda section: _at(_head_costs(section, "mean"), 0),
        "head_second_mean": lambda section: _at(_head_costs(section, "mean"), 1),
        "head_most_mean_layer": lambda section: _head_layer(section, "mean"),
        "keys_alike": lambda section: _key_cost(section, "alike"),
        "keys_exchanged": lambda section: _key_cost(section, "exchanged"),
        "keys_shifted": lambda section: _key_cost(section, "shifted"),
    },
    legend=(
        "entropy error without the least and the most important layer, as a multiple of the "
        "intact one, removed and (by mean) replaced by their mean over sequences; KL added in bits "
        "without the head that matters most, and the second, and the layer of the former, removed "
        "and by mean: where the two differ much, the removal took the model where it never was; KL "
        "added "
        "in the layer where it is most with all keys alike, with those of another sequence, and "
        "(a control) with one vector taken from all"
    ),
    by_layer={
        "attention_removed": lambda section: _part_by_layer(section, "attn"),
        "mlp_removed": lambda section: _part_by_layer(section, "mlp"),
    },
)
