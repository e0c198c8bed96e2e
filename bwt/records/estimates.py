"""Numbers with their standard errors."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from bwt.records.base import Record, check_lengths


@dataclass(frozen=True)
class Estimate(Record):
    """A mean over sequences."""

    mean: float
    se: float | None  # None if there are too few sequences to tell

    @property
    def error(self) -> float:
        """The standard error for a format, which does not take None."""
        return math.nan if self.se is None else self.se


def mean_of(x: Estimate | None) -> float | None:
    return None if x is None else x.mean


@dataclass(frozen=True)
class Estimates(Record):
    """One for each position, or for each head."""

    mean: list[float]
    se: list[float | None]

    def __post_init__(self) -> None:
        check_lengths(self, "mean", "se")

    def __len__(self) -> int:
        return len(self.mean)

    def __iter__(self) -> Iterator[Estimate]:
        return map(Estimate, self.mean, self.se)

    def __getitem__(self, index: int) -> Estimate:
        return Estimate(self.mean[index], self.se[index])
