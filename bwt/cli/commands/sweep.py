"""`bwt sweep`"""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bwt import models, tasks
from bwt.cli.workers import Live, add_workers, say_unless, workers
from bwt.options import kind_of
from bwt.records.base import plain
from bwt.runs.config import TrainConfig
from bwt.runs.presets import PRESETS
from bwt.sweep.cells import Cell, grid, make_cell
from bwt.sweep.sweep import Outcome, Sweep, table

METRICS = ("entropy_mae", "kl", "tvd", "accuracy")


def add_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    parser.usage = "bwt sweep TASK... --out DIR [--model NAME...] [--any-option VALUE...]"
    parser.epilog = (
        "Every option of `bwt train` takes one value or several; the grid is all combinations. "
        "An option of one task or model leaves the others as they are."
    )
    add = parser.add_argument
    add("task", metavar="TASK", nargs="+", choices=tasks.TASKS, help=f"{', '.join(tasks.TASKS)}")
    add("--model", nargs="+", choices=models.MODELS, default=["transformer"])
    add("--preset", choices=PRESETS, default="quick", help="see bwt train (default: quick)")
    add("--out", metavar="DIR", required=True, help="a run directory for each cell goes here")
    add_workers(parser)
    group = parser.add_argument_group("the grid")
    fields = {f.name: f for cls in _classes() for f in dataclasses.fields(cls)}
    for name, field in fields.items():
        if "help" in field.metadata and name != "threads":
            text = field.metadata["help"].replace("%", "%%")
            flag = f"--{name.replace('_', '-')}"
            kind = kind_of(field)
            group.add_argument(
                flag,
                nargs="+",
                type=_boolean if kind is bool else kind,
                default=argparse.SUPPRESS,
                metavar="VALUE",
                help=text,
            )


def _classes() -> list[type]:
    return [TrainConfig, *tasks.TASKS.values(), *map(models.options_class, models.MODELS)]


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text == "true"


def run(arguments: argparse.Namespace) -> int:
    fixed = {"task", "model", "preset", "out", "jobs", "threads", "ray", "json", "run"}
    fields = {k: v for k, v in vars(arguments).items() if k not in fixed}
    out = Path(arguments.out).resolve()
    choices = {"task": arguments.task, "model": arguments.model, **fields}
    built = (make_cell(out, arguments.preset, **point) for point in grid(choices))
    cells = list({x.name: x for x in built}.values())
    _refuse_unused(fields, cells)
    say = say_unless(arguments.json)
    sweep = Sweep(
        out,
        cells,
        workers(arguments),
        show=Live(arguments.json),
        say=say,
    )
    most = max(x.config.steps for x in cells)
    say(f"preset {arguments.preset}: {len(cells)} cells of up to {most:,} steps")
    outcomes = sweep.run()
    if arguments.json:
        print(json.dumps([_row(x) for x in outcomes]))
    else:
        print("\n" + table(outcomes, METRICS))
        if sweep.stopping:
            print("interrupted; the same command continues it")
    return exit_code(sweep)


def exit_code(sweep: Sweep) -> int:
    if sweep.stopping:
        return 130
    return 1 if any(x.status == "failed" for x in sweep.outcomes) else 0


def _refuse_unused(fields: dict[str, Sequence[Any]], cells: Sequence[Cell]) -> None:
    used = {word for x in cells for word in x.words}
    for name in fields:
        flag = name.replace("_", "-")
        if not {f"--{flag}", f"--no-{flag}"} & used:
            raise ValueError(f"sweep: no task or model of this grid has the option --{flag}")


def _row(outcome: Outcome) -> dict[str, Any]:
    cell, finished = outcome.cell, outcome.status == "finished"
    assert isinstance(cell, Cell)  # a sweep of this command has no others
    return {
        "name": cell.name,
        "run": str(cell.path),
        "command": cell.command,
        "status": outcome.status,
        "error": outcome.error,
        "metrics": plain(outcome.scores()) if finished else None,
    }
