"""What happens when a model is changed, trained or stretched."""

from collections.abc import Callable

from bwt.report import charts, paper, words
from bwt.report.cards import Card, table
from bwt.report.charts import Series


def ablation(section) -> list[Card]:
    cards = []
    for mode, what in (
        ("zero", "removed"),
        ("mean", "replaced by its mean over sequences at each position"),
    ):
        parts = [p for p in section["parts"] if p["mode"] == mode]
        cards.append(_ablation_map(section, parts, mode, what))
    if section["removal"]:
        cards.append(_removal(section["removal"]))
    cards.append(_interchange(section["interchange"]))
    return cards


def _ablation_map(section, parts, mode: str, what: str) -> Card:
    def name(p) -> str:
        return p["part"] if p["head"] is None else f"head {p['head']}"

    layers = sorted({p["layer"] for p in parts})
    columns = list(dict.fromkeys(name(p) for p in parts))
    found = {(p["layer"], name(p)): p["kl_added"] for p in parts}
    top = max(max(e["mean"] for e in found.values()), 1e-12)
    # By the square root: small effects stay visible, large ones do not hide each other.
    values = [
        [max(0.0, found[i, c]["mean"] / top) ** 0.5 if (i, c) in found else None for c in columns]
        for i in layers
    ]
    texts = [[words.pm(found[i, c]) if (i, c) in found else "" for c in columns] for i in layers]
    picture = charts.table_map(
        values, texts, [f"layer {i}" for i in layers], columns, f"Ablation by {mode}"
    )
    reading = f"Bits of KL added when a part is {what} (± standard error, paired). "
    if mode == "zero":
        reading += words.ablation(section)
    note = paper.ABLATION if mode == "zero" else ""
    title = {"zero": "What breaks without a part", "mean": "The same, by mean"}[mode]
    return Card(f"ablation-{mode}", title, picture, reading, note, wide=True)


def _removal(rows) -> Card:
    head = ["output of", "target", "rank", "encoded", "readout", "random", "principal", "R² left"]
    body = [
        [f"layer {r['layer']}", r["target"], str(r["rank"])]
        + [words.pm(r["kl_added"][k]) for k in ("encoded", "readout", "random", "principal")]
        + [words.pm(r["r2_left"]["readout"])]
        for r in rows
    ]
    reading = words.removal(rows) + (
        " The table: bits of KL added by removing subspaces of equal rank, and what a new probe "
        "finds after the readout directions are gone."
    )
    return Card("removal", "Is what is read also used?", table(head, body), reading, wide=True)


def _interchange(rows) -> Card:
    layers = [r["layer"] for r in rows]
    series = [
        Series(
            name,
            list(range(len(rows))),
            [r[k]["mean"] for r in rows],
            [r[k]["se"] for r in rows],
            color=i,
            dots=True,
            dashed=k == "plain",
        )
        for i, (k, name) in enumerate(
            {
                "other": "to the other's posterior",
                "own": "to its own",
                "plain": "undisturbed",
            }.items()
        )
    ]
    picture = charts.lines(
        series,
        "Interchange",
        "state exchanged after layer",
        "KL / bits",
        names=[str(i) for i in layers],
        log_y=True,
    )
    return Card("interchange", "Does a state carry the belief?", picture, words.interchange(rows))


def dissociation(section) -> list[Card]:
    rows = [row for row in section["checkpoints"] if row["step"] > 0]
    start = section["checkpoints"][0]
    steps = [row["step"] for row in rows]

    def share(name: str, value: Callable[[dict], float], rows: list[dict], color: int) -> Series:
        first = value(start)
        shares = [value(row) / first if first > 0 else None for row in rows]
        return Series(name, [row["step"] for row in rows], shares, color=color, dots=True)

    series = [share("KL", lambda row: row["kl"]["mean"], rows, 0)]
    if "attention" in start:
        maps = share("attention to final", lambda row: row["attention"]["mean"], rows[:-1], 1)
        series.append(maps)
    series.append(share("states to final", lambda row: row["distance"], rows[:-1], 2))
    picture = charts.lines(
        series,
        "Frame and precision",
        "training step",
        "share of the value at the start",
        log_x=True,
        log_y=True,
    )
    shapes = [
        Series("spread of certain states", steps, [r["spread"] for r in rows], dots=True),
        Series("PC1 share", steps, [r["pc1"] for r in rows], color=1, dots=True),
    ]
    if "entropy_r2" in rows[-1]:
        r2 = [row["entropy_r2"] for row in rows]
        shapes.append(Series("entropy R²", steps, r2, color=2, dots=True))
    second = charts.lines(shapes, "Unfurling", "training step", "share", log_x=True, zero=True)
    return [
        Card(
            "dissociation",
            "Does attention settle before precision?",
            picture,
            words.dissociation(section) + " Distances to the final maps and states end at zero by "
            "definition; that point is left out.",
            paper.DISSOCIATION,
        ),
        Card(
            "unfurling",
            "How the states spread out",
            second,
            f"Last layer. Scatter of the most certain quarter of the states, relative to all: "
            f"{words.num(start['spread'])} before training, {words.num(rows[-1]['spread'])} at the "
            f"end. Variance along the first component: {words.percent(start['pc1'])} and "
            f"{words.percent(rows[-1]['pc1'])}.",
        ),
    ]


def clusters(section) -> list[Card]:
    if "reason" in section:
        return []
    found = section["trained"]
    x, y = zip(*found["plane"], strict=True)
    picture = charts.scatter(
        x,
        y,
        found["outcome"],
        "Final states by likeliest outcome",
        "component 1",
        "component 2",
        "colour: likeliest outcome under the exact posterior",
        groups=True,
    )
    reading = words.clusters(section)
    if found["outcomes"] > charts.NUM_COLORS:
        reading += f" Colours repeat after {charts.NUM_COLORS} outcomes."
    return [Card("clusters", "Do the final states cluster?", picture, reading, paper.CLUSTERS)]


def lengths(section) -> list[Card]:
    if "reason" in section:
        return []
    steps = list(range(1, section["tested"] + 1))
    series = [
        Series(label, steps, section[key]["mean"], section[key]["se"], color=i)
        for i, (key, label) in enumerate({"kl": "KL", "entropy_mae": "entropy error"}.items())
    ]
    picture = charts.lines(
        series,
        "Longer sequences",
        "step in the sequence",
        "bits",
        log_y=True,
        marker=(section["trained"] + 0.5, "trained to here"),
    )
    reading = words.lengths(section)
    return [Card("lengths", "Beyond the trained length", picture, reading, paper.LENGTHS)]
