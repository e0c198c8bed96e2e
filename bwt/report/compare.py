"""Several runs side by side."""

from collections.abc import Sequence
from html import escape
from typing import Any

from bwt import paper
from bwt.records.estimates import Estimate
from bwt.report import charts, words
from bwt.report.cards import Card, Html, table
from bwt.report.charts import Series
from bwt.report.reading import Run
from bwt.runs.config import TrainConfig

GREY = 2  # the colour of what is there to compare with
COLORS = [color for color in range(charts.NUM_COLORS) if color != GREY]


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
        evaluation, config = run.evaluation, run.config
        model, exact = evaluation.model.overall, evaluation.exact.overall
        warning = "" if evaluation.beats_floor() else ", NOT beaten"
        rows.append(
            [
                Html(f'<a href="#run{i}">{escape(run.name)}</a>'),
                config.task,
                config.model,
                "–" if run.num_parameters is None else f"{run.num_parameters:,}",
                Html(f"<b>{words.pm(model['kl'])}</b>"),
                f"{words.num(evaluation.floor_kl().mean)} ({evaluation.best_floor()}{warning})",
                words.pm(model["entropy_mae"]),
                words.num(model["entropy_mae_of_mean"].mean),
                _papers(config),
                words.num(model["tvd"].mean),
                f"{words.percent(model['accuracy'].mean)} / "
                f"{words.percent(exact['accuracy'].mean)}",
            ]
        )
    text = (
        "KL: bits lost against exact Bayes. Entropy error: of each sequence and step, then the "
        "mean; “of means” averages over sequences first, as the paper does for bijections, and can "
        "only be smaller. The paper's numbers are entropy errors (recall: accuracy), quoted "
        "second-hand, from other sizes and budgets."
    )
    return table(head, rows, stacks=True) + f'<p class="note">{text}</p>'


def overlays(runs: Sequence[Run]) -> list[Card]:
    """All runs in one picture, and those of the same task step by step."""
    if len(runs) < 2:
        return []
    cards = []
    rows = [(r.name, _kl(r), _color(i)) for i, r in enumerate(runs)]
    rows += [(name, kl, GREY) for name, kl in _best_floors(runs).items()]
    cards.append(
        Card(
            "compare",
            "All runs",
            charts.dots(
                rows, "KL of all runs", "KL to exact posterior / bits", width=640.0, above=True
            ),
            "Below the runs, the best predictor that lacks an ability, for each task. Comparable "
            "only within a task: tasks differ in how many bits there are to lose.",
            wide=True,
        )
    )
    groups: dict[str, list[tuple[int, Run]]] = {}
    for i, run in enumerate(runs):
        groups.setdefault(describe_task(run), []).append((i, run))
    for number, (task, same) in enumerate(groups.items()):
        if len(same) > 1:
            series = [_kl_series(run, _color(i)) for i, run in same]
            picture = charts.lines(
                series, task, "step in the sequence", "KL to exact posterior / bits", log_y=True
            )
            best = min((run for _, run in same), key=lambda run: _kl(run).mean)
            reading = (
                f"The same task ({task}). Over all steps {best.name} is nearest to exact Bayes: "
                f"{words.num(_kl(best).mean)} bits."
            )
            title = f"Step by step: {same[0][1].config.task}"
            cards.append(Card(f"compare-{number}", title, picture, reading))
    return cards


def _color(index: int) -> int:
    """Of a run."""
    return COLORS[index % len(COLORS)]


def _best_floors(runs: Sequence[Run]) -> dict[str, Estimate]:
    """For each task; those of tasks of one name are told apart by a number."""
    floors: dict[str, Estimate] = {}
    for run in {describe_task(run): run for run in runs}.values():
        name = f"best floor of {run.config.task}, {run.evaluation.best_floor()}"
        number = 1 + sum(other.startswith(name) for other in floors)
        floors[name if number == 1 else f"{name} ({number})"] = run.evaluation.floor_kl()
    return floors


def _papers(config: TrainConfig) -> str:
    """The paper's entropy error in bits, or its accuracy for recall, and whether it is of the same
    generator."""
    figures = paper.HEADLINE.get((config.task, config.model))
    if figures is None:
        return "–"
    if config.task == "recall":
        text = words.percent(figures[0].value)
    else:
        versions = ("",) if len(figures) == 1 else (" (v1)", " (v3)")
        pairs = zip(figures, versions, strict=True)
        text = ", ".join(f"{x.value:g}{version}" for x, version in pairs) + " bits"
    theirs = paper.GENERATORS[config.task]
    same = all(config.task_options.get(name) == value for name, value in theirs.items())
    return text if same else f"{text}, of another generator"


def _kl(run: Run) -> Estimate:
    return run.evaluation.model.overall["kl"]


def _kl_series(run: Run, color: int) -> Series:
    kl = run.evaluation.model.per_position["kl"]
    return Series(run.name, list(range(1, len(kl) + 1)), kl.mean, kl.se, color)


def describe_task(run: Run) -> str:
    return f"{run.config.task}: {describe(run.config.task_options)}"


def describe(options: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in options.items())
