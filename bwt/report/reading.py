"""The files of a run, as the report needs them. Nothing is computed from a model here."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from bwt.records.evaluation import Evaluation, Evaluations
from bwt.records.geometry import Geometry
from bwt.records.metrics import MetricsRow
from bwt.report.words import plural
from bwt.runs.config import TrainConfig
from bwt.runs.directory import RunDirectory
from bwt.runs.files import RunError, read_object, read_record, reason_of

FIXED = ".fixed_"  # in the names of tensors that belong to a model and are not trained


@dataclass(frozen=True)
class Run:
    name: str
    path: Path
    config: TrainConfig
    evaluation: Evaluation  # at its own length
    metrics: list[MetricsRow]
    geometry: Geometry | None  # None if neither `bwt geometry` nor `bwt ablate` was run
    num_parameters: int | None  # None without a checkpoint
    device: str
    diverged: str | None  # when and how, if it did

    @property
    def what(self) -> str:
        return f"{self.config.task} · {self.config.model}"


def read(path: str | Path) -> Run:
    """
    Raises:
        RunError: it is not a run directory, or was not trained to the end.
    """
    directory = RunDirectory.open(path)
    config = _config(directory)
    diverged = directory.divergence_in_words() if directory.divergence else None
    if not (directory.path / "evaluation.json").exists():
        if diverged:
            raise RunError(f"{path} {diverged}; there is no evaluation to report")
        raise RunError(
            f"{path} has no evaluation.json yet: finish it with bwt train --resume {path}"
        )
    evaluation = read_record(directory.path / "evaluation.json", Evaluations).own
    if evaluation is None:  # only other lengths were evaluated
        raise RunError(f"{path}: evaluate it at its own length first: bwt eval {path}")
    return Run(
        name=directory.path.resolve().name,
        path=directory.path,
        config=config,
        evaluation=evaluation,
        metrics=directory.read_metrics(),
        geometry=_geometry(directory, config),
        num_parameters=_count_parameters(directory),
        device=_device(read_object(directory.path / "environment.json", {})),
        diverged=diverged,
    )


def _geometry(directory: RunDirectory, config: TrainConfig) -> Geometry | None:
    """Unless it tells of an earlier end: the run was extended since."""
    path = directory.path / "geometry.json"
    geometry = read_record(path, Geometry) if path.exists() else None
    return None if geometry is None or geometry.step in config.extended else geometry


def _config(directory: RunDirectory) -> TrainConfig:
    try:
        return TrainConfig.from_json(directory.read_config())
    except RunError:
        raise
    except ValueError as error:
        raise RunError(f"{directory.path / 'config.json'}: {error}") from error


def _count_parameters(directory: RunDirectory) -> int | None:
    """From the shapes in the header of the last checkpoint, without what was never trained."""
    step = directory.last_step()
    if step is None:
        return None
    path = directory.weights_path(step)
    try:
        with safe_open(path, framework="numpy") as file:
            names = [name for name in file.keys() if FIXED not in name]  # noqa: SIM118
            return sum(math.prod(file.get_slice(name).get_shape()) for name in names)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path} is corrupt or truncated: {reason_of(error)}") from error


def _device(environment: dict[str, Any]) -> str:
    machine = environment.get("machine")
    if not isinstance(machine, dict):
        return "unknown machine"
    if isinstance(machine.get("cuda_devices"), list) and machine["cuda_devices"]:
        return ", ".join(map(str, machine["cuda_devices"]))
    if "torch_threads" in machine:
        return plural(machine["torch_threads"], "CPU thread")
    return f"{machine['cpu_count']} CPU cores" if "cpu_count" in machine else "unknown machine"
