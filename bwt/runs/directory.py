"""The run directory: what a run leaves behind, written atomically, read without running code.

config.json  environment.json  metrics.jsonl  evaluation.json
diverged.json                                 when and how, if training came to nothing
checkpoints/step_00001000.safetensors         the weights that are evaluated
checkpoints/step_00001000.state.safetensors   what a resume needs; beside the last one only
.lock                                         held by the process that trains
"""

import contextlib
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bwt.records.frames import to_dataframe
from bwt.records.metrics import MetricsRow
from bwt.runs.files import (
    RunError,
    clean,
    loads,
    not_written,
    read_object,
    reason_of,
    strict_json,
    write_atomically,
)
from bwt.runs.locks import locked

if TYPE_CHECKING:
    import pandas


class RunDirectory:
    def __init__(self, path: str | Path):
        self.path = Path(path)

    @classmethod
    def create(cls, path: str | Path) -> "RunDirectory":
        run = cls(path)
        if run.path.exists() and (not run.path.is_dir() or any(run.path.iterdir())):
            raise RunError(f"{run.path} exists already; resume it with --resume or choose another")
        try:
            run.checkpoints.mkdir(parents=True)
        except FileExistsError as error:
            raise RunError(f"{run.path} was begun by another process just now") from error
        return run

    @classmethod
    def open(cls, path: str | Path) -> "RunDirectory":
        run = cls(path)
        if not (run.path / "config.json").is_file():
            raise RunError(f"{run.path} is not a run directory: it has no config.json")
        for folder in (run.path, run.checkpoints, run.figures):
            clean(folder)
        return run

    def remove_empty(self) -> None:
        """Remove what `create` made, unless a step was saved: the name can be used again."""
        if self.steps() or self.resumable_steps():
            return
        with contextlib.suppress(OSError):
            for name in (".lock", "config.json", "environment.json", "metrics.jsonl"):
                (self.path / name).unlink(missing_ok=True)
            self.checkpoints.rmdir()
            self.path.rmdir()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """For the one process that trains this run and writes its files.

        Raises:
            RunError: another one does.
        """
        ours = f"process {os.getpid()} on {socket.gethostname()}"
        with locked(self.path / ".lock", ours) as other:
            if other is not None:
                raise RunError(f"{self.path} is being trained by {other}; wait for it or stop it")
            yield

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def figures(self) -> Path:
        return self.path / "figures"

    @property
    def divergence(self) -> dict[str, Any] | None:
        """What diverged.json tells, if there is one: the step, and the message."""
        path = self.path / "diverged.json"
        if not path.exists():
            return None
        told = read_object(path)
        if not isinstance(told.get("step"), int) or not isinstance(told.get("message"), str):
            raise RunError(f"{path} does not say at which step the run diverged, and how")
        return told

    def divergence_in_words(self) -> str:
        """What follows the name of a run that has diverged, without a full stop."""
        step = self.last_step()
        left = "it has no checkpoint" if step is None else f"its last checkpoint is of step {step}"
        told = self.divergence
        assert told is not None
        return f"diverged at step {told['step']} ({told['message']}); {left}"

    def last_step(self) -> int | None:
        """The last one that has weights."""
        return max(self.steps(), default=None)

    def weights_path(self, step: int) -> Path:
        return self.checkpoints / f"step_{step:08d}.safetensors"

    def state_path(self, step: int) -> Path:
        return self.checkpoints / f"step_{step:08d}.state.safetensors"

    def steps(self) -> list[int]:
        """Steps that have weights, in order."""
        return self._steps(r"step_(\d+)\.safetensors")

    def resumable_steps(self) -> list[int]:
        """Steps that have what a resume needs, in order: one, unless a save was cut short."""
        return self._steps(r"step_(\d+)\.state\.safetensors")

    def _steps(self, pattern: str) -> list[int]:
        names = (path.name for path in self.checkpoints.glob("*"))
        return sorted(int(m[1]) for name in names if (m := re.fullmatch(pattern, name)))

    def read_config(self) -> dict[str, Any]:
        return read_object(self.path / "config.json")

    def registered(self) -> dict[str, str]:
        """What has to be imported to know the "task" or the "model" of this run, where they are not
        ours."""
        found = read_object(self.path / "environment.json", {}).get("registered", {})
        return found if isinstance(found, dict) else {}

    def append_metrics(self, row: MetricsRow) -> None:
        path = self.path / "metrics.jsonl"
        try:
            with open(path, "a") as file:
                file.write(strict_json(row.to_json()) + "\n")
        except OSError as error:
            raise not_written(path, error) from error

    def read_metrics(self) -> list[MetricsRow]:
        """Rows in order; lines that are none, as one cut off by a crash, are left out."""
        return [row for row in map(_row, self._metrics_lines()) if row is not None]

    def to_dataframe(self) -> "pandas.DataFrame":
        """metrics.jsonl: a row for each step that was written down; what was found in evaluations
        has columns of its own ("evaluation.kl").

        Raises:
            ImportError: pandas is not installed.
        """
        return to_dataframe(self.read_metrics())

    def _metrics_lines(self) -> list[str]:
        path = self.path / "metrics.jsonl"
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RunError(f"{path} cannot be read: {reason_of(error)}") from error
        return [line for line in lines if line]

    def truncate_metrics(self, step: int) -> int:
        """Remove what was written after `step`, so that a resumed run repeats it. Return how many
        unreadable lines of metrics were removed as well."""
        rows = [(line, _row(line)) for line in self._metrics_lines()]
        readable = [(line, row) for line, row in rows if row is not None]
        text = "".join(f"{line}\n" for line, row in readable if row.step <= step)
        write_atomically(self.path / "metrics.jsonl", lambda file: file.write_text(text))
        for later in self.steps():
            if later > step:
                self.weights_path(later).unlink()
        return len(rows) - len(readable)


def _row(line: str) -> MetricsRow | None:
    try:
        return MetricsRow.from_json(loads(line))
    except (ValueError, RecursionError):
        return None
