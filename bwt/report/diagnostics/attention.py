"""Where attention goes, and how sharply."""

from bwt import paper
from bwt.records.estimates import Estimate, Estimates
from bwt.records.geometry import Attention
from bwt.report import charts, words
from bwt.report.cards import Card
from bwt.report.charts import Series
from bwt.report.diagnostics.shown import Shown

USEFUL = ("matching", "evidence", "transition")
MOST_ROWS = 24  # of a table of heads; with more of them it is one of layers


def cards(section: Attention) -> list[Card]:
    return [
        _maps(
            "example",
            "Attention in one sequence",
            [layer.example for layer in section.layers],
            section.asked,
            "Rows are the steps that are asked, columns all positions before; stronger colour is "
            "more attention (square root, each head scaled to its largest weight).",
        ),
        _maps(
            "maps",
            "Attention, mean of all sequences",
            [layer.maps for layer in section.layers],
            section.asked,
            f"The same, averaged over {section.sequences} sequences: routing by content is "
            "blurred, routing by position stays sharp.",
        ),
        _mass(section),
        *_mass_by_step(section),
        *([_entropy_by_layer(section, section.entropy)] if section.entropy else []),
    ]


def _maps(name: str, title: str, layers: list, asked: list[int] | None, reading: str) -> Card:
    maps = [
        [(f"layer {i} head {j}", head) for j, head in enumerate(heads)]
        for i, heads in enumerate(layers)
    ]
    width = 190 if len(maps[0]) < 4 else 130
    header = asked[0] if asked else 0
    if header:
        reading += f" Left of the line: the {header} positions in front of the first question."
    picture = charts.heat_maps(
        maps, title, "position", "step", cell=(width, width * 0.7), first=(0, 1), boundary=header
    )
    return Card(f"attention-{name}", title, picture, reading, wide=len(maps[0]) > 2)


def _mass(section: Attention) -> Card:
    names = [name for name, share in section.uniform_mass.items() if share > 0]
    rows, values = ["uniform"], [[section.uniform_mass[name] for name in names]]
    per_head = sum(len(layer.entropy) for layer in section.layers) <= MOST_ROWS
    for i, layer in enumerate(section.layers):
        mass = [layer.mass[name].mean for name in names]
        if per_head:
            rows += [f"layer {i} head {j}" for j in range(len(layer.entropy))]
            values += [[m[j] for m in mass] for j in range(len(layer.entropy))]
        else:
            rows.append(f"layer {i}")
            values.append([words.mean(m) for m in mass])
    texts = [
        [f"{100 * v:.0f}%" if v >= 0.005 else f"{100 * v:.1f}%" for v in row] for row in values
    ]
    meaning = "; ".join(f"{name}: {_briefly(section, name)}" for name in names)
    return Card(
        "mass",
        "Where attention goes",
        charts.table_map(values, texts, rows, names, "Attention by role"),
        f"{heads_in_words(section)} {entropy_in_words(section)} ({meaning}.)",
        paper.NOTES["attention"],
        wide=len(names) > 4,
    )


def _mass_by_step(section: Attention) -> list[Card]:
    useful = [name for name in USEFUL if section.uniform_mass.get(name)]
    if not useful:
        return []
    name = useful[0]
    series = []
    for i, layer in enumerate(section.layers[: charts.NUM_COLORS]):
        mass = layer.mass_by_step[name]
        steps = list(range(1, len(mass) + 1))
        series.append(Series(f"layer {i}", steps, mass.mean, mass.se, color=i))
    picture = charts.lines(
        series,
        f"Attention on {name} by step",
        "step in the sequence",
        "share of attention",
        zero=True,
    )
    aligned = section.layers[-1].alignment_by_step
    cosines = {role: list(filter(words.known, aligned[role])) for role in (*useful, "irrelevant")}
    parts = [f"{role} {words.num(words.mean(c))}" for role, c in cosines.items() if c]
    reading = (
        f"Share of attention on {name} positions ({_briefly(section, name)}), mean over heads. "
        f"Mean cosine of query and key in the last layer: {', '.join(parts)}."
    )
    return [Card("mass-by-step", f"Attention on {name} positions", picture, reading)]


def _briefly(section: Attention, role: str) -> str:
    return section.meaning[role].split(":")[0]


def best_head(section: Attention) -> tuple[str, float, int, int] | None:
    """What is useful to look at, and the head that gives most to it: role, share, layer, head."""
    useful = "matching" if section.uniform_mass.get("matching") else "evidence"
    heads = [
        (mass, i, j)
        for i, layer in enumerate(section.layers)
        if useful in layer.mass
        for j, mass in enumerate(layer.mass[useful].mean)
    ]
    return (useful, *max(heads)) if heads and useful in section.uniform_mass else None


def heads_in_words(section: Attention) -> str:
    """Which head gives most to what is useful, compared with looking everywhere alike."""
    best = best_head(section)
    if best is None:
        return ""
    useful, mass, layer, head = best
    return (
        f"Head {head} of layer {layer} gives most to {useful} positions "
        f"({_briefly(section, useful)}): {words.percent(mass)} of its attention; attention that "
        f"looks everywhere alike would give {words.percent(section.uniform_mass[useful])}."
    )


def finding(section: Attention) -> str:
    best = best_head(section)
    if best is None:
        return f"The sharpest head, {_sharpest(section)}."
    useful, mass, layer, head = best
    return (
        f"Head {head} of layer {layer} spends {words.percent(mass)} of its attention on what a "
        f"Bayesian would read: {_briefly(section, useful)}."
    )


def control(section: Attention) -> str:
    best = best_head(section)
    if best is None:
        return f"Looking everywhere alike: {words.num(section.uniform_entropy)} bits."
    share = words.percent(section.uniform_mass[best[0]])
    return f"Attention that looks everywhere alike would give {share} to these positions."


def _entropy_by_layer(section: Attention, entropy: Estimates) -> Card:
    layers = list(range(len(section.layers)))
    sharpest = [min(layer.entropy.mean) for layer in section.layers]
    series = [
        Series("mean of heads", layers, entropy.mean, entropy.se, dots=True),
        Series("sharpest head", layers, sharpest, color=1, dots=True),
        Series("uniform", layers, [section.uniform_entropy] * len(layers), color=2, dashed=True),
    ]
    if section.untrained_entropy is not None:
        bits = section.untrained_entropy
        series.append(Series("untrained", layers, bits.mean, bits.se, color=3, dashed=True))
    picture = charts.lines(
        series,
        "Attention entropy by layer",
        "layer",
        "entropy / bits",
        names=list(map(str, layers)),
        zero=True,
    )
    reading, note = entropy_in_words(section), paper.NOTES["attention"]
    return Card("attention-entropy", "How sharp attention is", picture, reading, note)


def entropy_in_words(section: Attention) -> str:
    means = [words.mean(layer.entropy.mean) for layer in section.layers]
    text = f"Attention that looks everywhere alike has {words.num(section.uniform_entropy)} bits. "
    if len(means) == 1:
        return text + f"The only layer has {words.num(means[0])} bits (mean over heads)."
    return text + (
        f"The mean over heads is {words.num(means[0])} bits in the first layer and "
        f"{words.num(means[-1])} in the last{_change(section, means)}. The sharpest head, "
        f"{_sharpest(section)}."
    )


def _change(section: Attention, means: list[float]) -> str:
    """From the first layer to the last, in percent."""
    if section.fall is None:
        return f" ({100 * (means[-1] / means[0] - 1):+.0f} %)" if means[0] > 0 else ""
    text = f": it {_moves(section.fall)}"
    if section.untrained_fall is not None:
        text += f" (untrained: {_moves(section.untrained_fall)})"
    return text


def _moves(fall: Estimate) -> str:
    if fall.mean < 0:
        return f"rises by {_percent(Estimate(-fall.mean, fall.se))}"
    return f"falls by {_percent(fall)}"


def _percent(x: Estimate) -> str:
    error = f" ± {100 * x.se:.1g}" if words.known(x.se) else ""
    return f"{100 * x.mean:.3g}{error} %"


def _sharpest(section: Attention) -> str:
    heads = [
        (bits, i, j)
        for i, layer in enumerate(section.layers)
        for j, bits in enumerate(layer.entropy.mean)
    ]
    bits, layer, head = min(heads)
    return f"head {head} of layer {layer}, has {words.num(bits)} bits"


SHOWN = Shown(
    "attention",
    "Attention",
    Attention,
    cards,
    finding=finding,
    control=control,
    sentences={"attention": heads_in_words, "sharpness": entropy_in_words},
    numbers={
        "attention_entropy_first": lambda section: words.mean(section.layers[0].entropy.mean),
        "attention_entropy_last": lambda section: words.mean(section.layers[-1].entropy.mean),
        "attention_entropy_fall": lambda section: section.fall and section.fall.mean,
    },
    legend=(
        "attention entropy in bits in the first and the last layer, and the share of it that is "
        "lost between them"
    ),
    by_layer={
        "attention_entropy": lambda section: [words.mean(x.entropy.mean) for x in section.layers]
    },
)
