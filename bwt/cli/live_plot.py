"""The curve of `bwt train --live-plot`: bits from exact Bayes by step, redrawn in place while a run
trains. Where stdout is not a terminal, a line now and then instead."""

import shutil
import sys
import time
from collections.abc import Iterable
from typing import TextIO

from bwt import curve
from bwt.progress import Progress
from bwt.records.evaluation import Evaluation
from bwt.records.metrics import MetricsRow
from bwt.train import Run

SECONDS = 10.0  # between lines, where nothing can be redrawn
WIDEST, TALLEST = 100, 12  # of the picture
NARROWEST, SHORTEST = 40, 5
AROUND = 5  # lines beside it: the axis, its ends, what is shown, the pace, and one to spare
BINS = 400  # parts of the run whose training loss is kept


class LivePlot(Progress):
    def __init__(
        self,
        total: int,
        done: int,
        rows: Iterable[MetricsRow] = (),
        *,
        quiet: bool,
        file: TextIO | None = None,
    ):
        """rows: what was written down of a run that goes on."""
        super().__init__(total, done, quiet=quiet, file=file or sys.stdout)
        self.quiet = quiet
        self.losses = [[0.0, 0] for _ in range(BINS)]  # sum and count of bits above exact Bayes
        self.evaluated: dict[int, float] = {}  # step -> bits
        self.floor: tuple[str, float] | None = None
        self.lines = 0  # on the screen
        for row in rows:
            self.see(row.step, row.excess)
            if row.evaluation and "kl" in row.evaluation:
                self.evaluated[row.step] = row.evaluation["kl"]

    def see(self, step: int, excess: float | None, evaluation: Evaluation | None = None) -> None:
        if excess is not None:
            entry = self.losses[_bin(step, self.total, BINS)]
            entry[0] += excess
            entry[1] += 1
        if evaluation is not None:
            self.evaluated[step] = evaluation.model.overall["kl"].mean
            self.floor = evaluation.best_floor(), evaluation.floor_kl().mean

    def due(self) -> bool:
        if self.shown or self.quiet:
            return super().due()
        return time.monotonic() - self.drawn >= SECONDS

    def draw(self, step: int, text: str, tokens_per_step: int = 0) -> None:
        status = f"step {step:,} of {self.total:,}  {text}  {self.pace(step, tokens_per_step)}"
        if not self.shown:
            print(status, file=self.file, flush=True)
            return
        # In one piece, so that nothing flickers.
        lines = [*self.picture(), status]
        columns = shutil.get_terminal_size().columns
        shown = "\n".join(f"{line[: columns - 1]}\x1b[K" for line in lines)
        print(f"{self._back()}{shown}\x1b[J", end="", file=self.file, flush=True)
        self.lines = len(lines)

    def clear(self) -> None:
        if self.lines:
            print(f"{self._back()}\x1b[J", end="", file=self.file, flush=True)
            self.lines = 0

    def end(self) -> None:
        """The whole curve stays, above what is said next."""
        self.clear()
        for line in self.picture() if self.shown else ():
            print(line, file=self.file)

    def _back(self) -> str:
        """To where the picture begins."""
        return f"\x1b[{self.lines - 1}F" if self.lines > 1 else "\r"

    def picture(self) -> list[str]:
        """The curve, as large as the terminal allows; nothing if it is too small."""
        columns, rows = shutil.get_terminal_size()
        width, height = min(columns - curve.LABEL - 3, WIDEST), min(rows - AROUND, TALLEST)
        if width < NARROWEST or height < SHORTEST:
            return []
        marks = {_bin(step, self.total, width): bits for step, bits in self.evaluated.items()}
        floor = self.floor[1] if self.floor else None
        left = " " * (curve.LABEL + 1)
        return [
            *curve.draw(self._means(width), marks, floor, height=height),
            f"{left}+{'-' * width}",
            f"{left} 0{f'{self.total:,}':>{width - 1}}",
            f"{left} {self._legend()}",
        ]

    def _legend(self) -> str:
        floor = f"  - best floor ({self.floor[0]}, {self.floor[1]:.3g})" if self.floor else ""
        return f"bits from exact Bayes:  o evaluated  . training loss{floor}"

    def _means(self, width: int) -> list[float | None]:
        """Of the training loss, in each column."""
        sums = [[0.0, 0] for _ in range(width)]
        for i, (total, count) in enumerate(self.losses):
            entry = sums[i * width // BINS]
            entry[0] += total
            entry[1] += count
        return [total / count if count else None for total, count in sums]


def _bin(step: int, total: int, bins: int) -> int:
    """Which part of a run a step is in."""
    return bins * min(step, total) // (total + 1)


def live_plot(run: Run) -> LivePlot:
    """Return the curve of a run, which shows what was recorded before it was resumed."""
    rows = run.directory.read_metrics()
    return LivePlot(run.config.steps, run.step.count, rows, quiet=not run.main)
