"""What was found by looking into a model: geometry.json without its causal tests."""

from bwt.report import charts, paper, words
from bwt.report.cards import Card, table
from bwt.report.charts import Series


def _transposed(matrix):
    return [list(row) for row in zip(*matrix, strict=True)]


def examples(section) -> list[Card]:
    rows, marks = [], []
    for kind in ("exact", "model"):
        rows.append(
            [
                (f"{kind}, sequence {i + 1}", _transposed(example[kind]))
                for i, example in enumerate(section["sequences"])
            ]
        )
        marks.append([example["targets"] for example in section["sequences"]])
    furthest = max(
        max(abs(a - b) for a, b in zip(p, q, strict=True))
        for example in section["sequences"]
        for p, q in zip(example["exact"], example["model"], strict=True)
    )
    picture = charts.heat_maps(
        rows,
        "Example sequences",
        "step in the sequence",
        "outcome",
        cell=(190, 130),
        marks=marks,
        share_scale=False,
    )
    reading = (
        "Stronger colour is more probable (square root); a dot is what was really the case. Above "
        "the exact posterior, below the model. The largest difference in these sequences is "
        f"{words.num(furthest)}."
    )
    return [Card("examples", "Three sequences", picture, reading, wide=True)]


def attention(section) -> list[Card]:
    layers = section["layers"]
    cards = []
    for key, title, reading in (
        (
            "example",
            "Attention in one sequence",
            "Rows are the steps that are asked, columns all positions before; stronger colour is "
            "more attention (square root, each head scaled to its largest weight).",
        ),
        (
            "maps",
            "Attention, mean of all sequences",
            f"The same, averaged over {section['sequences']} sequences: routing by content is "
            "blurred, routing by position stays sharp.",
        ),
    ):
        maps = [
            [(f"layer {i} head {j}", head) for j, head in enumerate(layer[key])]
            for i, layer in enumerate(layers)
        ]
        width = 190 if len(maps[0]) < 4 else 130
        picture = charts.heat_maps(maps, title, "position", "step", cell=(width, width * 0.7))
        cards.append(Card(f"attention-{key}", title, picture, reading, wide=len(maps[0]) > 2))
    cards.append(_mass(section))
    cards += _mass_by_step(section)
    return cards


def _mass(section) -> Card:
    names = [name for name, share in section["uniform_mass"].items() if share > 0]
    rows, values = ["uniform"], [[section["uniform_mass"][name] for name in names]]
    per_head = sum(len(layer["entropy"]["mean"]) for layer in section["layers"]) <= 24
    for i, layer in enumerate(section["layers"]):
        heads = len(layer["entropy"]["mean"])
        mass = [layer["mass"][name]["mean"] for name in names]
        if per_head:
            rows += [f"layer {i} head {j}" for j in range(heads)]
            values += [[m[j] for m in mass] for j in range(heads)]
        else:
            rows.append(f"layer {i}")
            values.append([words.mean(m) for m in mass])
    texts = [
        [f"{100 * v:.0f}%" if v >= 0.005 else f"{100 * v:.1f}%" for v in row] for row in values
    ]
    meaning = "; ".join(f"{n}: {section['meaning'][n].split(':')[0]}" for n in names)
    return Card(
        "mass",
        "Where attention goes",
        charts.table_map(values, texts, rows, names, "Attention by role"),
        f"{words.attention_heads(section)} {words.attention_entropy(section)} ({meaning}.)",
        paper.ENTROPY,
        wide=len(names) > 4,
    )


def _mass_by_step(section) -> list[Card]:
    useful = [n for n in ("matching", "evidence", "transition") if section["uniform_mass"].get(n)]
    if not useful:
        return []
    name = useful[0]
    series = []
    for i, layer in enumerate(section["layers"][: charts.NUM_COLORS]):
        mass = layer["mass_by_step"][name]
        steps = list(range(1, len(mass["mean"]) + 1))
        series.append(Series(f"layer {i}", steps, mass["mean"], mass["se"], color=i))
    picture = charts.lines(
        series,
        f"Attention on {name} by step",
        "step in the sequence",
        "share of attention",
        zero=True,
    )
    last = section["layers"][-1]
    cosine = {n: [c for c in last["alignment_by_step"][n] if c is not None] for n in useful}
    parts = [f"{n} {words.num(words.mean(c))}" for n, c in cosine.items() if c]
    rest = [c for c in last["alignment_by_step"]["irrelevant"] if c is not None]
    if rest:
        parts.append(f"irrelevant {words.num(words.mean(rest))}")
    reading = (
        f"Share of attention on {name} positions ({section['meaning'][name].split(':')[0]}), mean "
        f"over heads. Mean cosine of query and key in the last layer: {', '.join(parts)}."
    )
    return [Card("mass-by-step", f"Attention on {name} positions", picture, reading)]


def keys(section) -> list[Card]:
    rows = []
    for i in range(len(section["trained"]["plain"])):
        cells = [f"layer {i}"]
        for kind in ("plain", "centred"):
            for model in ("trained", "untrained"):
                heads = section[model][kind][i]
                worst = max(heads["se"])
                cells.append(words.pm({"mean": words.mean(heads["mean"]), "se": worst}))
        rows.append(cells)
    head = ["", "|cos|", "untrained", "|cos| centred", "untrained"]
    reading = words.keys(section) + (
        f" Means over heads, with the largest standard error of a head; {section['addresses']} "
        f"addresses, heads of size {section['head_size']}."
    )
    return [Card("keys", "Are the keys orthogonal?", table(head, rows), reading, paper.KEYS)]


def manifold(section) -> list[Card]:
    labels = list(section["clouds"])
    cards = []
    for label in labels[-2:]:
        points = section["points"][label]
        for value, unit in (("entropy", "exact entropy / bits"), ("step", "step")):
            picture = charts.scatter(
                points["x"],
                points["y"],
                points[value],
                f"{label} by {value}",
                "component 1",
                "component 2",
                unit,
            )
            name = label.replace(" ", "-")
            title = f"{label.capitalize()}, coloured by {value}"
            reading = (
                words.manifold(section, label)
                if value == "entropy"
                else "The same points coloured by their step: where both pictures look alike, "
                "uncertainty and position cannot be told apart by eye."
            )
            note = paper.MANIFOLD if value == "entropy" else ""
            cards.append(Card(f"manifold-{name}-{value}", title, picture, reading, note))
    cards.append(_manifold_table(section))
    return cards


def _manifold_table(section) -> Card:
    head = [
        "",
        "PC1",
        "PC1+2",
        "dim.",
        "R² PC1",
        "given position",
        "|ρ| PC1",
        "given position",
        "R² fitted",
        "given position",
    ]
    rows = []
    for label, cloud in section["clouds"].items():
        first, fitted = cloud["first"], cloud["fitted"]
        rows.append(
            [
                label,
                words.percent(cloud["share"][0]),
                words.percent(sum(cloud["share"][:2])),
                words.num(cloud["dimensions"]),
                words.pm(first["r2"]),
                words.pm(first["r2_within"]),
                words.pm(first["spearman"]),
                words.pm(first["spearman_within"]),
                words.pm(fitted["r2"]),
                words.pm(fitted["r2_within"]),
            ]
        )
    reading = (
        "How well one coordinate gives the posterior entropy: the first principal component (R² "
        "and Spearman's ρ), and the best linear one, fitted on half of the sequences and scored on "
        "the others. “Given position” is what remains when each position's mean is taken away; – "
        "where nothing remains."
    )
    return Card("manifold", "States and uncertainty", table(head, rows), reading, wide=True)


def probes(section) -> list[Card]:
    cards = []
    names = [words.short_stage(name) for name in section["stages"]]
    for target, found in section["targets"].items():
        rows = found["stages"]
        key = "within" if "within" in rows[0] else "r2"
        kinds = {
            "trained": key,
            "untrained": f"untrained_{key}",
            "shuffled labels": f"shuffled_{key}",
        }
        series = [
            Series(
                label,
                list(range(len(rows))),
                [row[k]["mean"] for row in rows],
                [row[k]["se"] for row in rows],
                color=i,
                dashed=i > 0,
                dots=True,
            )
            for i, (label, k) in enumerate(kinds.items())
            if k in rows[0]
        ]
        unit = "R² given position" if key == "within" else "R²"
        picture = charts.lines(
            series,
            f"Probe of the {words.TARGETS[target]}",
            "layer (a: after its attention)",
            unit,
            names=names,
            zero=True,
        )
        cards.append(
            Card(
                f"probe-{target}",
                f"Can the {words.TARGETS[target]} be read off the states?",
                picture,
                words.probes(section, target),
                paper.PROBES if target == "posterior" else "",
            )
        )
    return cards
