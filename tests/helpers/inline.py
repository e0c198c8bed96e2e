"""Workers for a sweep that run its cells in this process, one after the other: fast enough to test
what a sweep does with them."""

import contextlib

from bwt.cli import main


class Inline:
    free = True
    slots = (None,)

    def __init__(self, dies=()):
        self.running = {}
        self.started = []
        self.dies = dies  # names of cells that end with exit code 9

    def start(self, number, cell, log, lock):
        words = cell.next_words()
        self.started.append(cell.name)
        to = contextlib.redirect_stdout, contextlib.redirect_stderr
        with open(log, "a") as file, to[0](file), to[1](file):
            self.running[number] = 9 if cell.name in self.dies else main(words)

    def poll(self, timeout):
        ended = list(self.running.items())
        self.running.clear()
        return ended

    def stop(self, hard):
        pass
