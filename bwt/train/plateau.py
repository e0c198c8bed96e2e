"""The end of a run that is trained until it no longer improves.

The learning rate is held, because a schedule would need to know the end. The KL is measured at
steps a factor of sqrt(2) apart; the plateau is reached when a line through those of the last two
doublings falls by less than a tenth with a doubling, twice in a row. (Two single values a doubling
apart tremble too much: of runs whose KL falls by 29% with each doubling and trembles by 15%, one in
four would end early; by the line it is one in a hundred.) A model at a floor has not begun to learn
and goes on: it may be about to; one that is still in its curriculum is not judged. Then the rate
falls to 0 over a quarter as many steps again, which is part of the budget.

Where the answer is a certainty, as in recall, the KL falls for ever. A run until it has solved its
task also ends at a hundredth of the KL of a model that has learned nothing, from where the fall of
the rate brings it on.
"""

import math
from dataclasses import dataclass, field

from bwt.records.curves import FALL, OCTAVES, per_doubling, slope
from bwt.records.evaluation import Evaluation
from bwt.records.floors import at_floor, untrained_floor
from bwt.runs.config import TrainConfig

IMPROVED = 0.1  # of the KL, with a doubling of the steps
SOLVED = 0.01  # of the KL of a model that has learned nothing
FIRST = 10  # step that is evaluated


@dataclass
class Plateau:
    cap: int  # steps in all
    kl: dict[int, float] = field(default_factory=dict)  # by step, where it counts
    ending: int | None = None  # the step at which the fall begins
    easier: int = 0  # steps of the curriculum
    enough: float = 0.0  # of the KL of a model that has learned nothing
    solved: bool = False  # when it was last seen

    @classmethod
    def of(cls, config: TrainConfig) -> "Plateau | None":
        if config.until == "steps":
            return None
        enough = SOLVED if config.until == "solved" else 0.0
        return cls(config.steps, easier=config.curriculum_steps, enough=enough)

    @property
    def latest(self) -> int:
        """The last step at which the fall may begin."""
        return max(1, math.floor(self.cap / (1 + FALL)))

    @property
    def last(self) -> int:
        if self.ending is None:
            return self.cap
        return self.cap if self.ending == self.latest else self.ending + round(FALL * self.ending)

    def evaluations(self) -> set[int]:
        """The steps at which is decided whether to go on."""
        steps, k = {self.latest}, 0
        while (step := round(FIRST * 2 ** (k / 2))) < self.latest:
            steps.add(step)
            k += 1
        return steps

    def see(self, step: int, evaluation: Evaluation) -> None:
        kl = evaluation.model.overall["kl"].mean
        floors = {name: x.overall["kl"].mean for name, x in evaluation.floors.items()}
        self.solved = kl < self.enough * floors[untrained_floor(floors)]
        if step > self.easier and not at_floor(kl, floors):
            self.kl[step] = kl

    def reached(self, step: int) -> bool:
        if self.ending is not None or step not in self.evaluations():
            return False
        level = all(self._level(s) for s in self._last_two(step))
        return self.solved or level or step == self.latest

    def _last_two(self, step: int) -> list[int]:
        return sorted(s for s in self.evaluations() if s <= step)[-2:]

    def _level(self, step: int) -> bool:
        """Whether it hardly falls any more, for all that is known of the last two doublings."""
        seen = [s for s in self.kl if s <= step]
        if step not in self.kl or min(seen) > step / 2**OCTAVES + 1:
            return False
        exponent = slope(seen, [self.kl[s] for s in seen])
        return exponent is not None and per_doubling(exponent.mean) < IMPROVED

    def reopen(self) -> None:
        """For more steps after the end. What was seen in the fall says nothing of the held rate."""
        if self.ending is not None:
            self.kl = {step: kl for step, kl in self.kl.items() if step <= self.ending}
        self.ending = None

    def lr_factor(self, step: int) -> float:
        if self.ending is None or step < self.ending:
            return 1.0
        return (self.last - step) / (self.last - self.ending + 1)
