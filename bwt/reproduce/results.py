"""What the runs of a reproduction say, gathered for results.json."""

from pathlib import Path
from typing import Any

import torch

from bwt import models, tasks
from bwt.records import results
from bwt.records.estimates import Estimate
from bwt.records.evaluation import Evaluation, Evaluations
from bwt.records.geometry import Geometry
from bwt.report import diagnostics
from bwt.runs.directory import RunDirectory
from bwt.runs.files import read_former, read_object, read_record


def cell(planned, chosen: bool) -> results.Cell:
    """From the files of its run."""
    cell, path = planned.cell, planned.cell.path
    diverged = cell.divergence() is not None
    finished = (path / "evaluation.json").exists() and not diverged
    evaluations = (
        read_record(path / "evaluation.json", Evaluations) if finished else Evaluations(None)
    )
    own = evaluations.own
    return results.Cell(
        name=cell.name,
        task=planned.task,
        row=planned.row,
        seed=planned.seed,
        rate=float(planned.rate),
        chosen=chosen and finished,
        status="finished" if finished else "diverged" if diverged else "failed",
        command=cell.command,
        config=cell.config.to_json(),
        parameters=parameters(cell.config),
        environment=_environment(path) if finished else {},
        seconds=_seconds(path) if finished else None,
        metrics=_metrics(own) if own else {},
        exact_entropy=own.exact.overall["entropy"].mean if own else None,
        floors=_floors(own) if own else {},
        lengths={length: _metrics(x) for length, x in evaluations.lengths.items()},
        geometry=_numbers(path),
    )


def _metrics(evaluation: Evaluation) -> dict[str, Estimate]:
    return {name: evaluation.model.overall[name] for name in results.METRICS}


def _floors(evaluation: Evaluation) -> dict[str, results.Floor]:
    return {
        name: results.Floor(score.overall["kl"].mean, score.overall["entropy_mae"].mean)
        for name, score in evaluation.floors.items()
    }


def _numbers(path: Path) -> dict[str, float]:
    """Of the diagnostics, if there are any."""
    geometry = read_former(path / "geometry.json", Geometry)
    return {} if geometry is None else diagnostics.numbers(geometry)


def _environment(path: Path) -> dict[str, Any]:
    """Without the long list of backends."""
    whole = read_object(path / "environment.json")
    return {key: whole.get(key) for key in ("commit", "versions", "machine", "environment")}


def _seconds(path: Path) -> float | None:
    rows = RunDirectory(path).read_metrics()
    return rows[-1].seconds if rows else None


def parameters(config) -> int:
    task = tasks.get(config.task, **config.task_options)
    with torch.device("meta"):
        return models.build_for(task, config.model, **config.model_options).num_parameters
