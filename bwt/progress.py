"""A progress bar for the terminal. Written by hand: the fields are ours, and forty lines spare a
dependency."""

import sys
import time
from typing import TextIO

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

    def draw(self, step: int, text: str, tokens_per_step: int) -> None:
        now = time.monotonic()
        self.drawn = now
        rate = (step - self.start_step) / max(now - self.start, 1e-9)
        filled = WIDTH * step // max(1, self.total)
        left = duration((self.total - step) / rate) if rate else "?"
        line = (
            f"{'█' * filled}{'░' * (WIDTH - filled)} {step}/{self.total}  {text}  "
            f"{rate:.1f} steps/s  {_short(rate * tokens_per_step)} tokens/s  {left} left"
        )
        print(f"\r\x1b[K{line}", end="", file=self.file, flush=True)

    def clear(self) -> None:
        if self.shown:
            print("\r\x1b[K", end="", file=self.file, flush=True)


def _short(x: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if x >= size:
            return f"{x / size:.3g} {unit}"
    return f"{x:.3g}"
