"""metrics.jsonl: what was seen while training, one line for each step that was chosen."""

from dataclasses import dataclass
from typing import ClassVar

from bwt.records.base import Document


@dataclass(frozen=True)
class MetricsRow(Document):
    step: int
    seconds: float = 0.0  # of training, without evaluations
    sequences: int = 0  # seen so far
    loss: float | None = None  # bits, mean since the line before
    excess: float | None = None  # bits of the loss above the entropy of the exact posteriors
    excess_se: float | None = None  # standard error of that entropy; 0 where it is exact
    evaluation: dict[str, float] | None = None  # means of the model's metrics

    SCHEMA: ClassVar[int] = 1

    def metric(self, name: str) -> float | None:
        """None where it was not evaluated."""
        return None if self.evaluation is None else self.evaluation.get(name)
