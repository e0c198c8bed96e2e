"""Speed of training on a machine that other processes use.

    python benchmarks/busy.py                   the quick bijection, idle and beside 3 processes
    python benchmarks/busy.py --others 8 --steps 300

Trains with the `bwt` command, alone and beside processes that compute all the time, with one
thread, with the threads that the command chooses, and with two threads that spin as libgomp does
by default. Fails if the command's choice keeps less than a quarter of the idle single-thread rate.
Start it on an idle machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SHARE = 0.25  # of the idle single-thread rate
SPIN_BY_DEFAULT = {"GOMP_SPINCOUNT": "300000", "KMP_BLOCKTIME": "200"}
WAYS: dict[str, tuple[list[str], dict[str, str]]] = {
    "1 thread": (["--threads", "1"], {}),
    "as chosen": ([], {}),
    "2 threads": (["--threads", "2"], {}),
    "2 threads, spinning": (["--threads", "2"], SPIN_BY_DEFAULT),
}


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Run processes that compute all the time."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()


def rate(steps: int, flags: list[str], variables: dict[str, str]) -> float:
    """Return the steps per second of a run of the quick bijection preset."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        words = ["bwt", "train", "bijection", "--steps", str(steps), "--evaluations", "1"]
        words += ["--eval-sequences", "64", "--device", "cpu", "--out", str(out), "--json"]
        subprocess.run(
            [sys.executable, "-P", "-m", *words, *flags],
            env={**os.environ, **variables},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    first, last = next(row for row in rows if row["step"] >= steps // 4), rows[-1]
    return (last["step"] - first["step"]) / (last["seconds"] - first["seconds"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--others", type=int, default=3, help="busy processes (default: 3)")
    parser.add_argument("--steps", type=int, default=120, help="of each run (default: 120)")
    arguments = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    print(f"{'steps per second':<22}{'idle':>8}{f'beside {arguments.others}':>12}")
    for count in (0, arguments.others):
        with busy(count):
            for name, (flags, variables) in WAYS.items():
                found[name].append(rate(arguments.steps, flags, variables))
    for name, (idle, loaded) in found.items():
        print(f"{name:<22}{idle:>8.1f}{loaded:>12.1f}")
    kept = found["as chosen"][1] / found["1 thread"][0]
    print(f"as chosen keeps {kept:.0%} of the idle single-thread rate, {SHARE:.0%} are required")
    return 0 if kept >= SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
