"""What every wind tunnel has in common: options, batches, and how they are checked."""

import abc
import dataclasses
import math
from typing import Any, ClassVar, NamedTuple, NoReturn

import torch
from torch import Tensor

from bwt.options import check_options


class Batch(NamedTuple):
    """Sequences, what is asked about them, and the exact answer.

    A model sees features (if any) at its first F positions and tokens at the L after them.
    """

    tokens: Tensor  # [B, L] int64
    features: Tensor | None  # [B, F, W] float32
    positions: Tensor  # [P] int64, of the F + L model positions: where an answer is asked for
    targets: Tensor  # [B, P] int64, a draw from the posterior by construction
    posterior: Tensor | None  # [B, P, O] float32, exact given what was shown up to the position

    @property
    def exact(self) -> Tensor:
        """The posterior, of a batch that was sampled with it."""
        if self.posterior is None:
            raise ValueError("this batch was sampled without its posterior")
        return self.posterior


class Addresses(NamedTuple):
    """Positions whose keys attention may have to tell apart."""

    name: str
    at: Tensor  # [n] int64
    # [n], the positions whose tokens name the addresses: the same token is the same address. None:
    # the place itself decides.
    named_by: Tensor | None
    needed: bool  # whether keys carry information here, so that something has to be told apart
    why: str  # in words, as the end of "Keys matter here: ..." or "Keys do not matter here: ..."

    def on(self, device: torch.device | str) -> "Addresses":
        named_by = None if self.named_by is None else self.named_by.to(device)
        return self._replace(at=self.at.to(device), named_by=named_by)


@dataclasses.dataclass(frozen=True)
class Task(abc.ABC):
    """A family of sequences with a known posterior. The fields are the options of the family.

    A task has to define `vocab_size`, `num_outcomes`, `seq_len`, `positions_on`, `draw` and
    `posterior`. All else has a default, and what is left at it is left out where it is needed, with
    the reason:

        length_option    the field that makes sequences longer: `bwt eval --length`, lengths
        hypothesis_bits  whether a model could know the task by heart
        describe         what is said about the task before training
        floors           predictors that lack an ability, beside uniform and constant ones
        groups, meanings where attention ought to go
        addresses        whose keys attention has to tell apart
        pairs            keys and values that are looked up: formation
        expected_entropy  what a perfect model's loss would be, without sampling
        redrawn          other evidence about the same hypotheses: splice
        num_features, feature_width   a header of continuous positions

    A subclass is decorated with `@dataclasses.dataclass(frozen=True)`, and its options are fields
    made by `bwt.options.option`, with a default and a line of help each: they become flags of
    `bwt train`. examples/own_task.py is a whole one.
    """

    name: ClassVar[str]  # `bwt.tasks.register` gives it
    length_option: ClassVar[str | None] = None
    # What the groups of `roles` are, for a reader who does not know the layout.
    meanings: ClassVar[dict[str, str]] = {
        "self": "the position that is asked",
        "irrelevant": "all other positions",
    }

    def __post_init__(self) -> None:
        check_options(self, f"task {self.name}: ")

    @property
    @abc.abstractmethod
    def vocab_size(self) -> int: ...

    @property
    @abc.abstractmethod
    def num_outcomes(self) -> int: ...

    @property
    def num_features(self) -> int:
        """Leading continuous positions, F."""
        return 0

    @property
    def feature_width(self) -> int:
        """Width of a continuous position, W."""
        return 0

    @property
    @abc.abstractmethod
    def seq_len(self) -> int:
        """F + L, the number of model positions."""

    @property
    def positions(self) -> Tensor:
        """[P] int64 on the CPU: the model positions whose output is supervised."""
        return self.positions_on("cpu")

    @abc.abstractmethod
    def positions_on(self, device: torch.device | str) -> Tensor:
        """`positions` made on the device: a copy from the host would make each step wait."""

    @property
    def hypothesis_bits(self) -> float | None:
        """log2 of the number of hypotheses, or of a lower bound where they are a continuum. None:
        nothing is said about it."""
        return None

    def describe(self) -> str:
        """One paragraph: the hypothesis space, and why it cannot be memorised."""
        return f"The task {self.name}: {self.num_outcomes} outcomes, {self.seq_len} positions."

    @abc.abstractmethod
    def draw(self, batch_size: int, generator: torch.Generator, device: torch.device) -> Batch:
        """A batch without its posterior, all from the generator and on the device, without waiting
        for the device: a step on a GPU may be captured as a graph."""

    @abc.abstractmethod
    def posterior(self, batch: Batch, *, check: bool = True) -> Tensor:
        """[B, P, O] float32, from what the batch shows alone; targets are not looked at, except
        to complete arguments of an op that do not enter the result.

        Args:
            check: False takes the batch on trust, as one of our own drawing: values are not read
                back from the device, so that the host need not wait for it.
        """

    def redrawn(self, batch: Batch, *, generator: torch.Generator) -> Batch | None:
        """Other evidence about the hypotheses of a batch, without a posterior. The steps of both
        can be joined: up to any question those of one, then those of the other. None: they
        cannot in this task."""
        return None

    def expected_entropy(self) -> float | None:
        """Return the mean bits of the exact posterior in closed form, or None if there is none."""
        return None

    def floors(self, batch: Batch) -> dict[str, Tensor]:
        """Predictions [B, P, O] of predictors that lack one ability; the weakest come first."""
        return {}

    def groups(self, batch: Batch, time: Tensor) -> dict[str, Tensor]:
        """Named groups of positions, [B, P, T] or what expands to it; a position belongs to the
        first that has it. `time` is 0 .. T-1."""
        return {"self": time == batch.positions[:, None]}

    def roles(self, batch: Batch) -> dict[str, Tensor]:
        """Where attention ought to go: the positions that each question can see, sorted into named
        groups [B, P, T] (bool, disjoint, covering all visible ones). `meanings` explains them."""
        time = torch.arange(self.seq_len, device=batch.tokens.device)
        free = (time <= batch.positions[:, None]).expand(len(batch.tokens), -1, -1)
        roles = {}
        for name, group in self.groups(batch, time).items():
            roles[name] = group & free
            free = free & ~group
        return {**roles, "irrelevant": free}

    @property
    def addresses(self) -> tuple[Addresses, ...]:
        """Groups of them, on the CPU. The first is where attention needs to tell them apart, the
        last where they are shown."""
        at = self.positions
        return (Addresses("asked tokens", at, at, True, "each is a question of its own"),)

    def different_addresses(self, batch: Batch, group: Addresses) -> Tensor:
        """[B, n, n]: which pairs of the group are of different addresses."""
        if group.named_by is None:
            different = ~torch.eye(len(group.at), dtype=torch.bool, device=batch.tokens.device)
            return different.expand(len(batch.tokens), -1, -1)
        tokens = batch.tokens[:, group.named_by - self.num_features]
        return tokens[:, :, None] != tokens[:, None, :]

    @property
    def pairs(self) -> tuple[Tensor, Tensor] | None:
        """Positions [n] of values that are shown, and those of the keys they belong to; None of a
        task without pairs."""
        return None

    def shown(self, batch: Batch) -> Tensor:
        """[B, P] int64: what each question is about, to label it."""
        return batch.tokens[:, batch.positions - self.num_features]

    def spelled(self, batch: Batch) -> list[list[str]]:
        """[B][T]: what is read at each position, as short as it can be."""
        header = ["·"] * self.num_features
        return [header + [str(x) for x in row] for row in batch.tokens.tolist()]

    def sample(
        self,
        batch_size: int,
        *,
        generator: torch.Generator,
        device: torch.device | str = "cpu",
        posterior: bool = True,
    ) -> Batch:
        """Fresh sequences, drawn on the device (where the generator must live).

        Args:
            posterior: False leaves it out (None), which is cheaper when only targets are needed.
        """
        device = torch.device(device)
        if generator.device.type != device.type:
            raise ValueError(
                f"{self.name}: the generator is on {generator.device} and the batch on {device}; "
                f"make it by torch.Generator({str(device)!r})"
            )
        batch = self.draw(batch_size, generator, device)
        return batch._replace(posterior=self.posterior(batch, check=False)) if posterior else batch

    def with_length(self, length: int) -> "Task":
        """The same task at another length, to see how a model generalises.

        Raises:
            ValueError: it has only one, or not such a one.
        """
        if self.length_option is None:
            self._fail("its sequences have one length (there is no length_option)")
        return dataclasses.replace(self, **{self.length_option: length})

    def options(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def _fail(self, message: str) -> NoReturn:
        raise ValueError(f"task {self.name}: {message}")


def shuffled(batch_size: int, n: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """[B, n] independent uniform permutations of 0..n-1."""
    # Random integers of 63 bits have no ties to speak of; float32 numbers would have a few.
    order = torch.empty(batch_size, n, dtype=torch.int64, device=device)
    return order.random_(generator=generator).argsort(-1)


def uniform(*shape: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """Uniform on [0, 1) in float64: in float32 rounding could reach an outcome of probability 0."""
    return torch.rand(shape, dtype=torch.float64, generator=generator, device=device)


def memorisation(bits: float, unit: str) -> str:
    """A statement that holds for small spaces too: the reader compares with the model's size."""
    return (
        f"To remember one bit about each {unit} takes 2^{bits - 5:.1f} float32 parameters: "
        "a model with far fewer cannot know them beforehand, it has to infer from what it sees"
    )


def statement(task: Task, num_parameters: int) -> str:
    """Whether a model of so many parameters could learn this task by heart."""
    if task.hypothesis_bits is None:
        return f"{task.describe()}\nThis model has {num_parameters:,} parameters."
    bits = 32 * num_parameters
    impossible = math.log2(bits) < task.hypothesis_bits
    conclusion = "it cannot learn them by heart" if impossible else "IT MIGHT LEARN THEM BY HEART"
    return (
        f"{task.describe()}\nThis model has {num_parameters:,} parameters: its weights hold "
        f"{bits:,} = 2^{math.log2(bits):.1f} bits, the task has 2^{task.hypothesis_bits:.1f} "
        f"hypotheses: {conclusion}."
    )
