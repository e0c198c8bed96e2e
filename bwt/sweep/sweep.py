"""Running the cells of a sweep, and what is said about them."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from bwt.progress import duration
from bwt.records.estimates import Estimate
from bwt.runs.files import RunError, clean, write_json
from bwt.runs.locks import try_lock
from bwt.runs.signals import stop_signals
from bwt.sweep.cells import Cell, Command, scores
from bwt.sweep.workers import Workers


@dataclass
class Outcome:
    cell: Cell | Command
    status: str = "waiting"  # then running, and finished, diverged, failed or interrupted
    error: str | None = None
    seconds: float = 0.0  # in this sweep; 0 if finished before

    def scores(self) -> dict[str, Estimate]:
        """Of a cell that has finished."""
        if self.status != "finished" or not isinstance(self.cell, Cell):
            return {}
        return scores(self.cell.path)


@dataclass
class Sweep:
    """Runs cells in `folder`; every change is in folder/sweep.json at once."""

    folder: Path
    cells: Sequence[Cell | Command]
    workers: Workers
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
                        self._ended(self.outcomes[number], code, time.monotonic() - started[number])
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
        started[number] = time.monotonic()
        outcome.status = "running"
        self._write()

    def _ended(self, outcome: Outcome, code: int, seconds: float) -> None:
        outcome.seconds = seconds
        outcome.status, outcome.error = _look(outcome.cell)
        if outcome.status in ("finished", "diverged"):
            pass  # which is a result, whatever the exit code
        elif code == 0:
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

    def _stop(self, number: int, frame: FrameType | None) -> None:
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
def _locked(folder: Path) -> Iterator[int]:
    """One sweep in a folder at a time. Its processes inherit the lock: should the sweep itself be
    killed, no second one can start beside what it left running."""
    with open(folder / ".lock", "w") as file:
        if not try_lock(file):
            raise RunError(f"a sweep is still running in {folder}")
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
        scored = x.scores()
        cells = "".join(f"{scored[m].mean:>14.5f}" for m in metrics if m in scored)
        lines.append(f"{x.cell.name:<{width}}  {x.status:<11}{cells or x.error or ''}".rstrip())
    return "\n".join(lines)
