"""Plain sentences computed from the numbers. They say what was found, and no more."""

from typing import Any

Section = dict[str, Any]
TARGETS = {
    "posterior": "posterior",
    "entropy": "entropy",
    "eliminated": "set of ruled-out outcomes",
}


def num(x: float | None) -> str:
    if x is None:
        return "–"
    if x == 0 or abs(x) < 1e-12:
        return "0"
    return f"{x:.3g}" if abs(x) >= 1e-4 else f"{x:.1e}".replace("e-0", "e-")


def pm(e: Section | None) -> str:
    """Mean ± standard error."""
    if e is None or e["mean"] is None:
        return "–"
    se = e.get("se")
    return num(e["mean"]) + (f" ± {se:.1g}".replace("e-0", "e-") if se else "")


def percent(x: float | None) -> str:
    return "–" if x is None else f"{100 * x:.3g} %"


def plural(n: int, noun: str) -> str:
    return f"{n} {noun}" + ("" if n == 1 else "s")


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def best_floor(evaluation: Section) -> str:
    """The floor of least KL; filters with a memory are a scale, not floors."""
    floors = evaluation["floors"]
    rivals = [n for n in floors if not n.startswith("memory-") or n == "memory-0"]
    return min(rivals, key=lambda n: floors[n]["overall"]["kl"]["mean"])


def beats(model: Section, floor: Section) -> bool:
    """By more than two standard errors."""
    error = ((model["se"] or 0) ** 2 + (floor["se"] or 0) ** 2) ** 0.5
    return model["mean"] + 2 * error < floor["mean"]


def headline(evaluation: Section) -> str:
    model, name = evaluation["model"]["overall"], best_floor(evaluation)
    floor = evaluation["floors"][name]["overall"]["kl"]
    text = (
        f"On average the predictions are {pm(model['kl'])} bits from the exact posterior (KL), and "
        f"their entropy is off by {pm(model['entropy_mae'])} bits. "
    )
    if beats(model["kl"], floor):
        ratio = floor["mean"] / max(model["kl"]["mean"], 1e-12)
        text += f"The best floor, {name}, is {num(ratio)} times as far ({num(floor['mean'])} bits)."
    else:
        text += f"That is NOT better than the floor {name} ({num(floor['mean'])} bits)."
    by_position = evaluation["position_entropy_mae"]
    if by_position <= model["entropy_mae"]["mean"]:
        text += (
            f" One who knows only the position gets the entropy right to {num(by_position)} bits: "
            "here the entropy error proves nothing, the KL does."
        )
    memory = evaluation.get("effective_memory")
    if memory:
        degree = "More precise than" if memory["at_least"] else "As precise as"
        text += (
            f" {degree} an exact filter that sees only the last {num(memory['observations'])} "
            "observations."
        )
    return text


def by_step(evaluation: Section) -> str:
    kl = evaluation["model"]["per_position"]["kl"]
    worst = max(range(len(kl["mean"])), key=lambda i: kl["mean"][i])
    best = min(range(len(kl["mean"])), key=lambda i: kl["mean"][i])
    at = {i: pm({"mean": kl["mean"][i], "se": kl["se"][i]}) for i in (worst, best)}
    return (
        f"Farthest from Bayes at step {worst + 1} ({at[worst]} bits), nearest at step {best + 1} "
        f"({at[best]} bits). Bands are ± one standard error over sequences."
    )


def attention_heads(section: Section) -> str:
    """Which head gives most to what is useful, compared with looking everywhere alike."""
    useful = "matching" if section["uniform_mass"].get("matching") else "evidence"
    heads = [
        (m, i, j)
        for i, layer in enumerate(section["layers"])
        for j, m in enumerate(layer["mass"].get(useful, {"mean": []})["mean"])
    ]
    if not heads:
        return ""
    mass, layer, head = max(heads)
    what = section["meaning"][useful].split(":")[0]
    return (
        f"Head {head} of layer {layer} gives most to {useful} positions ({what}): {percent(mass)} "
        "of its attention; attention that looks everywhere alike would give "
        f"{percent(section['uniform_mass'][useful])}."
    )


def attention_entropy(section: Section) -> str:
    layers = [mean(layer["entropy"]["mean"]) for layer in section["layers"]]
    text = f"Attention that looks everywhere alike has {num(section['uniform_entropy'])} bits. "
    if len(layers) == 1:
        return text + f"The only layer has {num(layers[0])} bits (mean over heads)."
    change = f" ({100 * (layers[-1] / layers[0] - 1):+.0f} %)" if layers[0] > 0 else ""
    return text + (
        f"The mean over heads is {num(layers[0])} bits in the first layer and {num(layers[-1])} in "
        f"the last{change}."
    )


def keys(section: Section) -> str:
    trained, untrained = (
        mean(section[kind]["centred"][0]["mean"]) for kind in ("trained", "untrained")
    )
    errors = [max(section[kind]["centred"][0]["se"]) for kind in ("trained", "untrained")]
    if abs(trained - untrained) <= 3 * sum(errors):
        verdict = "no different from"
    else:
        verdict = "nearer to orthogonal than" if trained < untrained else "LESS orthogonal than"
    return (
        f"In layer 0 the keys of different addresses are {verdict} those of the untrained model: "
        f"mean |cos| {num(trained)} against {num(untrained)}, with what all keys share taken away "
        f"(independent Gaussian vectors of this size: {num(section['gaussian'])})."
    )


def manifold(section: Section, label: str) -> str:
    cloud = section["clouds"][label]
    share = cloud["share"]
    text = (
        f"The first component holds {percent(share[0])} of the variance, the first two "
        f"{percent(sum(share[:2]))}; effectively {plural_dimensions(cloud['dimensions'])}. "
        f"The first component gives the entropy with R² {pm(cloud['first']['r2'])}, the best "
        f"linear coordinate with {pm(cloud['fitted']['r2'])} on other sequences. "
    )
    if not section["entropy_varies_within_position"]:
        return text + (
            "In this task the position determines the entropy: a curve ordered by uncertainty "
            "cannot be told from one ordered by position, and nothing here shows which it is."
        )
    return text + (
        f"With the position held fixed: {pm(cloud['first']['r2_within'])} and "
        f"{pm(cloud['fitted']['r2_within'])}."
    )


def plural_dimensions(x: float) -> str:
    return f"{num(x)} dimension" + ("" if abs(x - 1) < 0.05 else "s")


def dissociation(section: Section) -> str:
    rows, settled = section["checkpoints"], section["settled"]
    last = rows[-1]["step"]
    if len(rows) < 4:
        return "Too few checkpoints to say when anything settles."
    text = ""
    if "attention" in settled:
        factor, then = section["kl_factor_after"], section["kl_when_attention_settled"]
        text = (
            "Attention maps stay within a tenth of the way to their final form from step "
            f"{settled['attention']} on (of {last}); the KL is {num(then)} bits then and "
        )
        if factor > 2:
            text += (
                f"falls by another factor of {num(factor)} while attention goes the last tenth. "
            )
        else:
            text += (
                f"changes by a factor of {num(factor)} after that: no dissociation to speak of. "
            )
    return text + (
        f"States settle at step {settled['distance']}, precision (log KL) at step "
        f"{settled['precision']}. “Settled” depends on the checkpoints there are, which are spaced "
        "on a log scale."
    )


def probes(section: Section, target: str) -> str:
    rows = section["targets"][target]["stages"]
    key = "within" if "within" in rows[0] else "r2"
    stages = section["stages"]
    best = max(range(len(rows)), key=lambda i: rows[i][key]["mean"])
    held = "with the position held fixed, " if key == "within" else ""
    text = (
        f"The {TARGETS[target]} can be read linearly best at {stage(stages[best])}: {held}R² "
        f"{pm(rows[best][key])}; in the untrained model "
        f"{pm(rows[best]['untrained_' + key])}"
    )
    if "shuffled_within" in rows[best]:
        text += f", with the labels of other sequences {pm(rows[best]['shuffled_within'])}"
    text += ". "
    if key == "r2":
        text += "The position determines this target, so this may be nothing but the position. "
    if "accuracy" in rows[best]:
        text += (
            f"Taken as yes or no it is right in {percent(rows[best]['accuracy']['mean'])} of cases "
            f"(always the more frequent answer of the position: "
            f"{percent(rows[best]['majority'])}). "
        )
    return text + _what_mlps_add(section, target, key)


def _what_mlps_add(section: Section, target: str, key: str) -> str:
    stages = section["stages"]
    rows = dict(zip(stages, section["targets"][target]["stages"], strict=True))
    gains = [
        (
            f"{name.split('.')[1]}",
            rows[name.removesuffix(".mid")][key]["mean"] - rows[name][key]["mean"],
        )
        for name in stages
        if name.endswith(".mid")
    ]
    if not gains:
        return ""
    return "MLPs change R² by " + ", ".join(f"{gain:+.3f} (layer {i})" for i, gain in gains) + "."


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


def ablation(section: Section) -> str:
    parts = [p for p in section["parts"] if p["mode"] == "zero"]
    layers = [p for p in parts if p["part"] == "block"]
    least = min(layers, key=lambda p: p["entropy_mae_factor"])
    heads = sorted((p for p in parts if p["part"] == "head"), key=lambda p: -p["kl_added"]["mean"])
    text = (
        f"Intact: {pm(section['kl'])} bits. Skipping a layer makes the entropy error at least "
        f"{num(least['entropy_mae_factor'])} times as large (layer {least['layer']} matters least)"
        ". "
    )
    if len(heads) > 1:
        first, second = heads[:2]
        text += (
            f"The head that matters most is head {first['head']} of layer {first['layer']} "
            f"({pm(first['kl_added'])} bits added); the next, head {second['head']} of layer "
            f"{second['layer']}, adds {pm(second['kl_added'])}."
        )
    return text


def removal(rows: list[Section]) -> str:
    """Of the posterior, in the layer where removing it costs most."""
    rows = [row for row in rows if row["target"] == "posterior"]
    row = max(rows, key=lambda r: r["kl_added"]["encoded"]["mean"])
    added, left = row["kl_added"], row["r2_left"]
    text = (
        f"Taking the {plural(row['rank'], 'dimension')} in which layer {row['layer']} encodes the "
        f"posterior out of its output adds {pm(added['encoded'])} bits; random ones add "
        f"{pm(added['random'])}, the leading principal components {pm(added['principal'])}. "
        f"Removing the probe's own directions adds {pm(added['readout'])} bits and leaves R² "
        f"{pm(left['readout'])} for a new probe"
    )
    if left["readout"]["mean"] > 0.1:
        text += ": the state says it in other directions too, so that removal tests nothing"
    return text + "."


def interchange(rows: list[Section]) -> str:
    follows: list[int] = []  # the last layers in a row at which the other sequence wins
    for row in reversed(rows):
        if row["other"]["mean"] >= row["own"]["mean"]:
            break
        follows.insert(0, row["layer"])
    steps = ", ".join(map(str, rows[0]["steps"]))
    text = (
        f"The state of one position (steps {steps}) is replaced by that of another sequence, whose "
        f"posterior differs by {num(rows[0]['tvd_between']['mean'])} (total variation). "
    )
    if not follows:
        return text + "After the last layer the prediction is not nearer to that posterior."
    return text + (
        f"From layer {follows[0]} on the prediction is nearer to the other sequence's posterior "
        "than to its own. After the last layer this is so in any good model: only the head follows."
    )


def clusters(section: Section) -> str:
    if "reason" in section:
        return f"Not measured: {section['reason']}."
    found, control = section["trained"], section["untrained"]
    quality = found["silhouette"]
    kind = "distinct" if quality > 0.5 else "weak" if quality > 0.25 else "no"
    return (
        f"{kind.capitalize()} clusters: the best number by silhouette is {found['clusters']} "
        f"(silhouette {num(quality)}; untrained {num(control['silhouette'])}). Agreement with the "
        f"likeliest outcome: adjusted Rand index {num(found['rand'])} (untrained "
        f"{num(control['rand'])}); with as many clusters as outcomes, {found['outcomes']}: "
        f"{num(found['rand_given_outcomes'])}."
    )


def lengths(section: Section) -> str:
    if "reason" in section:
        return f"Not measured: {section['reason']}."
    trained, kl = section["trained"], section["kl"]["mean"]
    inside, outside = mean(kl[:trained]), mean(kl[trained:])
    return (
        f"Trained on {trained} steps, tested on {section['tested']}: {num(inside)} bits up to step "
        f"{trained}, {num(outside)} bits after it (mean KL), {num(outside / max(inside, 1e-12))} "
        "times as much."
    )


def summary(geometry: Section) -> str:
    """All of it in a few lines, for the terminal."""
    last = list(geometry["manifold"]["clouds"])[-1]
    lines = {}
    if "keys" in geometry:
        lines["keys"] = keys(geometry["keys"])
        lines["attention"] = attention_heads(geometry["attention"])
        lines["sharpness"] = attention_entropy(geometry["attention"])
    lines["states"] = manifold(geometry["manifold"], last)
    if "posterior" in geometry["probes"]["targets"]:
        lines["probes"] = probes(geometry["probes"], "posterior")
    lines["clusters"] = clusters(geometry["clusters"])
    lines["training"] = dissociation(geometry["dissociation"])
    lines["length"] = lengths(geometry["lengths"])
    return "\n".join(f"{name + ':':<11}{text}" for name, text in lines.items() if text)
