"""How far a run is from exact Bayes."""

from typing import Any

from bwt.records.metrics import Progress
from bwt.report import charts, words
from bwt.report.cards import Card
from bwt.report.charts import Series
from bwt.report.reading import Run


def overview(run: Run) -> list[Card]:
    cards = [_floors(run.evaluation), _kl_by_step(run), _entropy_by_step(run)]
    rows = [row for row in run.metrics if row.evaluation]
    return [*cards, _learning(run, rows)] if rows else cards


def _steps(run: Run) -> list[int]:
    return list(range(1, len(run.evaluation["positions"]) + 1))


def _entropy_by_step(run: Run) -> Card:
    scores = {k: run.evaluation[k]["per_position"]["entropy"] for k in ("exact", "model")}
    series = [
        Series("model", _steps(run), scores["model"]["mean"], scores["model"]["se"]),
        Series("exact Bayes", _steps(run), scores["exact"]["mean"], color=1, dashed=True),
    ]
    gap = [
        abs(a - b) for a, b in zip(scores["exact"]["mean"], scores["model"]["mean"], strict=True)
    ]
    reading = (
        f"Mean uncertainty after each step. The two curves differ by at most {words.num(max(gap))} "
        f"bits (step {gap.index(max(gap)) + 1}). Errors of single sequences can cancel in these "
        "means; they do not in the numbers above."
    )
    picture = charts.lines(
        series, "Entropy by step", "step in the sequence", "entropy / bits", zero=True
    )
    return Card("entropy", "Posterior and model, step by step", picture, reading)


def _kl_by_step(run: Run) -> Card:
    evaluation = run.evaluation
    model = evaluation["model"]["per_position"]["kl"]
    floor = words.best_floor(evaluation)
    series = [
        Series("model", _steps(run), model["mean"], model["se"]),
        Series(
            f"floor: {floor}",
            _steps(run),
            evaluation["floors"][floor]["per_position"]["kl"]["mean"],
            color=2,
            dashed=True,
        ),
    ]
    memories = [n for n in evaluation["floors"] if n in ("memory-1", "memory-2", "memory-5")]
    for i, name in enumerate(memories):
        kl = evaluation["floors"][name]["per_position"]["kl"]["mean"]
        # Rounding: a filter that sees all there is so far is exact.
        kl = [v if v > 1e-9 else None for v in kl]
        series.append(Series(f"exact, last {name[7:]}", _steps(run), kl, color=3 + i, dashed=True))
    picture = charts.lines(
        series, "KL by step", "step in the sequence", "KL to exact posterior / bits", log_y=True
    )
    return Card("kl", "Distance from exact Bayes", picture, words.by_step(evaluation))


def _learning(run: Run, rows: list[Progress]) -> Card:
    steps = [row.step for row in rows]
    series = [
        Series("KL", steps, [r.evaluation["kl"] for r in rows], dots=True),
        Series(
            "entropy error",
            steps,
            [r.evaluation["entropy_mae"] for r in rows],
            color=1,
            dots=True,
        ),
    ]
    picture = charts.lines(
        series, "Learning curve", "training step", "bits", log_x=True, log_y=True
    )
    reading = (
        f"Evaluated on fresh sequences at {words.plural(len(rows), 'checkpoint')}; "
        f"{rows[-1].seconds:.0f} s of training on {run.device}."
    )
    return Card("learning", "Learning curve", picture, reading)


def _floors(evaluation: dict[str, Any]) -> Card:
    rows = [("model", *_pair(evaluation["model"]["overall"]["kl"]), 0)]
    for name, score in evaluation["floors"].items():
        color = 3 if name.startswith("memory-") and name != "memory-0" else 2
        rows.append((name, *_pair(score["overall"]["kl"]), color))
    picture = charts.dots(rows, "Model and floors", "KL to exact posterior / bits")
    reading = (
        "Bits lost against exact Bayes, in the mean. Grey: predictors that lack an ability (see "
        "the end of the page)."
    )
    if any(color == 3 for *_, color in rows):
        reading += " Green: exact filters that see only the last k observations, as a scale."
    return Card("floors", "What the number means", picture, reading)


def _pair(e: dict[str, float]) -> tuple[float, float]:
    return e["mean"], e["se"] or 0.0
