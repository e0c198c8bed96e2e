"""Learning rates, curricula, steps of evaluation, and the end of a run that trains to a plateau."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bwt.options import kind_of
from bwt.records.curves import FALL, OCTAVES, per_doubling, slope
from bwt.records.evaluation import Evaluation
from bwt.records.floors import at_floor, untrained_floor
from bwt.runs.config import TrainConfig
from bwt.tasks import Task

BLOCK = 1024  # steps whose numbers are on the device
IMPROVED = 0.1  # of the KL, with a doubling of the steps
SOLVED = 0.01  # of the KL of a model that has learned nothing
FIRST = 10  # step that is evaluated


def log_spaced(last: int, count: int, first: int = 1) -> set[int]:
    """Return about `count` steps from `first` to `last`, both included, evenly spaced on a log
    scale. The cost depends on the number of steps found, not on `count`."""
    ratio = (last / first) ** (1 / max(1, count - 1))
    steps, i = {last}, 0
    while i < count:
        step = min(last, round(first * ratio**i))
        steps.add(step)
        if step == last:
            break
        # On to where the next step begins; one before it, as logarithms are rounded.
        i = max(i + 1, math.floor(math.log((step + 0.5) / first, ratio)) - 1)
    return steps


@dataclass
class Plateau:
    """The end of a run that trains until it no longer improves.

    The learning rate is held, because a schedule would need to know the end. The KL is measured at
    steps a factor of sqrt(2) apart. The plateau is reached when, twice in a row, a line through the
    KLs of the last two doublings falls by less than a tenth per doubling. (Two single values are
    too noisy: of runs whose KL falls by 29% per doubling with 15% noise, one in four would end too
    early; with the line it is one in a hundred.) A model that beats no baseline has not begun to
    learn and goes on, and a model in its curriculum is not judged. Then the rate falls to 0 over a
    quarter as many steps again, which are part of the budget.

    Where the answer is certain, as in recall, the KL falls without end. A run until it has solved
    its task also ends at a hundredth of the KL of a model that has learned nothing.
    """

    cap: int  # steps in all
    kl: dict[int, float] = field(default_factory=dict)  # by step, where it counts
    ending: int | None = None  # the step at which the fall begins
    curriculum_steps: int = 0
    enough: float = 0.0  # of the KL of a model that has learned nothing
    solved: bool = False  # at the last evaluation

    @classmethod
    def of(cls, config: TrainConfig) -> "Plateau | None":
        if config.until == "steps":
            return None
        enough = SOLVED if config.until == "solved" else 0.0
        return cls(config.steps, curriculum_steps=config.curriculum_steps, enough=enough)

    @property
    def latest(self) -> int:
        """The last step at which the fall may begin."""
        return max(1, math.floor(self.cap / (1 + FALL)))

    @property
    def last(self) -> int:
        """The last step of the run, as far as is known."""
        if self.ending is None:
            return self.cap
        return self.cap if self.ending == self.latest else self.ending + round(FALL * self.ending)

    def evaluations(self) -> set[int]:
        """Return the steps after which the run may begin to end."""
        steps, k = {self.latest}, 0
        while (step := round(FIRST * 2 ** (k / 2))) < self.latest:
            steps.add(step)
            k += 1
        return steps

    def record(self, step: int, evaluation: Evaluation) -> None:
        kl = evaluation.model.overall["kl"].mean
        floors = {name: x.overall["kl"].mean for name, x in evaluation.floors.items()}
        self.solved = kl < self.enough * floors[untrained_floor(floors)]
        if step > self.curriculum_steps and not at_floor(kl, floors):
            self.kl[step] = kl

    def reached(self, step: int) -> bool:
        if self.ending is not None or step not in self.evaluations():
            return False
        last_two = sorted(s for s in self.evaluations() if s <= step)[-2:]
        return self.solved or all(map(self._level, last_two)) or step == self.latest

    def _level(self, step: int) -> bool:
        """Return whether the KL of the last two doublings hardly falls any more."""
        seen = [s for s in self.kl if s <= step]
        if step not in self.kl or min(seen) > step / 2**OCTAVES + 1:
            return False
        exponent = slope(seen, [self.kl[s] for s in seen])
        return exponent is not None and per_doubling(exponent.mean) < IMPROVED

    def reopen(self) -> None:
        """Train on after the end. KLs of the falling rate say nothing about the held one."""
        if self.ending is not None:
            self.kl = {step: kl for step, kl in self.kl.items() if step <= self.ending}
        self.ending = None

    def lr_factor(self, step: int) -> float:
        if self.ending is None or step < self.ending:
            return 1.0
        return (self.last - step) / (self.last - self.ending + 1)


def lr_factor(step: int, config: TrainConfig, plateau: Plateau | None = None) -> float:
    """Return the fraction of the peak learning rate at the step-th update (from 0): a linear
    warm-up, then a decay that would reach 0 just after the last update. Until a plateau, the decay
    begins when the plateau is reached."""
    rise = max(1, round(config.warmup * config.steps))
    if step < rise:
        return (step + 1) / rise
    if plateau is not None:
        return plateau.lr_factor(step)
    if config.decay == "none":
        return 1.0
    left = (config.steps - step) / (config.steps - rise + 1)
    return left if config.decay == "linear" else 0.5 - 0.5 * math.cos(math.pi * left)


class Schedule:
    """Numbers of the next BLOCK steps on the device, beside a counter of the steps, so that a
    captured step finds its own. The host fills in a block at a time."""

    def __init__(self, device: torch.device):
        self.factors = torch.zeros(BLOCK, device=device)  # of the learning rates
        self.shares = torch.zeros(BLOCK, device=device)  # of the newest weights in their average
        self.step = torch.zeros(1, dtype=torch.int64, device=device)

    def fill(
        self, first: int, factor: Callable[[int], float], share: Callable[[int], float]
    ) -> None:
        """Fill in the rest of the block that contains this step."""
        steps = range(first, first - first % BLOCK + BLOCK)
        here = slice(first % BLOCK, BLOCK)
        self.factors[here] = torch.tensor([factor(step) for step in steps])
        self.shares[here] = torch.tensor([share(step) for step in steps])

    def place(self) -> Tensor:
        """Return the index [1] of the present step in the block."""
        return self.step % BLOCK


def curriculum(config: TrainConfig, task: Task) -> list[Task]:
    """Return the tasks that take turns in the first `curriculum_steps` steps; none without a
    curriculum.

    Raises:
        ValueError: what is asked for is not an option of the task, or does not fit the model.
    """
    if not config.curriculum:
        return []
    name, _, values = config.curriculum.partition("=")
    fields = {field.name: field for field in dataclasses.fields(task)}
    if name not in fields or not values:
        known = ", ".join(fields)
        raise ValueError(
            f"curriculum {config.curriculum!r} is not OPTION=VALUE[,VALUE] with an option of task "
            f"{task.name}: {known}"
        )
    kind = kind_of(fields[name])
    easier = [dataclasses.replace(task, **{name: _value(kind, word)}) for word in values.split(",")]
    for other in easier:
        _check_fits(other, task, config.curriculum)
    return easier


def _value(kind: type, word: str) -> object:
    if kind is bool:
        if word not in ("true", "false"):
            raise ValueError(f"curriculum: {word!r} is neither true nor false")
        return word == "true"
    try:
        return kind(word)
    except ValueError:
        raise ValueError(f"curriculum: {word!r} is not a value of type {kind.__name__}") from None


def _check_fits(other: Task, task: Task, text: str) -> None:
    """Check that a model of the task can learn the other: equal vocabularies, no more positions."""
    for size in ("vocab_size", "num_outcomes", "num_features", "feature_width"):
        if getattr(other, size) != getattr(task, size):
            raise ValueError(
                f"curriculum {text!r}: its {size} is {getattr(other, size)}, that of the task "
                f"{getattr(task, size)}; a model has one"
            )
    if other.seq_len > task.seq_len:
        raise ValueError(f"curriculum {text!r} has longer sequences than the task itself")
