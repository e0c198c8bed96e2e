"""How many kernels a training step launches, and what the host does for it.

    python benchmarks/launches.py [--cases quick-bijection] [--record]

Counted on the emulated GPU of tests/emulator/gpu, which executes no kernel of ours here: launches
do not depend on the numbers, nor on the batch, which is small. An op of torch counts as one kernel,
though some (a sort) launch more on a GPU. `host ms` is the time of the process for a step without a
graph; torch's own ops run on its CPU, so that it is an upper bound. A replay is one launch, however
many kernels it has.
"""

import argparse
import csv
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from host_time import find_device

RESULTS = Path(__file__).parent / "results" / "launches.csv"
STEPS = 3  # counted, after the first that prepare them
CASES = {
    f"{preset}-{task}{'' if model == 'transformer' else '-' + model}": (preset, task, model)
    for preset in ("quick", "paper")
    for task in ("bijection", "hmm", "recall")
    for model in ("transformer", "mamba")
    if model == "transformer" or task == "bijection"
}


class Row(NamedTuple):
    case: str
    kernels: int  # of a step
    host_ms: float
    graph_launches: int  # from the host, for a step that is replayed
    waits: int  # of the host for the device in such a step
    copies: int  # from the host to the device


def build(case: str, graph: str) -> Any:
    import torch

    from bwt import train
    from bwt.runs.presets import resolve

    preset, task, model = CASES[case]
    settings = dict(steps=50, batch_size=4, average=0.0, device="cuda", graph=graph)
    return train.build_step(resolve(task, model, preset, settings=settings), torch.device("cuda"))


def per_step(case: str, graph: str) -> tuple[Any, Any, float]:
    """(launches, counts, host seconds) of a step."""
    from emulator.gpu import device

    step = build(case, graph)
    for _ in range(5):
        step.update()
    launches, counts, start = device.launches(), device.counts(), time.process_time()
    for _ in range(STEPS):
        step.update()
    seconds = (time.process_time() - start) / STEPS

    def each(before, after):
        return type(before)(*((b - a) / STEPS for a, b in zip(before, after, strict=True)))

    return each(launches, device.launches()), each(counts, device.counts()), seconds


def measure(case: str) -> Row:
    eager, _, seconds = per_step(case, "off")
    replayed, counts, _ = per_step(case, "on")
    total = replayed.kernels + replayed.graphs
    return Row(
        case,
        round(eager.kernels),
        1e3 * seconds,
        round(total),
        counts.reads,
        counts.copies,
    )


def line(row: Row) -> list[str]:
    numbers = (row.kernels, f"{row.host_ms:.1f}", row.graph_launches, row.waits, row.copies)
    return [row.case, *(f"{x:g}" if isinstance(x, float) else str(x) for x in numbers)]


HEADER = ["case", "kernels", "host ms", "from the host, graph", "waits", "copies"]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--record", action="store_true", help=f"write {RESULTS.name}")
    arguments = parser.parse_args(argv)
    if find_device():
        sys.exit("launches.py counts on the emulated GPU; use nsys or --profile on a real one")
    rows = []
    print(" | ".join(HEADER))
    for case in arguments.cases:
        rows.append(line(measure(case)))
        print(" | ".join(rows[-1]), flush=True)
    if arguments.record:
        with open(RESULTS, "w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([HEADER, *rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
