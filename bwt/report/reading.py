"""The files of a run, as the report needs them. Nothing is computed from a model here."""

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bwt.records.metrics import Progress
from bwt.runs.directory import RunDirectory
from bwt.runs.files import RunError, read_object


@dataclass(frozen=True)
class Run:
    name: str
    path: Path
    config: dict[str, Any]
    evaluation: dict[str, Any]
    metrics: list[Progress]
    geometry: dict[str, Any]  # empty if `bwt geometry` was not run
    num_parameters: int
    device: str
    diverged: str | None  # when and how, if it did

    @property
    def what(self) -> str:
        return f"{self.config['task']} · {self.config['model']}"


def read(path: str | Path) -> Run:
    """
    Raises:
        RunError: it is not a run directory, or was not trained to the end.
    """
    directory = RunDirectory.open(path)
    config = directory.read_config()
    diverged = directory.divergence_in_words() if directory.divergence else None
    if not (directory.path / "evaluation.json").exists():
        if diverged:
            raise RunError(f"{path} {diverged}; there is no evaluation to report")
        raise RunError(
            f"{path} has no evaluation.json yet: finish it with bwt train --resume {path}"
        )
    evaluation = read_object(directory.path / "evaluation.json")
    if "model" not in evaluation:  # only other lengths were evaluated
        raise RunError(f"{path}: evaluate it at its own length first: bwt eval {path}")
    return Run(
        name=directory.path.resolve().name,
        path=directory.path,
        config=config,
        evaluation=evaluation,
        metrics=directory.read_metrics(),
        geometry=read_object(directory.path / "geometry.json", {}),
        num_parameters=_count_parameters(directory),
        device=_device(read_object(directory.path / "environment.json", {})),
        diverged=diverged,
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
            # A damaged length may be anything.
            header = json.loads(file.read(min(size, path.stat().st_size)))
        header.pop("__metadata__", None)
        return sum(math.prod(entry["shape"]) for entry in header.values())
    except (
        OSError,
        struct.error,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RecursionError,
    ) as error:
        raise RunError(f"{path} is corrupt or truncated: {error}") from error


def _device(environment: dict[str, Any]) -> str:
    machine = environment.get("machine")
    if not isinstance(machine, dict):
        return "unknown machine"
    if isinstance(machine.get("cuda_devices"), list) and machine["cuda_devices"]:
        return ", ".join(map(str, machine["cuda_devices"]))
    return f"{machine['cpu_count']} CPU cores" if "cpu_count" in machine else "unknown machine"
