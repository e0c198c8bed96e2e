"""results.json: what every cell was, how it was made and what came out. One schema, checked when
it is written and by the tests."""

import math
import time
from pathlib import Path
from typing import Any

import torch

from bwt import models, tasks
from bwt.reproduce import geometry
from bwt.runs import environment
from bwt.runs.directory import RunDirectory
from bwt.runs.files import read_json

SCHEMA = 1
METRICS = ("entropy_mae", "entropy_mae_of_mean", "kl", "tvd", "excess", "leak", "accuracy")
Number = (int, float, type(None))  # null: not a finite number

DOCUMENT: dict[str, Any] = {
    "schema": int,
    "scale": str,
    "command": str,
    "commit": (str, type(None)),
    "date": str,
    "seeds": int,
    "rates": list,
    "faults": dict,  # name of a cell or a command on it -> why it failed
    "cells": list,
}
CELL: dict[str, Any] = {
    "name": str,
    "task": str,
    "row": str,  # of the tables
    "seed": int,
    "rate": float,  # factor on the preset's learning rates
    "chosen": bool,  # whether that is the row's best rate
    "status": str,  # finished, diverged, or failed
    "command": str,
    "config": dict,
    "parameters": int,
    "environment": dict,
    "seconds": Number,  # of training
    "metrics": dict,  # name -> {mean, se}
    "exact_entropy": Number,
    "floors": dict,  # name -> {kl, entropy_mae}
    "lengths": dict,  # length -> metrics
    "geometry": dict,
}


def header(scale: str, command: str) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "scale": scale,
        "command": command,
        "commit": environment.commit(),
        "date": time.strftime("%Y-%m-%d"),
    }


def cell(planned, chosen: bool) -> dict[str, Any]:
    """From the files of its run."""
    cell, path = planned.cell, planned.cell.path
    diverged = cell.divergence() is not None
    finished = (path / "evaluation.json").exists() and not diverged
    evaluation = read_json(path / "evaluation.json") if finished else {}
    return {
        "name": cell.name,
        "task": planned.task,
        "row": planned.row,
        "seed": planned.seed,
        "rate": float(planned.rate),
        "chosen": chosen and finished,
        "status": "finished" if finished else "diverged" if diverged else "failed",
        "command": cell.command,
        "config": cell.config.to_json(),
        "parameters": parameters(cell.config),
        "environment": _environment(path) if finished else {},
        "seconds": _seconds(path) if finished else None,
        "metrics": _metrics(evaluation) if finished else {},
        "exact_entropy": evaluation["exact"]["overall"]["entropy"]["mean"] if finished else None,
        "floors": {
            name: {m: score["overall"][m]["mean"] for m in ("kl", "entropy_mae")}
            for name, score in evaluation.get("floors", {}).items()
        },
        "lengths": {k: _metrics(v) for k, v in evaluation.get("lengths", {}).items()},
        "geometry": geometry.summary(path),
    }


def _metrics(evaluation: dict[str, Any]) -> dict[str, Any]:
    return {name: evaluation["model"]["overall"][name] for name in METRICS}


def _environment(path: Path) -> dict[str, Any]:
    """Without the long list of backends."""
    found = read_json(path / "environment.json")
    return {key: found.get(key) for key in ("commit", "versions", "machine", "environment")}


def _seconds(path: Path) -> float | None:
    rows = RunDirectory(path).read_metrics()
    return rows[-1].seconds if rows else None


def parameters(config) -> int:
    task = tasks.get(config.task, **config.task_options)
    with torch.device("meta"):
        return models.build_for(task, config.model, **config.model_options).num_parameters


def check(document: Any) -> None:
    """
    Raises:
        ValueError: the document does not fit the schema; the message names the first fault.
    """
    _fields(document, DOCUMENT, "results.json")
    if document["schema"] != SCHEMA:
        raise ValueError(f"results.json has schema {document['schema']}, this bwt has {SCHEMA}")
    names = set()
    for cell in document["cells"]:
        where = f"cell {cell.get('name')!r}" if isinstance(cell, dict) else "a cell"
        _fields(cell, CELL, where)
        if cell["name"] in names:
            raise ValueError(f"results.json has two of {where}")
        names.add(cell["name"])
        if cell["status"] == "finished":
            _check_finished(cell, where)


def _check_finished(cell: dict[str, Any], where: str) -> None:
    for metrics in (cell["metrics"], *cell["lengths"].values()):
        if set(metrics) != set(METRICS):
            raise ValueError(f"{where} lacks metrics: it has {', '.join(metrics)}")
        for name, estimate in metrics.items():
            _fields(estimate, {"mean": Number, "se": Number}, f"{where}, {name}")
    if not cell["environment"]:
        raise ValueError(f"{where} does not say where it was run")


def _fields(value: Any, wanted: dict[str, Any], where: str) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is not an object")
    if set(value) != set(wanted):
        odd = sorted(set(value) ^ set(wanted))
        raise ValueError(f"{where}: missing or unknown: {', '.join(odd)}")
    for name, kind in wanted.items():
        found = value[name]
        if not isinstance(found, kind) or (isinstance(found, float) and not math.isfinite(found)):
            raise ValueError(f"{where}: {name} is {found!r}")
