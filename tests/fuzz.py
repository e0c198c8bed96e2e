"""Random calls against exact oracles until the time is up.

    make fuzz SECONDS=600 [SEED=0]
    python tests/fuzz.py --case KIND SEED      one case, as a failure names it

The cases run in a process of their own, so that one that kills it is named, too.
"""

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

BATCH = 500  # cases between two looks at the clock
FEWER = {"damaged": 25}  # each a command of its own


def work(kind: str, first: int, count: int) -> None:
    """Says which case comes next and what came of it, a line each."""
    from helpers.fuzz_cases import check

    for seed in range(first, first + count):
        print(json.dumps({"next": seed}), flush=True)
        try:
            check(kind, seed)
        except Exception as error:
            text = "".join(traceback.format_exception_only(error)).strip().splitlines()
            print(json.dumps({"failed": seed, "why": " ".join(text)[:300]}), flush=True)


def batch(kind: str, first: int, count: int) -> tuple[int, list[str]]:
    """How many cases were done, and a line for each failure."""
    command = [sys.executable, "-P", __file__, "--work", kind, str(first), str(count)]
    process = subprocess.run(command, capture_output=True, text=True)
    seed, done, failures = first, 0, []
    for line in process.stdout.splitlines():
        told = json.loads(line) if line.startswith("{") else {}
        if "next" in told:
            seed, done = told["next"], done + 1
        if "failed" in told:
            failures.append(f"{reproduction(kind, told['failed'])}   # {told['why']}")
    if process.returncode:
        last = (process.stderr.strip().splitlines() or ["no word"])[-1]
        failures.append(f"{reproduction(kind, seed)}   # exit {process.returncode}: {last}")
    return done, failures


def reproduction(kind: str, seed: int) -> str:
    return f"python tests/fuzz.py --case {kind} {seed}"


def fuzz(kinds: list[str], seconds: float, seed: int) -> int:
    end, calls, failed = time.monotonic() + seconds, Counter(), 0
    while (left := end - time.monotonic()) > 0:
        for kind in kinds:
            done, failures = batch(kind, seed, FEWER.get(kind, BATCH))
            calls[kind] += done
            failed += len(failures)
            for line in failures:
                print(line, flush=True)
        seed += BATCH
        print(f"{calls.total():>8} cases, {failed} failed, {max(0, left):.0f} s left", flush=True)
    width = max(map(len, kinds))
    print("\n".join(f"{kind:<{width}}  {calls[kind]:>8}" for kind in kinds))
    print(f"fuzz: {calls.total()} cases, {failed} failed")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0, help="of the first case of each kind")
    parser.add_argument("--case", nargs=2, metavar=("KIND", "SEED"))
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    here = Path(__file__).parent
    sys.path.insert(0, str(here))
    from helpers.fuzz_cases import KINDS, check

    if options.work:
        kind, first, count = options.work
        work(kind, int(first), int(count))
        return 0
    if options.case:
        check(options.case[0], int(options.case[1]))
        print(f"{' '.join(options.case)}: as it should be")
        return 0
    return fuzz(sorted(KINDS), options.seconds, options.seed)


if __name__ == "__main__":
    sys.exit(main())
