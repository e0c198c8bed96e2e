"""Where many runs are computed, and the line about them in the terminal: for `sweep` and
`reproduce`."""

import argparse
import sys
from collections.abc import Callable

from bwt.sweep.processes import Processes
from bwt.sweep.sweep import Sweep, status_line
from bwt.sweep.workers import Workers


def add_workers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where it runs")
    text = "cells at a time (default: one on each GPU, or as many as the CPUs have threads for)"
    group.add_argument("--jobs", metavar="N", type=int, default=0, help=text)
    text = "CPU threads of each cell (default: 1)"
    group.add_argument("--threads", metavar="N", type=int, default=1, help=text)
    text = "run on the Ray cluster at this address (host:port, or auto); DIR on a shared disk"
    group.add_argument("--ray", metavar="ADDRESS", help=text)


def workers(arguments: argparse.Namespace) -> Workers:
    if arguments.threads < 1 or arguments.jobs < 0:
        raise ValueError("--threads must be at least 1 and --jobs at least 0")
    if arguments.ray is None:
        return Processes(arguments.jobs, arguments.threads, gpus=one_device(arguments) != "cpu")
    from bwt.cli import main
    from bwt.sweep.ray import RayTasks

    return RayTasks(arguments.ray, main, arguments.threads)


def one_device(arguments: argparse.Namespace) -> str:
    """Where all cells run; auto if they are not of one mind."""
    devices = set(getattr(arguments, "device", ["auto"]))
    return devices.pop() if len(devices) == 1 else "auto"


def say_unless(quiet: bool) -> Callable[[str], None]:
    def say(text: str) -> None:
        if not quiet:
            Live.clear()
            print(text, flush=True)

    return say


class Live:
    """One line about all cells, where a person looks."""

    def __init__(self, quiet: bool):
        self.shown = not quiet and sys.stderr.isatty()

    def __call__(self, sweep: Sweep) -> None:
        if self.shown:
            self.clear()
            print(status_line(sweep)[:150], end="", file=sys.stderr, flush=True)

    @staticmethod
    def clear() -> None:
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
