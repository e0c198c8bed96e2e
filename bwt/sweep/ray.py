"""Cells of a sweep as tasks of a Ray cluster. The folder of the sweep must be on a disk that all
nodes share, and bwt installed on each.

A task trains in its own worker process, so that when a worker or its node dies nothing of it lives
on; Ray then starts the task again elsewhere, and it goes on from the last checkpoint on the disk.
"""

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bwt.sweep.cells import Cell, Command
from bwt.sweep.workers import registered_here

BwtCommand = Callable[[list[str]], int]  # arguments of `bwt` -> its exit code

RETRIES = 5


def work(cell: Cell | Command, log: Path, command: BwtCommand) -> int:
    """In a worker: start the cell or continue it; the exit code of the command."""
    if cell.finished():  # the worker died just after it had finished
        return 0
    with open(log, "a", buffering=1) as file:
        print(f"process {os.getpid()} on {os.uname().nodename}", file=file)
        with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            return command(cell.next_words())


def _knock(address: str) -> None:
    """Ray itself would wait for minutes for a cluster that is not there."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=10).close()


class RayTasks:
    """Workers on the cluster at `address`, which run the `command`."""

    def __init__(self, address: str, command: BwtCommand, threads: int = 1):
        self.command = command
        try:
            import ray
        except ImportError as error:
            raise ValueError("--ray needs Ray: pip install 'bwt[ray]'") from error
        self.ray = ray
        try:
            _knock(address)
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except OSError as error:
            raise ValueError(f"--ray: no cluster answers at {address}") from error
        variables = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        self.task = ray.remote(
            num_cpus=threads,
            num_gpus=1 if ray.cluster_resources().get("GPU") else 0,
            max_retries=RETRIES,
            max_calls=1,  # a process for each cell: threads and memory start afresh
            runtime_env={"env_vars": {**variables, **registered_here()}},
        )(work)
        self.running: dict[int, Any] = {}

    free = True  # Ray keeps the queue

    def start(self, number: int, cell: Cell | Command, log: Path, lock: int) -> None:
        log = Path(os.path.abspath(log))
        self.running[number] = (self.task.remote(cell, log, self.command), log)

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        if not self.running:
            return []
        tasks = [task for task, _ in self.running.values()]
        ready, _ = self.ray.wait(tasks, timeout=timeout)
        ended = []
        for number, (task, log) in list(self.running.items()):
            if task in ready:
                del self.running[number]
                ended.append((number, self._code(task, log)))
        return ended

    def _code(self, task: Any, log: Path) -> int:
        try:
            return self.ray.get(task)
        except self.ray.exceptions.RayError as error:
            # Cancelled, or it died more often than it is retried.
            with open(log, "a") as file:
                print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=file)
            return 128 + signal.SIGTERM

    def stop(self, hard: bool) -> None:
        for task, _ in self.running.values():
            self.ray.cancel(task, force=hard)
