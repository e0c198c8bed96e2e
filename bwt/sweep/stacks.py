"""Cells of a sweep that train together, as one process."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from bwt.records.base import plain
from bwt.runs.directory import RunDirectory
from bwt.runs.files import strict_json, write_json
from bwt.sweep.cells import Cell, Command
from bwt.train.stacking import alike, why_not_stacked

MOST = 16  # cells of a stack, unless more are asked for


@dataclass(frozen=True)
class Stack:
    cells: tuple[Cell, ...]

    @property
    def name(self) -> str:
        return f"{self.cells[0].name}-and-{len(self.cells) - 1}-more"

    @property
    def command(self) -> str:
        return shlex.join(["bwt", "train", "--resume", *(str(x.path) for x in self.cells)])

    def finished(self) -> bool:
        return not self._left()

    def _left(self) -> list[Cell]:
        return [x for x in self.cells if not x.finished() and x.divergence() is None]

    def next_words(self) -> list[str]:
        """Arguments of `bwt` that start or continue the cells that are left.

        Raises:
            RunError: a directory holds something else.
        """
        left = self._left()
        for cell in left:
            if cell.next_words()[1] != "--resume":  # which has cleared away what was begun
                run = RunDirectory.create(cell.path)
                write_json(run.path / "config.json", cell.config.to_json())
        return ["train", "--resume", *(str(x.path) for x in left)]


def stacked(cells: Sequence[Cell | Command], most: int) -> list[list[int]]:
    """Indices of the cells, those that can train together in one list: as many as `most`, alike
    but for numbers, and at the same step."""
    groups: dict[str, list[int]] = {}
    for index, cell in enumerate(cells):
        groups.setdefault(_kind(cell, index), []).append(index)
    found = []
    for group in groups.values():
        count = -(-len(group) // most)  # stacks, of about the same size
        size = -(-len(group) // count)
        found += [group[start : start + size] for start in range(0, len(group), size)]
    return sorted(found)


def _kind(cell: Cell | Command, index: int) -> str:
    if not isinstance(cell, Cell) or why_not_stacked(cell.config):
        return str(index)  # a kind of its own
    step = max(RunDirectory(cell.path).resumable_steps(), default=0)
    return strict_json(plain({**alike(cell.config), "step": step}))
