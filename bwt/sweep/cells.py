"""What a sweep runs: cells of a grid, and commands on finished runs."""

import dataclasses
import itertools
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bwt import models, tasks
from bwt import options as option_values
from bwt.records.estimates import Estimate
from bwt.records.evaluation import Evaluations
from bwt.runs.config import TrainConfig
from bwt.runs.directory import RunDirectory
from bwt.runs.files import RunError, read_record
from bwt.runs.presets import resolve

# What a run has before its first checkpoint: nothing is lost by starting over.
BEGINNING = {".lock", "config.json", "environment.json", "metrics.jsonl", "checkpoints"}
# Settings that change how a run is computed, not what is.
CIRCUMSTANCES = {"threads", "device", "compile", "graph", "on_divergence"}


@dataclass(frozen=True)
class Cell:
    """`bwt train` with these words, in the directory `path`."""

    name: str
    words: tuple[str, ...]  # without --out
    config: TrainConfig
    path: Path

    @property
    def command(self) -> str:
        """As a person would type it."""
        return shlex.join(["bwt", "train", *self.words])

    def finished(self) -> bool:
        """Its evaluation is the last thing a run writes."""
        if not (self.path / "evaluation.json").exists():
            return False
        self._check()
        return True

    def divergence(self) -> str | None:
        """How the run diverged, if it did. To repeat it would give the same."""
        run = RunDirectory(self.path)
        if run.divergence is None:
            return None
        self._check()
        return run.divergence_in_words()

    def next_words(self) -> list[str]:
        """Arguments of `bwt` that start the cell or continue it.

        Raises:
            RunError: its directory holds something else.
        """
        run = RunDirectory(self.path)
        if list(run.checkpoints.glob("*.state.safetensors")):
            self._check()
            return ["train", "--resume", str(self.path)]
        if self.path.exists():
            foreign = {p.name for p in self.path.iterdir()} - BEGINNING
            if foreign:
                raise RunError(f"{self.path} holds other files: {', '.join(sorted(foreign))}")
            with run.locked():
                shutil.rmtree(self.path)
        return ["train", *self.words, "--out", str(self.path)]

    def progress(self) -> float:
        rows = RunDirectory(self.path).read_metrics()
        return rows[-1].step / self.config.steps if rows else 0.0

    def _check(self) -> None:
        present = completed(RunDirectory.open(self.path).read_config())
        wanted = self.config.to_json()
        for name in wanted.keys() - CIRCUMSTANCES:
            if present[name] != wanted[name]:
                raise RunError(
                    f"{self.path} is another run: its {name} is {present[name]!r}, "
                    f"not {wanted[name]!r}"
                )


@dataclass(frozen=True)
class Command:
    """A `bwt` command on a finished run; `done` tells from the run's files that it has run."""

    name: str
    words: tuple[str, ...]
    done: Callable[[], bool]

    @property
    def command(self) -> str:
        return shlex.join(["bwt", *self.words])

    def finished(self) -> bool:
        return self.done()

    def divergence(self) -> None:
        return None

    def next_words(self) -> list[str]:
        return list(self.words)

    def progress(self) -> float:
        return 0.0


def completed(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration as it would be written now: an option that did not exist at its time has its
    default.

    Raises:
        RunError: it is none, of this bwt.
    """
    try:
        read = TrainConfig.from_json(config)
        task = tasks.get(read.task, **read.task_options)
        model = option_values.build(
            models.options_class(read.model), read.model_options, f"model {read.model}"
        )
    except ValueError as error:
        raise RunError(f"its configuration does not fit: {error}") from error
    whole = dataclasses.replace(
        read, task_options=task.options(), model_options=dataclasses.asdict(model)
    )
    return whole.to_json()


def grid(choices: dict[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """All combinations, the last name varying fastest."""
    for values in itertools.product(*choices.values()):
        yield dict(zip(choices, values, strict=True))


def make_cell(out: Path, preset: str, task: str, model: str, **fields: Any) -> Cell:
    """The options that this task and model have, as a cell named after them."""
    groups = (TrainConfig, tasks.TASKS[task], models.options_class(model))
    known = [{f.name for f in dataclasses.fields(cls) if "help" in f.metadata} for cls in groups]
    settings, task_options, model_options = (
        {name: value for name, value in fields.items() if name in names} for names in known
    )
    config = resolve(
        task,
        model,
        preset,
        settings=settings,
        task_options=task_options,
        model_options=model_options,
    )
    given = {**settings, **task_options, **model_options}
    words = [task, "--model", model, "--preset", preset]
    for name, value in given.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", str(value)]
    name = "-".join([task, model, *(f"{key}={value}" for key, value in given.items())])
    return Cell(name, tuple(words), config, out / name)


def scores(path: Path) -> dict[str, Estimate]:
    """The metrics of a run's model over all positions."""
    own = read_record(path / "evaluation.json", Evaluations).own
    return {} if own is None else own.model.overall
