"""How long a kernel should take on a GPU, predicted from work that was counted without one.

counted_work.json holds what the PTX executor counted (tests/helpers/counted_work.py writes it): the
kernels' code for sm_80, executed at the shapes named there. A prediction is the time of the part of
the GPU that is busy longest; the bound is what the bytes of the tensors at the memory's bandwidth,
or the operations at their peak, would take in any case. No GPU has confirmed either. Left out are
the launch itself (some 2 microseconds), cold caches of instructions, and clocks below the boost.
"""

import json
import math
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from .gpus import GPUS, Gpu

COUNTED = Path(__file__).with_name("counted_work.json")
PAGE = Path(__file__).with_name("README.md")
MARK, END = "<!-- rooflines -->", "<!-- end -->"
SECTOR = 32  # bytes
WARP = 32
RESERVED_SHARED = 1024  # bytes of each block, taken by the driver


class Work(NamedTuple):
    """What one launch does in all."""

    op: str
    kernel: str
    shape: str
    mode: str
    grid: int
    warps: int  # of a block
    registers: int  # of a thread
    shared: int  # bytes of a block
    ideal_bytes: int  # of the distinct elements of its tensors
    load_sectors: int
    store_sectors: int
    wavefronts: int  # of shared memory
    instructions: int  # of warps, in PTX
    machine_ratio: float  # instructions of the machine for each of PTX, in the program's text
    pipes: dict[str, int]  # instructions by what executes them
    operations: dict[str, int]  # in floating point, by what executes them
    warp_cycles: int  # of one warp alone: its chain of results

    @property
    def bytes(self) -> int:
        return SECTOR * (self.load_sectors + self.store_sectors)

    @property
    def label(self) -> tuple[str, str, str, str]:
        return self.op, self.kernel, self.shape, self.mode


class Prediction(NamedTuple):
    seconds: float
    bound: float
    limiter: str
    resident: int  # warps of a multiprocessor

    @property
    def share(self) -> float:
        """Of the bound's speed."""
        return self.bound / self.seconds


def resident_blocks(work: Work, gpu: Gpu) -> int:
    registers = math.ceil(work.registers / 8) * 8 * WARP * work.warps
    limits = (gpu.blocks, gpu.warps // work.warps, gpu.REGISTERS // registers)
    by_shared = gpu.shared // (work.shared + RESERVED_SHARED)
    return max(1, min(*limits, by_shared))


def limits(work: Work, gpu: Gpu) -> dict[str, float]:
    """Seconds for which each part of the GPU is busy."""
    cycles = gpu.clock * gpu.multiprocessors  # of all, per second

    def lanes(pipe: str, width: int) -> float:
        return WARP * work.pipes.get(pipe, 0) / (width * cycles)

    waves = math.ceil(work.grid / (gpu.multiprocessors * resident_blocks(work, gpu)))
    tensor = gpu.peak.tf32 if work.mode == "tf32" else gpu.peak.tensor
    return {
        "memory": _from_memory(work) / gpu.peak.bandwidth,
        "L2": work.bytes / (gpu.l2 * gpu.clock),
        "shared memory": work.wavefronts / cycles,
        "issue": work.instructions * work.machine_ratio / (gpu.ISSUE * cycles),
        "fp32": lanes("fp32", gpu.fp32),
        "fp64": lanes("fp64", gpu.fp64),
        "integers": work.machine_ratio * lanes("integer", gpu.INTEGER),
        "special functions": lanes("special", gpu.SPECIAL),
        "tensor cores": work.operations.get("tensor", 0) / tensor,
        "latency": waves * work.warp_cycles / gpu.clock,
    }


def bound(work: Work, gpu: Gpu) -> float:
    """Seconds that nothing with these tensors and operations could undercut."""
    peaks = {
        "tensor": gpu.peak.tf32 if work.mode == "tf32" else gpu.peak.tensor,
        "fp64": gpu.peak.fp64,
    }
    arithmetic = (n / peaks.get(pipe, gpu.peak.fp32) for pipe, n in work.operations.items())
    return max(_from_memory(work) / gpu.peak.bandwidth, *arithmetic, 0.0)


def _from_memory(work: Work) -> int:
    """Bytes: each element once, and of tensors that are hardly touched no more than that."""
    return min(work.ideal_bytes, work.bytes)


def predict(work: Work, gpu: Gpu) -> Prediction:
    busy = limits(work, gpu)
    limiter = max(busy, key=busy.__getitem__)
    resident = work.warps * resident_blocks(work, gpu)
    return Prediction(busy[limiter], bound(work, gpu), limiter, resident)


@cache
def counted() -> tuple[Work, ...]:
    return tuple(Work(**entry) for entry in json.loads(COUNTED.read_text())["work"])


def counted_with() -> dict[str, str]:
    """The versions of the compilers."""
    return json.loads(COUNTED.read_text())["versions"]


COLUMNS = (
    *("kernel", "shape", "MB", "of ideal", "MFLOP"),
    *("predicted us", "% of bound", "limiter", "warps of an SM"),
)
LEFT = ("kernel", "shape", "limiter")
PLACE = "kernels/roofline.py says how"


def rows(gpu: str, ops: Collection[str] = ()) -> list[dict[str, Any]]:
    """The table of one GPU, for some ops or all."""
    found = []
    for work in counted():
        if ops and work.op not in ops:
            continue
        prediction = predict(work, GPUS[gpu])
        found.append(
            {
                "gpu": gpu,
                "op": work.op,
                "kernel": work.kernel.removeprefix(f"{work.op}_"),
                "shape": f"{work.shape} {work.mode}",
                "bytes": work.bytes,
                "ideal_bytes": work.ideal_bytes,
                "operations": sum(work.operations.values()),
                "microseconds": 1e6 * prediction.seconds,
                "share": prediction.share,
                "limiter": prediction.limiter,
                "resident_warps": prediction.resident,
            }
        )
    return found


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row as COLUMNS have it."""
    return (
        f"{row['op']} {row['kernel']}",
        row["shape"],
        _digits(row["bytes"] / 1e6),
        f"{row['bytes'] / row['ideal_bytes']:.2f}",
        _digits(row["operations"] / 1e6),
        _digits(row["microseconds"]),
        f"{100 * row['share']:.0f}",
        row["limiter"],
        str(row["resident_warps"]),
    )


def _digits(x: float) -> str:
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def render(found: list[dict[str, Any]]) -> str:
    """For a terminal: a table for each GPU, all columns as wide as they must be."""
    table = {gpu: [cells(row) for row in found if row["gpu"] == gpu] for gpu in GPUS}
    lines = [COLUMNS, *(line for group in table.values() for line in group)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]

    def laid_out(line: tuple[str, ...]) -> str:
        words = (
            text.ljust(width) if column in LEFT else text.rjust(width)
            for column, text, width in zip(COLUMNS, line, widths, strict=True)
        )
        return "  ".join(words).rstrip()

    parts = [f"Predicted from work counted without a GPU ({PLACE}); no GPU has confirmed it."]
    for gpu, group in table.items():
        if group:
            peak = GPUS[gpu].peak
            title = f"{gpu}: {peak.bandwidth / 1e12:.3g} TB/s, {peak.source}"
            parts += ["", title, laid_out(COLUMNS), *map(laid_out, group)]
    return "\n".join(parts)


def markdown(gpu: str) -> str:
    """The table of one GPU."""
    lines = [COLUMNS, ["---"] * len(COLUMNS), *map(cells, rows(gpu))]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def fill(page: str) -> str:
    """kernels/README.md with the tables between its marks."""
    before, _, rest = page.partition(MARK)
    _, _, after = rest.partition(END)
    tables = (f"### {gpu} (predicted)\n\n{markdown(gpu)}\n" for gpu in GPUS)
    return f"{before}{MARK}\n{chr(10).join(tables)}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text()))
