"""`bwt reproduce`"""

import argparse
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from bwt.cli.workers import Live, add_workers, say_unless, workers
from bwt.progress import duration
from bwt.records.results import Results
from bwt.reproduce import SCALES, Reproduction
from bwt.reproduce.plan import names
from bwt.reproduce.scales import Scale
from bwt.sweep.processes import Processes

TFLOPS = 5.0  # sustained, of fp32 on one large GPU: an assumption, not a measurement


def add_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    add = parser.add_argument
    text = "; ".join(f"{scale.name}: {scale.about}" for scale in SCALES.values())
    add("--scale", metavar="|".join(SCALES), choices=SCALES, default="laptop", help=text)
    every = dict.fromkeys(name for scale in SCALES.values() for name in names(scale))
    known = ", ".join(name for name in every if "/" not in name)
    text = f"only what these studies and tables need: {known}; STUDY/SETTING[/ROW] for a part"
    add("--only", metavar="NAME", nargs="+", default=[], help=text)
    add("--seeds", metavar="N", type=int, help="(default: those of the scale)")
    add("--runs", metavar="DIR", help="of the runs (default: runs/reproduce-SCALE)")
    text = "of the tables (default: results in that of the runs, begun with those of results/SCALE)"
    add("--out", metavar="DIR", help=text)
    add("--gather", action="store_true", help="run nothing; write the tables of what has finished")
    text = "run nothing; time some steps (laptop) or count operations (paper) and say what it costs"
    add("--estimate", action="store_true", help=text)
    text = f"--estimate at paper scale: sustained TFLOP/s of the GPU (default: {TFLOPS:g}, assumed)"
    add("--tflops", metavar="X", type=float, default=TFLOPS, help=text)
    add_workers(parser)


def run(arguments: argparse.Namespace) -> int:
    scale = SCALES[arguments.scale]
    if arguments.estimate:
        return _estimate(arguments, scale)
    words = ["bwt", "reproduce", "--scale", scale.name]
    if arguments.only:
        words += ["--only", *arguments.only]
    if arguments.seeds is not None:
        words += ["--seeds", str(arguments.seeds)]
    _check_names(scale, arguments.only)
    say = say_unless(arguments.json)
    runs = Path(arguments.runs or f"runs/reproduce-{scale.name}").resolve()
    reproduction = Reproduction(
        scale,
        runs,
        Path(arguments.out) if arguments.out else _own_results(runs, scale, say),
        workers(arguments),
        " ".join(words),
        only=tuple(arguments.only),
        seeds=arguments.seeds,
        gather=arguments.gather,
        show=Live(arguments.json),
        say=say,
    )
    results = reproduction.run()
    if arguments.json:
        print(json.dumps(results.to_json()))
    else:
        _print(results, reproduction.out)
    if reproduction.interrupted and not arguments.gather:
        say("interrupted; the same command continues it")
        return 130
    return 1 if results.faults else 0


def _own_results(runs: Path, scale: Scale, say: Callable[[str], None]) -> Path:
    """Those of a checkout are not overwritten unasked, but what is there need not be run again."""
    own, kept = runs / "results", Path("results", scale.name)
    if not own.exists() and (kept / "results.json").is_file():
        shutil.copytree(kept, own)
        say(f"{own} begins with what {kept} holds; --out {kept} adds to that itself")
    return own


def _check_names(scale: Scale, only: Sequence[str]) -> None:
    for name in only:
        if name not in names(scale):
            known = ", ".join(known for known in names(scale) if "/" not in known)
            raise ValueError(f"reproduce: the scale {scale.name} has no {name}; it has {known}")


def _print(results: Results, out: Path) -> None:
    from bwt.reproduce.page import markdown_table
    from bwt.reproduce.tables import build

    for table in build(results):
        if table.rows and table.name != "commands":
            print(f"\n{table.title}\n{markdown_table(table)}")
    print(f"\nwritten to {out}/results.json, README.md and index.html")


def _estimate(arguments: argparse.Namespace, scale: Scale) -> int:
    from bwt.reproduce import cost

    if scale.preset in ("paper", "authors"):
        costs = cost.counted(scale, arguments.seeds)
        rate = arguments.tflops * 1e12
        hours = sum(costs.values()) / rate / 3600
        text = (
            f"{sum(costs.values()):.3g} floating-point operations, counted: about {hours:.0f} "
            f"hours of one GPU at {arguments.tflops:g} TFLOP/s sustained (an estimate: small "
            "models wait for launches, and evaluations are not counted)"
        )
        unit = "operations"
    else:
        costs = cost.measured(scale, arguments.seeds)
        jobs = len(Processes(arguments.jobs, arguments.threads).slots)
        seconds = sum(costs.values()) / jobs
        text = (
            f"about {duration(seconds)} with {jobs} at a time, from steps timed just now; "
            "geometry, ablation and longer lengths come on top"
        )
        unit = "core-seconds"
    if arguments.json:
        print(json.dumps({"unit": unit, "cells": costs, "total": sum(costs.values())}))
        return 0
    for name, value in costs.items():
        print(f"{name:<24}{value:>12.3g} {unit}")
    print(text)
    return 0
