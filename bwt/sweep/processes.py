"""Cells as processes of this machine."""

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from bwt.sweep.cells import Cell, Command
from bwt.sweep.workers import registered_here
from bwt.threads import visible_cpus


class Processes:
    """At most `jobs` processes at a time, with `threads` each; with GPUs, one on each unless more
    jobs are asked for, which share them."""

    def __init__(self, jobs: int = 0, threads: int = 1, *, gpus: bool = True):
        places: list[str | None] = list(_gpus()) if gpus else []
        count = jobs or len(places) or max(1, visible_cpus() // threads)
        self.slots = list(itertools.islice(itertools.cycle(places or [None]), count))
        self.threads = threads
        self.running: dict[int, tuple[Cell | Command, subprocess.Popen, str | None]] = {}

    def start(self, number: int, cell: Cell | Command, log: Path, lock: int) -> None:
        words = cell.next_words()
        slot = self.slots.pop()
        visible = {} if slot is None else {"CUDA_VISIBLE_DEVICES": slot}
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(self.threads))
        with open(log, "ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "bwt", *words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, **threads, **visible, **registered_here()},
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


def _gpus() -> list[str]:
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return named.split(",")[:count] if named else [str(i) for i in range(count)]
