"""results.json: what every cell of a reproduction was, how it was made and what came out."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

from bwt.records.base import Document, Record, RecordError, check_names
from bwt.records.estimates import Estimate
from bwt.records.floors import at_floor

METRICS = ("entropy_mae", "entropy_mae_of_mean", "kl", "tvd", "excess", "leak", "accuracy")


@dataclass(frozen=True)
class Floor(Record):
    kl: float
    entropy_mae: float


@dataclass(frozen=True)
class Cell(Record):
    name: str
    task: str
    row: str  # of the tables
    seed: int
    rate: float  # factor on the preset's learning rates
    chosen: bool  # whether that is the row's best rate
    status: str  # finished, diverged, or failed
    command: str
    config: dict[str, Any]
    parameters: int
    environment: dict[str, Any]
    seconds: float | None  # of training
    metrics: dict[str, Estimate]
    exact_entropy: float | None
    floors: dict[str, Floor]
    lengths: dict[str, dict[str, Estimate]]  # length -> metrics
    geometry: dict[str, float]

    def __post_init__(self) -> None:
        if not self.finished:
            return
        for metrics in (self.metrics, *self.lengths.values()):
            check_names(metrics, METRICS, "the metric")
        if not {"versions", "machine"} <= set(self.environment):
            raise RecordError("does not say where it was run")

    @property
    def finished(self) -> bool:
        return self.status == "finished"

    def at_floor(self) -> bool:
        """Whether it has learned nothing to speak of."""
        return at_floor(
            self.metrics["kl"].mean, {name: floor.kl for name, floor in self.floors.items()}
        )


@dataclass(frozen=True)
class Results(Document):
    scale: str
    command: str
    commit: str | None
    date: str
    seeds: int
    rates: list[float]
    faults: dict[str, str]  # name of a cell or a command on it -> why it failed
    cells: list[Cell]

    SCHEMA: ClassVar[int] = 1
    REMEDY: ClassVar[str] = "run bwt reproduce again"

    def __post_init__(self) -> None:
        for name, count in Counter(cell.name for cell in self.cells).items():
            if count > 1:
                raise RecordError(f"has {count} cells {name!r}")
