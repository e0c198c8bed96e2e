"""What a sweep asks of whatever runs its cells."""

import os
from pathlib import Path
from typing import Any, Protocol

from bwt import models, registry, tasks
from bwt.sweep.cells import Cell, Command


class Workers(Protocol):
    """Processes of this machine, or tasks of a cluster."""

    running: dict[int, Any]  # by number

    @property
    def free(self) -> bool:
        """Whether another cell may be started."""

    def start(self, number: int, cell: Cell | Command, log: Path, lock: int) -> None:
        """What the cell prints goes to `log`; the file descriptor `lock` is to stay open as long
        as it runs.

        Raises:
            RunError: the directory of the cell holds something else.
        """

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        """(number, exit code) of those that have ended, after waiting a little if none has."""

    def stop(self, hard: bool) -> None:
        """All that run: asked to save themselves, or ended."""


def registered_here() -> dict[str, str]:
    """What makes other processes know the tasks and models that were registered in this one."""
    words = [*registry.sources(tasks.TASKS), *registry.sources(models.MODELS)]
    named = filter(None, os.environ.get(registry.VARIABLE, "").split(","))
    joined = ",".join(dict.fromkeys([*named, *words]))
    return {registry.VARIABLE: joined} if joined else {}
