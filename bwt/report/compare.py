"""Several runs side by side."""

from collections.abc import Sequence
from html import escape
from typing import Any

from bwt.report import charts, paper, words
from bwt.report.cards import Card, Html, table
from bwt.report.charts import Series
from bwt.report.reading import Run


def comparison(runs: Sequence[Run]) -> str:
    """One line a run, with floors and the paper's number."""
    head = [
        "run",
        "task",
        "model",
        "parameters",
        "KL / bits",
        "best floor",
        "entropy error / bits",
        "of means",
        "the paper's",
        "TVD",
        "accuracy / Bayes'",
    ]
    rows = []
    for i, run in enumerate(runs):
        model, exact = (run.evaluation[k]["overall"] for k in ("model", "exact"))
        floor = words.best_floor(run.evaluation)
        floor_kl = run.evaluation["floors"][floor]["overall"]["kl"]
        warning = "" if words.beats(model["kl"], floor_kl) else ", NOT beaten"
        quoted = paper.headline(run.config["task"], run.config["model"])
        rows.append(
            [
                Html(f'<a href="#run{i}">{escape(run.name)}</a>'),
                run.config["task"],
                run.config["model"],
                f"{run.num_parameters:,}",
                Html(f"<b>{words.pm(model['kl'])}</b>"),
                f"{words.num(floor_kl['mean'])} ({floor}{warning})",
                words.pm(model["entropy_mae"]),
                words.num(model["entropy_mae_of_mean"]["mean"]),
                quoted,
                words.num(model["tvd"]["mean"]),
                f"{words.percent(model['accuracy']['mean'])} / "
                f"{words.percent(exact['accuracy']['mean'])}",
            ]
        )
    text = (
        "KL: bits lost against exact Bayes. Entropy error: of each sequence and step, then the "
        "mean; “of means” averages over sequences first, as the paper does for bijections, and can "
        "only be smaller. The paper's numbers are entropy errors (recall: accuracy), quoted "
        "second-hand, from other sizes and budgets."
    )
    return table(head, rows) + f'<p class="note">{text}</p>'


def overlays(runs: Sequence[Run]) -> list[Card]:
    """All runs in one picture, and those of the same task step by step."""
    if len(runs) < 2:
        return []
    cards = []
    rows = [(r.name, *_kl(r), i % charts.NUM_COLORS) for i, r in enumerate(runs)]
    cards.append(
        Card(
            "compare",
            "All runs",
            charts.dots(rows, "KL of all runs", "KL to exact posterior / bits"),
            "Comparable only within a task: tasks differ in how many bits there are to lose.",
        )
    )
    groups: dict[str, list[tuple[int, Run]]] = {}
    for i, run in enumerate(runs):
        groups.setdefault(describe_task(run), []).append((i, run))
    for number, (task, same) in enumerate(groups.items()):
        if len(same) > 1:
            series = [_kl_series(run, i % charts.NUM_COLORS) for i, run in same]
            picture = charts.lines(
                series, task, "step in the sequence", "KL to exact posterior / bits", log_y=True
            )
            best = min((run for _, run in same), key=lambda run: _kl(run)[0])
            reading = (
                f"The same task ({task}). Over all steps {best.name} is nearest to exact Bayes: "
                f"{words.num(_kl(best)[0])} bits."
            )
            title = f"Step by step: {same[0][1].config['task']}"
            cards.append(Card(f"compare-{number}", title, picture, reading))
    return cards


def _kl(run: Run) -> tuple[float, float]:
    kl = run.evaluation["model"]["overall"]["kl"]
    return kl["mean"], kl["se"] or 0.0


def _kl_series(run: Run, color: int) -> Series:
    kl = run.evaluation["model"]["per_position"]["kl"]
    return Series(run.name, list(range(1, len(kl["mean"]) + 1)), kl["mean"], kl["se"], color)


def describe_task(run: Run) -> str:
    return f"{run.config['task']}: {describe(run.config['task_options'])}"


def describe(options: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in options.items())
