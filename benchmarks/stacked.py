"""Runs of a sweep trained in one program against the same runs side by side as processes.

    python benchmarks/stacked.py --runs 8 --steps 100 --rounds 3

The quick bijection preset with so many seeds. `processes`: as many at a time as there are CPUs, a
thread each. `stacked`: one program with all CPUs. Both do the same steps; rounds alternate. The
time of training leaves out starting, which processes pay for each run; wall time is all of it.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bwt.runs.directory import RunDirectory


def sweep(runs: int, steps: int, cpus: int, stacked: bool) -> tuple[float, float]:
    """(wall seconds, seconds of training with so many CPUs at work) of all runs."""
    words = ["sweep", "bijection", "--preset", "quick", "--steps", steps, "--evaluations", 1]
    words += ["--eval-sequences", 2, "--device", "cpu", "--seed", *range(runs)]
    words += ["--stack", runs if stacked else 1]
    words += ["--jobs", 1 if stacked else cpus, "--threads", cpus if stacked else 1]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-P", "-m", "bwt", *map(str, words), "--out", folder]
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        wall = time.perf_counter() - start
        seconds = [
            RunDirectory(path.parent).read_metrics()[-1].seconds
            for path in Path(folder).glob("*/metrics.jsonl")
        ]
    assert len(seconds) == runs
    return wall, max(seconds) if stacked else sum(seconds) / cpus


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args(argv)
    cpus = len(os.sched_getaffinity(0))
    taken: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for _ in range(arguments.rounds):
        for stacked in (False, True):
            taken[stacked].append(sweep(arguments.runs, arguments.steps, cpus, stacked))
            wall, training = taken[stacked][-1]
            name = "stacked" if stacked else "processes"
            print(f"{name:<10} wall {wall:6.1f} s  training {training:6.1f} s", flush=True)
    for index, what in enumerate(("wall", "training")):
        before, after = (median(x[index] for x in taken[stacked]) for stacked in (False, True))
        print(
            f"{arguments.runs} runs stacked are {before / after:.2f} times as fast as {cpus} "
            f"processes at a time ({what} time, median of {arguments.rounds})"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
