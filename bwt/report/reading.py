"""The files of a run, as the report needs them. Nothing is computed from a model here."""

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bwt.rundir import RunDirectory, RunError, read_json


@dataclass(frozen=True)
class Run:
    name: str
    path: Path
    config: dict[str, Any]
    evaluation: dict[str, Any]
    metrics: list[dict[str, Any]]
    geometry: dict[str, Any]  # empty if `bwt geometry` was not run
    num_parameters: int
    device: str

    @property
    def what(self) -> str:
        return f"{self.config['task']} · {self.config['model']}"


def read(path: str | Path) -> Run:
    """
    Raises:
        RunError: it is no run directory, or was not trained to the end.
    """
    directory = RunDirectory.open(path)
    config = directory.read_config()
    if not (directory.path / "evaluation.json").exists():
        raise RunError(
            f"{path} has no evaluation.json yet: finish it with bwt train --resume {path}"
        )
    evaluation = read_json(directory.path / "evaluation.json")
    if "model" not in evaluation:  # only other lengths were evaluated
        raise RunError(f"{path}: evaluate it at its own length first: bwt eval {path}")
    geometry = directory.path / "geometry.json"
    environment = directory.path / "environment.json"
    return Run(
        name=directory.path.resolve().name,
        path=directory.path,
        config=config,
        evaluation=evaluation,
        metrics=directory.read_metrics(),
        geometry=read_json(geometry) if geometry.exists() else {},
        num_parameters=_count_parameters(directory),
        device=_device(read_json(environment) if environment.exists() else {}),
    )


def _count_parameters(directory: RunDirectory) -> int:
    """From the header of the last checkpoint: 8 bytes of length, then JSON."""
    steps = directory.steps()
    if not steps:
        return 0
    path = directory.weights_path(steps[-1])
    try:
        with open(path, "rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(size))
    except (struct.error, ValueError) as error:
        raise RunError(f"{path} is corrupt or truncated: {error}") from error
    header.pop("__metadata__", None)
    return sum(math.prod(entry["shape"]) for entry in header.values())


def _device(environment: dict[str, Any]) -> str:
    machine = environment.get("machine", {})
    if machine.get("cuda_devices"):
        return ", ".join(map(str, machine["cuda_devices"]))
    return f"{machine['cpu_count']} CPU cores" if "cpu_count" in machine else "unknown machine"
