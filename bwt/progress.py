"""A progress bar for the terminal. Written by hand: the fields are ours, and forty lines spare a
dependency."""

import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

WIDTH = 24
INTERVAL = 0.2  # seconds between redraws


def duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


class Progress:
    """Draws only where a person looks: not when stderr is a file or a pipe."""

    def __init__(self, total: int, done: int, *, quiet: bool, file: TextIO | None = None):
        file = file or sys.stderr
        self.total, self.start_step, self.file = total, done, file
        self.shown = not quiet and file.isatty()
        self.start = self.drawn = time.monotonic()

    def due(self) -> bool:
        return self.shown and time.monotonic() - self.drawn >= INTERVAL

    def draw(self, step: int, text: str, tokens_per_step: int = 0) -> None:
        filled = WIDTH * step // max(1, self.total)
        line = (
            f"{'█' * filled}{'░' * (WIDTH - filled)} {step}/{self.total}  {text}  "
            f"{self.pace(step, tokens_per_step)}"
        )
        print(f"\r\x1b[K{line}", end="", file=self.file, flush=True)

    def pace(self, step: int, tokens_per_step: int) -> str:
        """How fast it goes, and how long it will."""
        self.drawn = time.monotonic()
        rate = (step - self.start_step) / max(self.drawn - self.start, 1e-9)
        left = duration((self.total - step) / rate) if rate else "?"
        speed = f"{rate:.1f} steps/s  {_short(rate * tokens_per_step)} tokens/s  "
        return f"{speed if tokens_per_step else ''}{left} left"

    def see(self, *what: Any) -> None:
        """A bar has no place for what is found on the way; a curve has."""

    def clear(self) -> None:
        if self.shown:
            print("\r\x1b[K", end="", file=self.file, flush=True)

    def end(self) -> None:
        self.clear()

    def above(self, say: Callable[[str], None]) -> Callable[[str], None]:
        """What is said has lines of its own."""

        def said(text: str) -> None:
            self.clear()
            say(text)

        return said


def _short(x: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if x >= size:
            return f"{x / size:.3g} {unit}"
    return f"{x:.3g}"
