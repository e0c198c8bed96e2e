"""What a precision costs in bits from exact Bayes: the quick presets, trained in each of them.

    python benchmarks/precision.py bijection --seeds 2

bf16 is that of `--precision bf16`: on a CPU without it, torch computes in float32 and rounds as the
hardware would. TF32 is emulated: the operands of every product, in attention too, forward and
backward, are rounded to its 10 bits; a GPU rounds the same, and sums in its own order.
"""

import argparse
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bwt import train
from bwt.runs.presets import resolve

PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "linear", "attention", "attention_backward"}
PRECISIONS = ("fp32", "tf32", "bf16")
LOW_BITS = 13  # of a float32 that TF32 lacks


def rounded(x: Tensor) -> Tensor:
    """To the nearest number of TF32; ties away from zero, as the hardware has them."""
    bits = x.contiguous().view(torch.int32)
    return (((bits + (1 << (LOW_BITS - 1))) >> LOW_BITS) << LOW_BITS).view(torch.float32)


class Emulated(TorchDispatchMode):
    """Inside, products are those of TF32."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in PRODUCTS:
            args = tuple(
                rounded(x)
                if isinstance(x, Tensor) and x.dtype == torch.float32 and x.ndim > 1
                else x
                for x in args
            )
        return func(*args, **(kwargs or {}))


def kl_of(task: str, precision: str, seed: int, steps: int | None) -> tuple[float, float]:
    """(KL, entropy error) of the quick preset in bits."""
    settings = dict(seed=seed, device="cpu", evaluations=1, precision=precision)
    if steps:
        settings["steps"] = steps
    config = resolve(task, "transformer", "quick", settings=settings)
    emulated = Emulated() if precision == "tf32" else nullcontext()
    with tempfile.TemporaryDirectory() as folder, emulated:
        evaluation = train.train(config, Path(folder) / "run").evaluation
    overall = evaluation.model.overall
    return overall["kl"].mean, overall["entropy_mae"].mean


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=("bijection", "hmm", "recall"))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, help="fewer than the preset has")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    arguments = parser.parse_args(argv)
    print(f"{'precision':<10}{'seed':>5}{'kl':>10}{'entropy_mae':>13}")
    for precision in arguments.precision:
        for seed in range(arguments.seeds):
            kl, error = kl_of(arguments.task, precision, seed, arguments.steps)
            print(f"{precision:<10}{seed:>5}{kl:>10.5f}{error:>13.5f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
