"""What the runs of a reproduction say, gathered for results.json."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from bwt import models, tasks
from bwt.records import results
from bwt.records.estimates import Estimate
from bwt.records.evaluation import Evaluation, Evaluations
from bwt.records.geometry import Geometry
from bwt.records.metrics import MetricsRow
from bwt.report import diagnostics
from bwt.reproduce.plan import Planned
from bwt.runs.config import TrainConfig
from bwt.runs.directory import RunDirectory
from bwt.runs.files import read_former, read_object, read_record, write_text


def cell(planned: Planned) -> results.Cell:
    """From the files of its run."""
    cell, path = planned.cell, planned.cell.path
    diverged = cell.divergence() is not None
    finished = (path / "evaluation.json").exists() and not diverged
    evaluations = (
        read_record(path / "evaluation.json", Evaluations) if finished else Evaluations(None)
    )
    own = evaluations.own
    rows = RunDirectory(path).read_metrics()
    geometry = read_former(path / "geometry.json", Geometry)
    return results.Cell(
        name=cell.name,
        study=planned.study.name,
        setting=planned.variant.setting,
        task=planned.variant.task,
        row=planned.variant.row,
        x=planned.variant.x,
        seed=planned.seed,
        rate=float(planned.rate),
        trial=planned.trial,
        chosen=finished,
        status="finished" if finished else "diverged" if diverged else "not finished",
        command=cell.command,
        config=cell.config.to_json(),
        parameters=parameters(cell.config),
        environment=_environment(path) if finished else {},
        seconds=rows[-1].seconds if rows and finished else None,
        curve=_curve(rows),
        metrics=_metrics(own) if own else {},
        exact_entropy=own.exact.overall["entropy"].mean if own else None,
        floors=_floors(own) if own else {},
        lengths={length: _metrics(x) for length, x in evaluations.lengths.items()},
        geometry={} if geometry is None else diagnostics.numbers(geometry),
        layers={} if geometry is None else diagnostics.by_layer(geometry),
    )


def _curve(rows: list[MetricsRow]) -> results.Curve:
    evaluated = [(row.step, row.evaluation["kl"]) for row in rows if row.evaluation]
    return results.Curve([step for step, _ in evaluated], [kl for _, kl in evaluated])


def _metrics(evaluation: Evaluation) -> dict[str, Estimate]:
    return {name: evaluation.model.overall[name] for name in results.METRICS}


def _floors(evaluation: Evaluation) -> dict[str, results.Floor]:
    return {
        name: results.Floor(score.overall["kl"].mean, score.overall["entropy_mae"].mean)
        for name, score in evaluation.floors.items()
    }


def _environment(path: Path) -> dict[str, Any]:
    """Without the long list of backends."""
    whole = read_object(path / "environment.json")
    return {key: whole.get(key) for key in ("commit", "versions", "machine", "environment")}


def parameters(config: TrainConfig) -> int:
    task = tasks.get(config.task, **config.task_options)
    with torch.device("meta"):
        return models.build_for(task, config.model, **config.model_options).num_parameters


# What of geometry.json is only there to be drawn.
LONG = 100  # numbers in a row
BULK = {"examples", "maps", "example", "points", "plane", "outcome", "cluster", "mass_by_step"}


def keep_geometry(out: Path, finished: Iterable[Planned]) -> None:
    """geometry.json of each run that has one, without its bulk, in the folder geometry of `out`."""
    for x in finished:
        path = x.cell.path / "geometry.json"
        if path.exists():
            slim = without_bulk(read_object(path))
            write_text(out / "geometry" / f"{x.cell.name}.json", json.dumps(slim) + "\n")


def _is_bulk(key: str, value: Any) -> bool:
    many = isinstance(value, list) and len(value) > LONG
    return key in BULK or (many and not any(isinstance(x, dict) for x in value))


def without_bulk(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_bulk(x) for key, x in value.items() if not _is_bulk(key, x)}
    if isinstance(value, list):
        return [without_bulk(item) for item in value]
    return value
