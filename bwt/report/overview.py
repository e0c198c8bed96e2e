"""How far a run is from exact Bayes."""

from bwt.records import curves
from bwt.records.evaluation import Evaluation
from bwt.records.floors import MEMORY, is_scale
from bwt.records.metrics import MetricsRow
from bwt.report import charts, words
from bwt.report.cards import Card
from bwt.report.charts import Series
from bwt.report.reading import Run

LACKING = {
    "uniform": "uniform: guesses",
    "constant": "constant: knows the position only",
    "lookup": "lookup: recalls, does not rule out",
    "unbound": "unbound: knows what was seen, binds nothing",
    "latest": "latest: keeps the last showing, adds nothing up",
    **{f"{MEMORY}{k}": f"exact, of the last {k}" for k in range(1, 100)},
    f"{MEMORY}0": "memory-0: reads the header only",
}
SHOWN_MEMORIES = ("memory-1", "memory-2", "memory-5")


def belief_cards(run: Run) -> list[Card]:
    return [_entropy_by_step(run.evaluation), _kl_by_step(run.evaluation)]


def belief_finding(run: Run) -> str:
    model, exact = (x.per_position["entropy"] for x in (run.evaluation.model, run.evaluation.exact))
    gaps = [abs(a - b) for a, b in zip(exact.mean, model.mean, strict=True) if words.known(b)]
    start, end = exact.mean[0], exact.mean[-1]
    return (
        f"Over {words.plural(len(exact), 'step')} the uncertainty of exact Bayes goes from "
        f"{words.num(start)} to {words.num(end)} bits, and the model's mean stays within "
        f"{words.num(max(gaps, default=None))} bits of it."
    )


def belief_control(run: Run) -> str:
    evaluation = run.evaluation
    return (
        f"The best predictor that lacks an ability, {evaluation.best_floor()}, is "
        f"{words.num(evaluation.floor_kl().mean)} bits from Bayes (KL); the model "
        f"{words.num(evaluation.model.overall['kl'].mean)}."
    )


def training_cards(run: Run) -> list[Card]:
    rows = _evaluated(run)
    return [_learning(run, rows)] if rows else []


def training_finding(run: Run) -> str:
    """When it first beats what lacks an ability."""
    rows, floor = _evaluated(run), run.evaluation.floor_kl().mean
    name = run.evaluation.best_floor()
    beaten = [row.step for row in rows if (kl := row.metric("kl")) is not None and kl < floor]
    if not rows:
        return ""
    if not beaten:
        return f"In {rows[-1].step:,} steps of training it does not get below the floor {name}."
    last = words.num(rows[-1].metric("kl"))
    return (
        f"It is nearer to Bayes than the floor {name} by training step {beaten[0]:,}, and "
        f"{last} bits from it at step {rows[-1].step:,}."
    )


def training_control(run: Run) -> str:
    rows = _evaluated(run)
    if not rows:
        return ""
    first, guess = rows[0], run.evaluation.floors["uniform"].overall["kl"].mean
    return (
        f"At step {first.step:,} it was {words.num(first.metric('kl'))} bits from Bayes; a "
        f"uniform guess is {words.num(guess)}."
    )


def _evaluated(run: Run) -> list[MetricsRow]:
    return [row for row in run.metrics if row.evaluation]


def headline(evaluation: Evaluation) -> str:
    model, name, floor = evaluation.model.overall, evaluation.best_floor(), evaluation.floor_kl()
    text = (
        f"On average the predictions are {words.pm(model['kl'])} bits from the exact posterior "
        f"(KL), and their entropy is off by {words.pm(model['entropy_mae'])} bits. "
    )
    if evaluation.beats_floor():
        ratio = floor.mean / max(model["kl"].mean, 1e-12)
        text += (
            f"The best floor, {name}, is {words.num(ratio)} times as far ({words.num(floor.mean)} "
            "bits)."
        )
    else:
        text += f"That is NOT better than the floor {name} ({words.num(floor.mean)} bits)."
    if evaluation.entropy_proves_nothing():
        text += (
            " One who knows only the position gets the entropy right to "
            f"{words.num(evaluation.position_entropy_mae)} bits: here the entropy error proves "
            "nothing, the KL does."
        )
    memory = evaluation.effective_memory
    if memory is not None:
        degree = "More precise than" if memory.at_least else "As precise as"
        text += (
            f" {degree} an exact filter that sees only the last {words.num(memory.observations)} "
            "observations."
        )
    return text


def by_step(evaluation: Evaluation) -> str:
    kl = evaluation.model.per_position["kl"]
    known = [i for i, x in enumerate(kl.mean) if words.known(x)]
    if not known:
        return "At no step is the distance finite."
    worst, best = (pick(known, key=lambda i: kl.mean[i]) for pick in (max, min))
    return (
        f"Farthest from Bayes at step {worst + 1} ({words.pm(kl[worst])} bits), nearest at step "
        f"{best + 1} ({words.pm(kl[best])} bits). Bands are ± one standard error over sequences."
    )


def _steps(evaluation: Evaluation) -> list[int]:
    return list(range(1, len(evaluation.positions) + 1))


def _entropy_by_step(evaluation: Evaluation) -> Card:
    steps = _steps(evaluation)
    model, exact = (x.per_position["entropy"] for x in (evaluation.model, evaluation.exact))
    series = [
        Series("model", steps, model.mean, model.se),
        Series("exact Bayes", steps, exact.mean, color=1, dashed=True),
    ]
    gap = [abs(a - b) for a, b in zip(exact.mean, model.mean, strict=True)]
    reading = (
        f"Mean uncertainty after each step. The two curves differ by at most {words.num(max(gap))} "
        f"bits (step {gap.index(max(gap)) + 1}). Errors of single sequences can cancel in these "
        "means; they do not in the numbers above."
    )
    picture = charts.lines(
        series, "Entropy by step", "step in the sequence", "entropy / bits", zero=True
    )
    return Card("entropy", "Posterior and model, step by step", picture, reading)


def _kl_by_step(evaluation: Evaluation) -> Card:
    steps, floor = _steps(evaluation), evaluation.best_floor()
    model = evaluation.model.per_position["kl"]
    kl = {name: score.per_position["kl"].mean for name, score in evaluation.floors.items()}
    series = [
        Series("model", steps, model.mean, model.se),
        Series(f"floor: {floor}", steps, kl[floor], color=2, dashed=True),
    ]
    for i, name in enumerate(name for name in kl if name in SHOWN_MEMORIES):
        # Rounding: a filter that sees all there is so far is exact.
        seen = [v if v > 1e-9 else None for v in kl[name]]
        label = f"exact, last {name.removeprefix('memory-')}"
        series.append(Series(label, steps, seen, color=3 + i, dashed=True))
    picture = charts.lines(
        series, "KL by step", "step in the sequence", "KL to exact posterior / bits", log_y=True
    )
    return Card("kl", "Distance from exact Bayes", picture, by_step(evaluation))


def _learning(run: Run, rows: list[MetricsRow]) -> Card:
    steps = [row.step for row in rows]
    series = [
        Series("KL", steps, [row.metric("kl") for row in rows], dots=True),
        Series(
            "entropy error",
            steps,
            [row.metric("entropy_mae") for row in rows],
            color=1,
            dots=True,
        ),
    ]
    picture = charts.lines(
        series, "Learning curve", "training step", "bits", log_x=True, log_y=True
    )
    reading = (
        f"Evaluated on fresh sequences at {words.plural(len(rows), 'checkpoint')}; "
        f"{rows[-1].seconds:.0f} s of training on {run.device}. {_convergence(run, rows)}"
    )
    return Card("learning", "Learning curve", picture, reading)


def _convergence(run: Run, rows: list[MetricsRow]) -> str:
    exponent = curves.slope([row.step for row in rows], [row.metric("kl") or 0.0 for row in rows])
    text = curves.in_words(exponent)
    if text and run.config.decay != "none":
        text += " The learning rate falls to 0 there, which makes the end steeper than it is."
    return text


def floors(run: Run) -> Card:
    """How far from Bayes, compared with what."""
    evaluation = run.evaluation
    rows = [(f"this model ({run.config.model})", evaluation.model.overall["kl"], 0)]
    scores = {name: score.overall["kl"] for name, score in evaluation.floors.items()}
    for name, kl in sorted(scores.items(), key=lambda x: x[1].mean):
        rows.append((LACKING.get(name, name), kl, 3 if is_scale(name) else 2))
    picture = charts.dots(
        rows, "Model and floors", "bits lost against exact Bayes (KL)", width=640.0, above=True
    )
    reading = "Grey: predictors that lack an ability, as a scale for the number above."
    if any(map(is_scale, evaluation.floors)):
        reading += " Green: exact filters that see only the last observations."
    return Card("floors", "Compared with what", picture, reading, wide=True)
