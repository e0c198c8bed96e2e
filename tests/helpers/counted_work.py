"""The work of kernels at the shapes people use, counted by executing their code.

    python -P tests/helpers/counted_work.py            prints what has changed
    python -P tests/helpers/counted_work.py --write    writes kernels/counted_work.json

A few sequences of a batch are executed and stand for all: blocks of different sequences do the same
work. Tensors hold numbers in (0.05, 1) and the symbols 0 to 3; no sequence is marked as delicate.
"""

import argparse
import json
import sys
import tempfile
from importlib import import_module, metadata
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from emulator.ptx import Stats  # noqa: E402

ARCH = "sm_80"  # whose code the executor knows, and the other GPUs run too
ATTENTION = {"causal": True, "captured": True}


class Case(NamedTuple):
    op: str
    shape: str
    mode: str
    example: dict  # arguments of example_launches, or sizes of what nvcc compiles
    executed: dict  # sizes of the part that is executed
    quick: bool = False  # counted again by every test run

    @property
    def name(self) -> str:
        return f"{self.op}-{self.shape.replace(' ', '-')}-{self.mode}"


def attention(shape: str, mode: str, length: int, *, batch=64, heads=6, size=32, **options) -> Case:
    example = {"queries": length, "keys": length, "batch": batch, "heads": heads}
    quick = options.pop("quick", False)
    example |= {"head_size": size} | ATTENTION | options
    return Case("attention", shape, mode, example, {"batch": 1, "heads": 2}, quick)


def hmm_filter(batch: int, steps: int, executed: int = 16) -> Case:
    example = {"batch": batch, "steps": steps, "states": 5, "symbols": 5, "lengths": False}
    shape = f"B={batch} T={steps} S=5"
    return Case("hmm_filter", shape, "fp32", example, {"batch": executed}, quick=steps < 100)


def selective_scan(mode: str, states: int = 16, **options) -> Case:
    example = {"batch": 64, "steps": 93, "channels": 512, "states": states}
    shape = f"B=64 L=93 E=512 N={states}"
    return Case("selective_scan", shape, mode, example, {"batch": 1}, **options)


def bijection_posterior(symbols: int, noisy: bool) -> Case:
    """One sequence stands for all: which symbols it has decides next to nothing."""
    example = {"batch": 64, "symbols": symbols, "noisy": noisy}
    shape = f"B=64 V={symbols} K={symbols - 1}"
    mode = "fp64" if noisy else "fp32"
    return Case("bijection_posterior", shape, mode, example, {}, quick=not noisy)


# The paper's bijection (T = 37) and HMM (T = 93), and long sequences.
CASES = (
    attention("B=64 H=6 T=37 D=32", "fp32", 37),
    attention("B=64 H=6 T=37 D=32", "bf16", 37, quick=True),
    attention("B=64 H=6 T=37 D=32, nothing captured", "bf16", 37, captured=False),
    attention("B=64 H=8 T=93 D=32", "fp32", 93, heads=8),
    attention("B=64 H=8 T=93 D=32", "bf16", 93, heads=8),
    attention("B=8 H=8 T=512 D=64", "bf16", 512, batch=8, heads=8, size=64, quick=True),
    hmm_filter(64, 50),
    hmm_filter(4096, 50),
    hmm_filter(64, 512, executed=64),  # into how many pieces depends on the batch
    selective_scan("fp32", quick=True),
    selective_scan("bf16"),
    selective_scan("fp32", states=64),
    bijection_posterior(20, noisy=False),
    # V = 20 takes an hour to execute; kernels/README.md has its counts.
    *(bijection_posterior(symbols, noisy=True) for symbols in (10, 16)),
)


def count(case: Case, folder: str) -> list[dict]:
    """An entry for each launch of a call, as kernels/roofline.py reads it."""
    if case.op == "bijection_posterior":
        return [_count_compiled_by_nvcc(case, folder)]
    from bwt.kernels import aot

    from bwt.tuning.subjects import with_memory
    from helpers import triton_aot

    module = import_module(f"bwt.kernels.{case.op}")
    whole = module.example_launches(mode=case.mode, arch=ARCH, **case.example)
    few = module.example_launches(
        mode=case.mode, arch=ARCH, **case.example | case.executed | _way(module, case)
    )
    entries = []
    for name, launch in few.items():
        record = aot.build(name, launch, ARCH, folder)
        stats = triton_aot.execute(record, with_memory(launch, "cpu"), timed=True)
        grid, tensors = whole[name].grid, whole[name].arguments.values()
        tensors = [x for x in tensors if isinstance(x, torch.Tensor)]
        ideal = sum(min(x.nbytes, x.untyped_storage().nbytes()) for x in tensors)
        entries.append(_entry(case, name, grid, ideal, grid / launch.grid, record, stats))
    return entries


def _count_compiled_by_nvcc(case: Case, folder: str) -> dict:
    """With the blocks and the shared memory that csrc/cuda/bijection_posterior gives an A100."""
    from emulator import bijection_cuda

    from helpers import nvcc
    from helpers.bijections import draw_channel

    batch, symbols, noisy = (case.example[name] for name in ("batch", "symbols", "noisy"))
    rng = np.random.default_rng(11)
    keys = rng.permutation(symbols)[None, :-1]
    values = rng.integers(symbols, size=keys.shape)
    if noisy:
        warps, in_shared = 4 if symbols <= 10 else 8, symbols <= 16
        options = {"in_shared": in_shared, "blocks": 1, "threads": 32 * warps, "timed": True}
        channel = draw_channel(rng, symbols).numpy()
        outputs, _, stats = bijection_cuda.run_noisy(keys, values, channel, **options)
        kernel, each, ideal = "noisy_kernelIddE", 1, channel.nbytes
        shared = bijection_cuda.shared_bytes(symbols, warps, in_shared)
    else:
        warps = each = 4  # sequences of a block
        keys, values = (np.repeat(x, each, axis=0) for x in (keys, values))
        outputs, _, stats = bijection_cuda.run_noiseless(
            keys, values, symbols, warps=warps, blocks=1, timed=True
        )
        kernel, ideal, shared = "noiseless_kernelIfE", 0, 8 * symbols * warps
    used = nvcc.usage(bijection_cuda.SOURCE, ARCH, Path(folder, "kernels.cubin"))
    [record] = [record for name, record in used.items() if kernel in name]
    ideal += (keys.nbytes + values.nbytes + sum(x.nbytes for x in outputs)) * batch // each
    record |= {"num_warps": warps, "shared": shared}
    times = batch // each
    return _entry(case, kernel.partition("_")[0], times, ideal, times, record, stats)


def _way(module, case: Case) -> dict:
    """A call of few sequences goes the way of the whole one."""
    if case.op != "hmm_filter":
        return {}
    sizes = (case.example[name] for name in ("batch", "steps", "states"))
    return {"path": module.plan(*sizes, own_transition=True).path}


def _entry(
    case: Case, name: str, grid: int, ideal: int, times: float, record: dict, stats: Stats
) -> dict:
    return {
        "op": case.op,
        "kernel": name,
        "shape": case.shape,
        "mode": case.mode,
        "grid": grid,
        "warps": record["num_warps"],
        "registers": record["registers"],
        "shared": record["shared"],
        "ideal_bytes": ideal,
        "load_sectors": round(times * stats.load_sectors),
        "store_sectors": round(times * stats.store_sectors),
        "wavefronts": round(times * stats.shared_wavefronts),
        "instructions": round(times * stats.instructions),
        "machine_ratio": round(record["instructions"] / stats.program, 3),
        "pipes": {key: round(times * n) for key, n in sorted(stats.pipes.items())},
        "operations": {key: round(times * n) for key, n in sorted(stats.operations.items()) if n},
        "warp_cycles": stats.cycles_of_a_warp,
    }


GROWTH = ("load_sectors", "store_sectors", "wavefronts", "instructions", "registers", "warp_cycles")


def growth(before: dict, now: dict) -> dict[str, float]:
    """What has become more, or less, by what factor; a processor's part that was idle is not."""
    return {
        name: now[name] / before[name]
        for name in GROWTH
        if before[name] and abs(now[name] / before[name] - 1) > 0.02
    }


def _place(entry: dict) -> int:
    """In the order of CASES; launches of one stay in theirs."""
    shapes = [(case.op, case.shape, case.mode) for case in CASES]
    return shapes.index((entry["op"], entry["shape"], entry["mode"]))


def versions() -> dict[str, str]:
    """Of the compilers, on whose code the counts depend."""
    return {"triton": metadata.version("triton")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    options = parser.parse_args()
    from bwt.kernels import roofline

    known, entries = {work.label: work._asdict() for work in roofline.counted()}, []
    for case in CASES:
        if options.only not in case.name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            for entry in count(case, folder):
                entries.append(entry)
                before = known.get(roofline.Work(**entry).label)
                change = growth(before, entry) if before else "new"
                print(f"{case.name} {entry['kernel']}: {change or 'as before'}", flush=True)
    if options.write:
        fresh = {roofline.Work(**entry).label: entry for entry in entries}
        work = (known | fresh if options.only else fresh).values()
        document = {"versions": versions(), "work": sorted(work, key=_place)}
        roofline.COUNTED.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
