"""What a benchmark is doing, for whoever waits: on a terminal in one line that changes, elsewhere a
line now and then, so that no run is silent for long."""

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

REDRAWN = 0.2  # seconds, on a terminal
PATIENCE = 10.0  # seconds of silence, elsewhere


class Progress:
    """`tell` prints to stdout what was found, unless `quiet`; `say` to stderr what is being done.

    Between samples `say` is cheap and nothing else runs; while something that is not timed takes
    long, `busy` has a thread that goes on saying so.
    """

    def __init__(
        self,
        quiet: bool = False,
        file: TextIO | None = None,
        now: Callable[[], float] = time.monotonic,
    ):
        self.quiet, self.file, self.now = quiet, file or sys.stderr, now
        self.terminal = self.file.isatty()
        self.where = ""
        self.begun = self.last = now()
        self.lock = threading.Lock()

    def at(self, where: str) -> None:
        """Of what `say` speaks from now on."""
        self.where, self.begun = where, self.now()

    def say(self, text: str) -> None:
        now = self.now()
        with self.lock:
            if now - self.last < (REDRAWN if self.terminal else PATIENCE):
                return
            self.last = now
            line = f"{self.where}: {text} ({now - self.begun:.0f} s)"
            if self.terminal:  # a line that is too long could not be taken back
                line = line[: shutil.get_terminal_size().columns - 1]
            start, end = ("\r\x1b[K", "") if self.terminal else ("", "\n")
            print(f"{start}{line}", end=end, file=self.file, flush=True)

    @contextmanager
    def busy(self, text: str) -> Iterator[None]:
        over = threading.Event()

        def go_on():
            while not over.wait(REDRAWN):
                self.say(text)

        self.say(text)
        thread = threading.Thread(target=go_on, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def tell(self, *lines: str) -> None:
        if self.quiet or not lines:
            return
        self.clear()
        print(*lines, sep="\n", flush=True)
        self.last = self.now()

    def clear(self) -> None:
        if self.terminal:
            with self.lock:
                print("\r\x1b[K", end="", file=self.file, flush=True)
