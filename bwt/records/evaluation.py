"""evaluation.json: how far a model is from exact Bayes, beside predictors that lack an ability."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from bwt.records.base import Document, Record, RecordError, check_names, plain
from bwt.records.estimates import Estimate, Estimates
from bwt.records.floors import (
    ABILITIES,
    at_floor,
    beats,
    best_floor,
    lacking,
    state_of,
    untrained_floor,
)
from bwt.records.frames import to_dataframe
from bwt.records.hints import hint

if TYPE_CHECKING:
    import pandas

METRICS = ("entropy", "entropy_mae", "kl", "tvd", "excess", "leak", "accuracy")
OF_MEAN = "entropy_mae_of_mean"  # over sequences first, where errors of opposite sign cancel


@dataclass(frozen=True)
class Score(Record):
    """The metrics of one predictor."""

    overall: dict[str, Estimate]
    per_position: dict[str, Estimates]

    def __post_init__(self) -> None:
        for metrics in (self.overall, self.per_position):
            check_names(metrics, (*METRICS, OF_MEAN), "the metric")


@dataclass(frozen=True)
class EffectiveMemory(Record):
    """The k of the exact filter seeing only the last k observations whose mean KL is the model's.

    Between the filters that were run, log KL is interpolated linearly in k. A model worse than the
    filter that sees no observation has memory 0; one better than the longest filter has at least
    that memory (at_least).
    """

    observations: float
    at_least: bool


@dataclass(frozen=True)
class Evaluation(Record):
    """On sequences of one length."""

    task: str
    options: dict[str, Any]
    num_sequences: int
    seed: int
    positions: list[int]
    exact: Score  # the posterior itself: its entropy, the best possible accuracy, excess about 0
    model: Score
    floors: dict[str, Score]
    # Best entropy_mae of one who knows the position only: 0 where it determines the entropy.
    position_entropy_mae: float
    effective_memory: EffectiveMemory | None

    def __post_init__(self) -> None:
        check_names(self.floors, ("uniform", "constant"), "the floor")
        scores = {"exact": self.exact, "model": self.model, **self.floors}
        for name, score in scores.items():
            for metric, curve in score.per_position.items():
                if len(curve) != len(self.positions):
                    fault = f"has {len(curve)} positions, not {len(self.positions)}"
                    raise RecordError(fault, f"{metric} of {name}")

    def best_floor(self) -> str:
        """The name of the floor of least KL."""
        return best_floor(self._floor_kls())

    def _floor_kls(self) -> dict[str, float]:
        return {name: floor.overall["kl"].mean for name, floor in self.floors.items()}

    def floor_kl(self) -> Estimate:
        """Of the best floor."""
        return self.floors[self.best_floor()].overall["kl"]

    def beats_floor(self) -> bool:
        return beats(self.model.overall["kl"], self.floor_kl())

    def state(self) -> str:
        """Whether it is trained, and which floor it is at if not; see state_of."""
        return state_of(self.model.overall["kl"].mean, self._floor_kls())

    def entropy_proves_nothing(self) -> bool:
        """Whether the position alone gives the entropy as well as the model."""
        return self.position_entropy_mae <= self.model.overall["entropy_mae"].mean

    def to_dataframe(self, *, per_position: bool = False) -> "pandas.DataFrame":
        """The metrics of the model, of exact Bayes and of the floors: a row for each predictor, or
        for each predictor and position, with a column for each metric and its standard error.

        Raises:
            ImportError: pandas is not installed.
        """
        scores = {"model": self.model, "exact": self.exact} | self.floors
        if not per_position:
            return to_dataframe({"predictor": k, **score.overall} for k, score in scores.items())
        return to_dataframe(
            {"predictor": name, "step": step + 1, "position": position}
            | {metric: curve[step] for metric, curve in score.per_position.items()}
            for name, score in scores.items()
            for step, position in enumerate(self.positions)
        )

    def table(self) -> str:
        """Two aligned tables: by position, and over all positions with the floors."""
        return f"{self._position_table()}\n\n{self._predictor_table()}"

    def _position_table(self) -> str:
        floor = self.best_floor()
        model, exact = self.model.per_position, self.exact.per_position
        columns = {
            "step": [str(step + 1) for step in range(len(self.positions))],
            "exact entropy": [f"{x:.4f}" for x in exact["entropy"].mean],
            "model entropy": [f"{x:.4f}" for x in model["entropy"].mean],
            "entropy_mae": list(map(_number, model["entropy_mae"])),
            "kl": list(map(_number, model["kl"])),
            # Adding 0 turns a rounded -0 into 0.
            f"kl of {floor}": [
                f"{round(x, 4) + 0.0:.4f}" for x in self.floors[floor].per_position["kl"].mean
            ],
        }
        return _aligned(columns)

    def _predictor_table(self) -> str:
        scores = {"model": self.model, "exact": self.exact} | self.floors
        columns = {"": list(scores)}
        for metric in self.model.overall:
            columns[metric] = [_number(score.overall[metric]) for score in scores.values()]
        return _aligned(columns)

    def verdict(self, config: Mapping[str, Any] | None = None) -> str:
        """Plain words: how far from Bayes, and how much better than the best floor.

        Args:
            config: of the run, to say what to try if the model is at a floor. None at other lengths
                than that of training, where the reason is another one.
        """
        model, name, floor = self.model.overall, self.best_floor(), self.floor_kl()
        kl = model["kl"]
        lines = [
            f"{kl.mean:.3g} ± {kl.error:.1g} bits from exact Bayes (KL); "
            f"entropy off by {model['entropy_mae'].mean:.3g} bits."
        ]
        if self.beats_floor():
            ratio = floor.mean / max(kl.mean, 1e-12)
            lines.append(
                f"{ratio:.3g} times better than the best floor, {name} ({floor.mean:.3g})."
            )
        else:
            lines.append(f"NOT better than the floor {name} ({floor.mean:.3g} bits).")
        if config is not None:
            lines += filter(None, [self.advice(config)])
        if self.entropy_proves_nothing():
            lines.append(
                f"The position alone gives an entropy error of {self.position_entropy_mae:.4f}: "
                "judge by the KL."
            )
        if self.effective_memory is not None:
            lines.append(_memory_in_words(self.effective_memory))
        accuracy, best = (x.overall["accuracy"].mean for x in (self.model, self.exact))
        lines.append(f"Its best guess is right in {accuracy:.2%} of cases; Bayes' in {best:.2%}.")
        return "\n".join(lines)

    def advice(self, config: Mapping[str, Any]) -> str:
        """To one whose model is at a floor: what that means, and what to try. "" for any other.

        Args:
            config: of the run.
        """
        kl, floors = self.model.overall["kl"].mean, self._floor_kls()
        advice = f"Try {hint(config)}."
        if at_floor(kl, floors):
            floor = untrained_floor(floors)
            return (
                f"The model is not trained: it does not clearly beat {floor} "
                f"({floors[floor]:.3g} bits), which "
                f"{ABILITIES.get(floor, 'is blind to what is observed')}. {advice}"
            )
        same = lacking(kl, floors)
        if same is None:
            return ""
        return f"As good as {same} ({floors[same]:.3g} bits), which {ABILITIES[same]}. {advice}"


@dataclass(frozen=True)
class Evaluations(Document):
    """The file: the evaluation at the run's own length, with those at others under "lengths"."""

    own: Evaluation | None  # None if only other lengths were evaluated
    lengths: dict[str, Evaluation] = field(default_factory=dict)

    SCHEMA: ClassVar[int] = 1
    REMEDY: ClassVar[str] = "run bwt eval {run} again"

    def to_json(self) -> dict[str, Any]:
        own = {} if self.own is None else self.own.to_json()
        lengths = {"lengths": plain(self.lengths)} if self.lengths else {}
        return {"schema": self.SCHEMA, **own, **lengths}

    @classmethod
    def from_json(cls, value: Any) -> "Evaluations":
        if not isinstance(value, dict):
            return super().from_json(value)  # which refuses it
        fields = dict(value)
        parts = {name: fields.pop(name) for name in ("schema", "lengths") if name in fields}
        others = super().from_json({**parts, "own": None})
        return cls(Evaluation.from_json(fields), others.lengths) if fields else others


def _memory_in_words(memory: EffectiveMemory) -> str:
    if memory.at_least:
        return (
            f"Effective memory: at least {memory.observations:.0f} observations "
            "(better than the exact filter that sees only so many)."
        )
    caveat = "" if memory.observations > 1 else " No use of earlier observations shows."
    return (
        f"Effective memory: {memory.observations:.1f} observations "
        f"(as good as an exact filter that sees only so many).{caveat}"
    )


def _number(x: Estimate) -> str:
    """With its standard error if it has one; rounding errors are shown as zero."""
    mean = 0.0 if abs(x.mean) < 1e-9 else x.mean
    digits = f"{mean:.2e}" if 0 < abs(mean) < 1e-3 else f"{mean:.4f}"
    return f"{digits} ±{x.se:.0e}" if x.error > 1e-12 else digits


def _aligned(columns: dict[str, list[str]]) -> str:
    widths = [max(map(len, (head, *cells))) for head, cells in columns.items()]
    rows = [list(columns), *zip(*columns.values(), strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
