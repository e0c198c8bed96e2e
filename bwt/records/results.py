"""results.json: what every cell of a reproduction was, how it was made and what came out."""

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, ClassVar

from bwt.records.base import Document, Record, RecordError, check_lengths, check_names
from bwt.records.curves import FALL, slope
from bwt.records.estimates import Estimate
from bwt.records.floors import at_floor, state_of

METRICS = ("entropy_mae", "entropy_mae_of_mean", "kl", "tvd", "excess", "leak", "accuracy")


@dataclass(frozen=True)
class Floor(Record):
    kl: float
    entropy_mae: float


@dataclass(frozen=True)
class Curve(Record):
    """Of the evaluations while training."""

    steps: list[int]
    kl: list[float]  # bits

    def __post_init__(self) -> None:
        check_lengths(self, "steps", "kl")


@dataclass(frozen=True)
class Cell(Record):
    name: str
    study: str
    setting: str  # the wind tunnel, as tables name it
    task: str
    row: str  # what varies within the setting
    x: float | None  # its place on the axis of a figure
    seed: int
    rate: float  # factor on the preset's learning rates
    trial: bool  # of a learning rate, on a part of the budget
    chosen: bool  # whether it counts: of the best rate, and no mere trial
    status: str  # finished, diverged, failed, or not finished
    command: str
    config: dict[str, Any]
    parameters: int
    environment: dict[str, Any]
    seconds: float | None  # of training
    curve: Curve
    metrics: dict[str, Estimate]
    exact_entropy: float | None
    floors: dict[str, Floor]
    lengths: dict[str, dict[str, Estimate]]  # length -> metrics
    geometry: dict[str, float]
    layers: dict[str, list[float | None]] = field(default_factory=dict)  # name -> of each layer

    def __post_init__(self) -> None:
        if not self.finished:
            return
        if not self.curve.steps:
            raise RecordError("has no learning curve")
        for metrics in (self.metrics, *self.lengths.values()):
            check_names(metrics, METRICS, "the metric")
        if not {"versions", "machine"} <= set(self.environment):
            raise RecordError("does not say where it was run")

    @property
    def finished(self) -> bool:
        return self.status == "finished"

    @property
    def steps(self) -> int:
        """That were trained, which may be fewer than the configuration allows."""
        return self.curve.steps[-1]

    def slope(self) -> Estimate | None:
        """Of the learning curve at its end: see bwt.records.curves. In a run until a plateau the
        end is where the rate begins to fall."""
        until_steps = self.config.get("until", "steps") == "steps"
        end = self.steps if until_steps else self.steps / (1 + FALL) + 1
        held = [step <= end for step in self.curve.steps]
        return slope(
            list(itertools.compress(self.curve.steps, held)),
            list(itertools.compress(self.curve.kl, held)),
        )

    def at_floor(self) -> bool:
        """Whether it has learned nothing to speak of."""
        return at_floor(self.metrics["kl"].mean, self.floor_kl())

    def state(self) -> str:
        """Whether it is trained, and which floor it is at if not; see state_of."""
        return state_of(self.metrics["kl"].mean, self.floor_kl())

    def floor_kl(self) -> dict[str, float]:
        return {name: floor.kl for name, floor in self.floors.items()}


@dataclass(frozen=True)
class StudyText(Record):
    """What a study asks, for its table."""

    name: str
    title: str
    question: str
    axis: str  # what x is, "" if its figure has none
    tuned: bool  # whether learning rates were tried


@dataclass(frozen=True)
class Results(Document):
    scale: str
    command: str
    commit: str | None
    date: str
    seeds: int
    rates: list[float]
    trial: float  # share of the steps in which a rate is tried
    studies: list[StudyText]
    faults: dict[str, str]  # name of a cell or a command on it -> why it failed
    cells: list[Cell]

    SCHEMA: ClassVar[int] = 2
    REMEDY: ClassVar[str] = "run bwt reproduce again"

    def __post_init__(self) -> None:
        for name, count in Counter(cell.name for cell in self.cells).items():
            if count > 1:
                raise RecordError(f"has {count} cells {name!r}")
