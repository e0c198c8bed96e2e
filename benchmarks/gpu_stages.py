"""Runs stages one after another: what each will take is said beforehand, one that fails is
reported and the rest goes on. Needs nothing but Python."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

PATIENCE = 4  # times its estimate, until a stage is taken to hang
LEAST_PATIENCE = 10.0  # minutes
INTERRUPTED = "interrupted"


class Failed(Exception):
    """A stage's failure in one line: what, and what to do. `details` are kept all the same."""

    def __init__(self, words: str, details: Any = None):
        super().__init__(words)
        self.details = details


class Stage(NamedTuple):
    name: str
    minutes: float
    run: Callable[[], Any]  # returns details for the report, raises Failed
    needs: tuple[str, ...] = ()  # stages without whose success this one is pointless


class Outcome(NamedTuple):
    stage: str
    state: str  # passed, failed or skipped
    seconds: float
    words: str  # why, if not passed
    details: Any


def plan(stages: list[Stage]) -> str:
    total = sum(stage.minutes for stage in stages)
    parts = ", ".join(f"{stage.name} {stage.minutes:g}" for stage in stages)
    return f"about {total:.0f} minutes in all: {parts}"


def run(
    stages: list[Stage], say: Callable[[str], None], now: Callable[[], float] = time.monotonic
) -> list[Outcome]:
    say(plan(stages))
    outcomes: list[Outcome] = []
    bad: set[str] = set()
    for number, stage in enumerate(stages, 1):
        left = sum(later.minutes for later in stages[number - 1 :])
        missing = [name for name in stage.needs if name in bad]
        if missing:
            outcome = Outcome(stage.name, "skipped", 0.0, f"needs {', '.join(missing)}", None)
        else:
            place = f"[{number}/{len(stages)}] {stage.name}"
            say(f"{place}: about {stage.minutes:g} min, {left:.0f} min left in all")
            outcome = _one(stage, now)
        if outcome.state != "passed":
            bad.add(stage.name)
        outcomes.append(outcome)
        words = f": {outcome.words}" if outcome.words else ""
        say(f"{stage.name} {outcome.state} after {outcome.seconds / 60:.1f} min{words}")
        if outcome.words == INTERRUPTED:  # what was done before is worth keeping
            break
    return outcomes


def _one(stage: Stage, now: Callable[[], float]) -> Outcome:
    start = now()
    try:
        details = stage.run()
        return Outcome(stage.name, "passed", now() - start, "", details)
    except Failed as fault:
        return Outcome(stage.name, "failed", now() - start, str(fault), fault.details)
    except KeyboardInterrupt:
        return Outcome(stage.name, "failed", now() - start, INTERRUPTED, None)
    except Exception as fault:  # a fault of the stage's own code must not cost the others
        words = f"{type(fault).__name__}: {fault}"
        return Outcome(stage.name, "failed", now() - start, words, None)


class Shell:
    """Runs commands with their output in a log; on a terminal their last line is shown."""

    def __init__(self, root: Path, logs: Path):
        self.root, self.logs = root, logs

    def __call__(
        self, command: list[str], log: str, minutes: float, check: bool = True
    ) -> tuple[int, list[str]]:
        """(exit code, lines of output).

        Raises:
            Failed: the command takes far too long or, with `check`, its exit code is not 0.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        path = self.logs / f"{log}.log"
        limit = 60 * max(PATIENCE * minutes, LEAST_PATIENCE)
        process = subprocess.Popen(
            command,
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        late = threading.Event()

        def stop():
            late.set()
            os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(limit, stop)
        timer.start()
        lines = []
        try:
            with path.open("w") as file:
                for line in process.stdout:
                    file.write(line)
                    lines.append(line.rstrip("\n"))
                    _show(lines[-1])
            code = process.wait()
        except KeyboardInterrupt:
            os.killpg(process.pid, signal.SIGTERM)
            raise
        finally:
            timer.cancel()
            process.stdout.close()
            _show("")
        if late.is_set():
            raise Failed(f"{' '.join(command)} did not end in {limit / 60:.0f} min; see {path}")
        if check and code != 0:
            last = next((line for line in reversed(lines) if line.strip()), "no output")
            raise Failed(f"exit code {code}: {last.strip()[:200]}; see {path}")
        return code, lines


def _show(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K  {line[:96]}" if line else "\r\x1b[K", end="", file=sys.stderr, flush=True)
