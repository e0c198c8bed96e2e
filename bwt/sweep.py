"""Many runs of one grid: each cell a `bwt` command of its own process and its own run directory.

Nothing is kept in memory that a crash could lose: what is done is read off the files, so the same
sweep started again does what is left, and a cell cut short goes on from its last checkpoint.
"""

import dataclasses
import fcntl
import itertools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bwt import models, tasks
from bwt.config import TrainConfig, resolve
from bwt.progress import duration
from bwt.rundir import RunDirectory, RunError, clean, read_json, write_json
from bwt.schedule import stop_signals

# What a run has before its first checkpoint: nothing is lost by starting over.
BEGINNING = {".lock", "config.json", "environment.json", "metrics.jsonl", "checkpoints"}
# Settings that change how a run is computed, not what is.
CIRCUMSTANCES = {"threads", "device", "compile", "on_divergence"}


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
        return rows[-1]["step"] / self.config.steps if rows else 0.0

    def _check(self) -> None:
        found, wanted = RunDirectory.open(self.path).read_config(), self.config.to_json()
        for name in wanted.keys() - CIRCUMSTANCES:
            if found.get(name) != wanted[name]:
                raise RunError(
                    f"{self.path} is another run: its {name} is {found.get(name)!r}, "
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


@dataclass
class Outcome:
    cell: Cell | Command
    status: str = "waiting"  # then running, and finished, diverged, failed or interrupted
    error: str | None = None
    seconds: float = 0.0  # in this sweep; 0 if it had been finished before


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


class Processes:
    """At most `jobs` processes at a time, with `threads` each; with GPUs, one on each unless more
    jobs are asked for, which share them."""

    def __init__(self, jobs: int = 0, threads: int = 1, *, gpus: bool = True):
        places: list[str | None] = list(_gpus()) if gpus else []
        count = jobs or len(places) or max(1, _cpus() // threads)
        self.slots = list(itertools.islice(itertools.cycle(places or [None]), count))
        self.threads = threads
        self.running: dict[int, tuple[Cell | Command, subprocess.Popen, str | None]] = {}

    def start(self, number: int, cell: Cell | Command, log: Path, lock: int) -> None:
        words = cell.next_words()
        slot = self.slots.pop()
        visible = {} if slot is None else {"CUDA_VISIBLE_DEVICES": slot}
        count = str(self.threads)
        with open(log, "ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "bwt", *words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, **visible},
                # Ctrl-C is passed on by us, once; the lock lives as long as any of them.
                start_new_session=True,
                pass_fds=(lock,),
            )
        self.running[number] = (cell, process, slot)

    @property
    def free(self) -> bool:
        return bool(self.slots)

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        """(number, exit code) of those that have ended."""
        ended = []
        for number, (_, process, slot) in list(self.running.items()):
            if process.poll() is not None:
                del self.running[number]
                self.slots.append(slot)
                ended.append((number, process.returncode))
        if not ended and self.running:
            time.sleep(timeout)
        return ended

    def stop(self, hard: bool) -> None:
        for _, process, _ in self.running.values():
            process.send_signal(signal.SIGKILL if hard else signal.SIGTERM)


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _gpus() -> list[str]:
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return named.split(",")[:count] if named else [str(i) for i in range(count)]


@dataclass
class Sweep:
    """Runs cells in `folder`; every change is in folder/sweep.json at once."""

    folder: Path
    cells: Sequence[Cell | Command]
    workers: Any  # Processes, or what runs elsewhere
    show: Callable[["Sweep"], None] = lambda sweep: None
    say: Callable[[str], None] = lambda text: None
    record: str = "sweep.json"
    outcomes: list[Outcome] = field(init=False)
    stopping: int = 0

    def __post_init__(self) -> None:
        self.outcomes = [Outcome(cell) for cell in self.cells]

    def log(self, cell: Cell | Command) -> Path:
        return self.folder / "logs" / f"{cell.name}.log"

    def run(self) -> list[Outcome]:
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        with _locked(self.folder) as lock, stop_signals(self._stop):
            clean(self.folder)
            self._skip_finished()
            started: dict[int, float] = {}
            waiting = [i for i, x in enumerate(self.outcomes) if x.status == "waiting"]
            try:
                while waiting or self.workers.running:
                    while waiting and self.workers.free and not self.stopping:
                        self._start(waiting.pop(0), lock, started)
                    if self.stopping:
                        waiting.clear()
                    for number, code in self.workers.poll(0.2):
                        self._ended(number, code, time.monotonic() - started[number])
                    self.show(self)
            finally:  # an error of ours leaves nothing running
                self.workers.stop(hard=True)
            self._write()
        return self.outcomes

    def _skip_finished(self) -> None:
        for outcome in self.outcomes:
            outcome.status, outcome.error = _look(outcome.cell)
            if outcome.error:
                self.say(f"{outcome.status:<10}{outcome.cell.name}: {outcome.error}")
        done = sum(x.status == "finished" for x in self.outcomes)
        if done:
            self.say(f"{done} of {len(self.outcomes)} were finished before")
        self._write()

    def _start(self, number: int, lock: int, started: dict[int, float]) -> None:
        outcome = self.outcomes[number]
        try:
            self.workers.start(number, outcome.cell, self.log(outcome.cell), lock)
        except RunError as error:
            outcome.status, outcome.error = "failed", str(error)
            self.say(f"failed    {outcome.cell.name}: {error}")
            return
        outcome.status, started[number] = "running", time.monotonic()
        self._write()

    def _ended(self, number: int, code: int, seconds: float) -> None:
        outcome = self.outcomes[number]
        outcome.seconds = seconds
        outcome.status, outcome.error = _look(outcome.cell)
        if outcome.status == "diverged":
            pass  # which is a result, whatever the exit code
        elif code == 0:
            if outcome.status == "waiting":
                outcome.status, outcome.error = "failed", "ended well and left no result"
        elif self.stopping:
            outcome.status = "interrupted"
        else:
            outcome.status = "failed"
            outcome.error = _last_line(self.log(outcome.cell)) or f"ended with exit code {code}"
        fault = f": {outcome.error}" if outcome.error else ""
        self.say(f"{outcome.status:<10}{outcome.cell.name}  {duration(seconds)}{fault}")
        self._write()

    def _write(self) -> None:
        rows = [
            {
                "name": x.cell.name,
                "command": x.cell.command,
                "status": x.status,
                "error": x.error,
                "seconds": round(x.seconds, 1),
            }
            for x in self.outcomes
        ]
        write_json(self.folder / self.record, {"argv": sys.argv[1:], "cells": rows})

    def _stop(self, number, frame) -> None:
        """The first Ctrl-C or SIGTERM lets every cell save itself, the second ends them."""
        self.stopping += 1
        self.workers.stop(hard=self.stopping > 1)


def _look(cell: Cell | Command) -> tuple[str, str | None]:
    """(status, error) as the files of a cell that is not running tell."""
    try:
        if divergence := cell.divergence():
            return "diverged", divergence
        return ("finished" if cell.finished() else "waiting"), None
    except RunError as error:
        return "failed", str(error)


@contextmanager
def _locked(folder: Path):
    """One sweep in a folder at a time. Its processes inherit the lock: should the sweep itself be
    killed, no second one can start beside what it left running."""
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"a sweep is still running in {folder}") from None
        yield file.fileno()


def _last_line(log: Path) -> str | None:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1].removeprefix("bwt: ") if lines else None


def status_line(sweep: Sweep) -> str:
    """What is going on, in one line."""
    counts = {
        name: sum(x.status == name for x in sweep.outcomes)
        for name in ("finished", "diverged", "failed", "running", "waiting")
    }
    text = ", ".join(f"{n} {name}" for name, n in counts.items() if n)
    running = [x.cell for x in sweep.outcomes if x.status == "running"]
    return text + "".join(f"  {cell.name} {cell.progress():.0%}" for cell in running[:4])


def table(outcomes: Sequence[Outcome], metrics: Sequence[str]) -> str:
    """Names, what became of them, and the metrics of those that finished."""
    width = max([len(x.cell.name) for x in outcomes] + [4])
    lines = [f"{'cell':<{width}}  {'status':<11}" + "".join(f"{m:>14}" for m in metrics)]
    for x in outcomes:
        found = scores(x.cell.path) if x.status == "finished" else {}
        cells = "".join(f"{found[m]['mean']:>14.5f}" for m in metrics if m in found)
        lines.append(f"{x.cell.name:<{width}}  {x.status:<11}{cells or x.error or ''}".rstrip())
    return "\n".join(lines)


def scores(path: Path) -> dict[str, dict[str, float]]:
    """The metrics of a run's model over all positions, each with mean and standard error."""
    return read_json(path / "evaluation.json")["model"]["overall"]
