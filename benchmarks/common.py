"""The harness of all benchmarks.

A benchmark file declares a Bench (cases, providers, inputs, check) and ends with
`sys.exit(common.main(BENCH))`. No provider is timed before its results have been compared with
bwt.reference at the very shapes and thread count of the timing, and once more after it; one that
fails is shown as WRONG, gets no row, and makes the exit code 1.
"""

import argparse
import fnmatch
import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import arguments
import clocks
import gpu_rows
import records
import summary
import timing
import torch
from summary import FORWARD, Claim, per_unit
from timing import Call

FULL = "forward+backward"
DEVICES = ("cpu", "cuda")
INSTALL_HINT = "pip install -e '.[bench]'"


class Unavailable(Exception):
    """This provider cannot serve this case here; the message says why."""


class Wrong(Exception):
    """This provider's results do not agree with the reference."""


@dataclass(frozen=True, eq=False)
class Case:
    name: str
    shape: dict[str, Any]
    modes: tuple[str, ...] = (FORWARD,)
    dtype: str = "float32"
    units: float = 1  # units of work in one call; times are compared per unit
    baseline: str | None = None  # the bench's, if None
    devices: tuple[str, ...] = ("cpu", "cuda")


@dataclass(frozen=True)
class Provider:
    """`make(case, mode, inputs, device)` returns the call to time and the units it handles; it
    imports what it needs and raises Unavailable or ImportError if it cannot. What is compared with
    the reference is what the call returns, or its method `result()` if it has one."""

    name: str
    make: Callable[[Case, str, Any, str], tuple[Call, float]]
    devices: tuple[str, ...] = ("cpu", "cuda")
    modes: tuple[str, ...] = (FORWARD, FULL)
    backend: str = ""  # of bwt, if it is one
    bound: bool = False  # a limit of the machine: computes nothing, is not checked


@dataclass(frozen=True)
class Bench:
    op: str
    cases: list[Case]
    providers: list[Provider]
    inputs: Callable[[Case, str], Any]  # (case, device), outside the timed region
    check: Callable[[Case, str, Any, Any, float], str | None]  # see `prepare`; returns the fault
    baseline: str
    unit: str = "call"
    claims: tuple[Claim, ...] = ()
    notes: Callable[[list[dict]], str] | None = None  # rows -> text below the table
    plot: Callable[[list[dict], str], None] | None = None
    plot_help: str = ""
    packages: tuple[str, ...] = ()  # peers whose versions belong in the rows
    # Of a case and mode: floating-point operations, and bytes that must be read or written.
    operations: Callable[[Case, str], float] | None = None
    traffic: Callable[[Case, str], float] | None = None


@dataclass
class Report:
    rows: list[dict] = field(default_factory=list)
    unavailable: dict[str, list[str]] = field(default_factory=dict)  # "provider: reason" -> cases
    wrong: list[str] = field(default_factory=list)

    def note_unavailable(self, provider: str, reason: str, case: str) -> None:
        cases = self.unavailable.setdefault(f"{provider} not available: {reason}", [])
        if case not in cases:
            cases.append(case)


def write_bound(name: str, shapes: Callable[[Case], list[tuple[int, ...]]]) -> Provider:
    """The time to write a case's outputs to memory and do nothing else."""

    def make(case, mode, inputs, device):
        dtype = getattr(torch, case.dtype)
        return timing.write_call(shapes(case), dtype, device), case.units

    return Provider(name, make, modes=(FORWARD,), bound=True)


def gemm_bound(name: str, operations: Callable[[Case, str], float]) -> Provider:
    """The time a case's floating-point operations take at the speed of torch.mm in float32. One
    large product is timed and stands for as many units as it has operations for."""

    def make(case, mode, inputs, device):
        call, done = timing.gemm_call(device)
        return call, case.units * done / operations(case, mode)

    return Provider(name, make, bound=True)


def prepare(
    bench: Bench, provider: Provider, case: Case, mode: str, inputs: Any, device: str
) -> tuple[Call, float]:
    """The provider's call, after its results have been checked.

    Raises:
        Unavailable, Wrong: with the reason.
    """
    if mode not in provider.modes:
        raise Unavailable(f"has no {mode}")
    try:
        call, units = provider.make(case, mode, inputs, device)
    except ImportError as error:
        raise Unavailable(f"{error}; {INSTALL_HINT}") from error
    if not provider.bound:
        compare(bench, case, mode, inputs, call, units)
    return call, units


def compare(bench: Bench, case: Case, mode: str, inputs: Any, call: Call, units: float) -> None:
    """Raises Wrong where results do not agree with the reference."""
    try:
        fault = bench.check(case, mode, inputs, getattr(call, "result", call)(), units)
    except Exception as error:  # any failure of the code under test is its result
        fault = f"{type(error).__name__}: {error}"
    if fault:
        raise Wrong(fault)


def combinations(bench: Bench, device: str = "cpu") -> list:
    """(case, mode, provider) as pytest parameters with readable ids."""
    import pytest

    return [
        pytest.param(case, mode, provider, id=f"{case.name}-{mode}-{provider.name}")
        for case in bench.cases
        for mode in case.modes
        for provider in bench.providers
        if device in provider.devices and mode in provider.modes
    ]


def measure(bench: Bench, options: argparse.Namespace, progress: Callable[[str], None]) -> Report:
    report = Report()
    fixed = records.environment(bench.packages, timing.fix_allocator(options.pages))
    for device in options.device:
        providers = [provider for provider in options.providers if device in provider.devices]
        # The host's threads do nothing for a kernel on the GPU.
        thread_counts = options.threads if device == "cpu" else [1]
        figures = None if device == "cpu" else gpu_rows.Figures(clocks.Gpu(device))
        cases = [case for case in options.cases if device in case.devices]
        for number, case in enumerate(cases, 1):
            inputs = bench.inputs(case, device)
            for mode in case.modes:
                for threads in thread_counts:
                    where = f"{number}/{len(cases)} {case.name} {mode} {device} x{threads}"
                    with timing.pinned_threads(threads):
                        group = _Group(bench, case, mode, inputs, device, threads, figures)
                        rows = group.measure(providers, options, report, where, progress)
                    report.rows += [{**row, **fixed} for row in rows]
    if not torch.cuda.is_available():
        for provider in options.providers:
            if not set(provider.devices) & set(options.device):
                report.note_unavailable(provider.name, "torch sees no CUDA device", "all cases")
    return report


@dataclass
class _Group:
    """Measurements that are compared with each other: same case, mode, device and threads."""

    bench: Bench
    case: Case
    mode: str
    inputs: Any
    device: str
    threads: int
    figures: gpu_rows.Figures | None = None  # of a GPU

    def measure(self, providers, options, report, where, progress) -> list[dict]:
        ready = {}
        for provider in providers:
            progress(f"{where}: checking {provider.name}")
            try:
                ready[provider.name] = prepare(
                    self.bench, provider, self.case, self.mode, self.inputs, self.device
                )
            except Unavailable as reason:
                # That a peer has no backward pass is no news in each table.
                if self.mode in provider.modes:
                    report.note_unavailable(provider.name, str(reason), self.case.name)
            except Wrong as fault:
                report.wrong.append(self._wrong(provider, fault))
        progress(f"{where}: timing {', '.join(ready)}")
        calls = {name: call for name, (call, _) in ready.items()}
        if self.figures:
            samples = self.figures.samples(clocks.warm_seconds, calls, options)
        else:
            budget = (options.repeats, options.seconds)
            samples = timing.interleaved(calls, timing.cpu_seconds, *budget)
        kept = [provider for provider in providers if provider.name in ready]
        rows = [self._row(p, ready[p.name][1], samples[p.name]) for p in kept]
        if self.figures:
            self.figures.add(self.bench, self.case, rows, calls, options)
        if options.memory:
            measured = self.figures.gpu.peak_bytes if self.figures else timing.peak_bytes
            for row in rows:
                peak = measured(calls[row["provider"]])
                row["peak_mb"] = None if peak is None else peak / 1e6
        rows = self._still_right(rows, kept, ready, report)
        self._add_ratios(rows)
        return rows

    def _still_right(self, rows, providers, ready, report) -> list[dict]:
        """Without those whose results are wrong after the timing."""
        right = []
        for row, provider in zip(rows, providers, strict=True):
            try:
                if not provider.bound:
                    call, units = ready[provider.name]
                    compare(self.bench, self.case, self.mode, self.inputs, call, units)
                right.append(row)
            except Wrong as fault:
                report.wrong.append(self._wrong(provider, fault) + " (after the timing)")
        return right

    def _wrong(self, provider: Provider, fault: Wrong) -> str:
        at = f"{self.case.name} {self.mode} {self.device}, {self.threads} thread(s)"
        return f"WRONG {provider.name}: {at}: {fault}"

    def _row(self, provider: Provider, units: float, samples: list[float]) -> dict:
        time = timing.quantiles(samples)
        return {
            "op": self.bench.op,
            "case": self.case.name,
            "provider": provider.name,
            "mode": self.mode,
            "shape": self.case.shape,
            "dtype": self.case.dtype,
            "device": self.figures.gpu.name if self.figures else records.cpu_name(),
            "threads": self.threads,
            "backend": provider.backend,
            "unit": self.bench.unit,
            "units": units,
            "median_ms": time.median * 1e3,
            "p20_ms": time.p20 * 1e3,
            "p80_ms": time.p80 * 1e3,
            "repeats": len(samples),
            "peak_mb": None,
            "bound": provider.bound,
        }

    def _add_ratios(self, rows: list[dict]) -> None:
        baseline = self.case.baseline or self.bench.baseline
        base = next((row for row in rows if row["provider"] == baseline), None)
        for row in rows:
            row["baseline"] = baseline if base else None
            row["ratio"] = per_unit(base) / per_unit(row) if base else None


def _parser(bench: Bench) -> argparse.ArgumentParser:
    cases, providers = ([x.name for x in items] for items in (bench.cases, bench.providers))
    threads = sorted({min(n, timing.cpu_count()) for n in (1, 2)})
    parser = arguments.Parser(
        description=f"Times {bench.op}. Every provider is checked against bwt.reference first.",
        epilog="The last line on stdout is one JSON document. "
        "Exit codes: 0, 1 if a provider is WRONG, 2 for bad arguments.",
    )
    add = parser.add_argument
    add("--cases", nargs="+", metavar="NAME", help=f"names or patterns of: {', '.join(cases)}")
    add("--providers", nargs="+", metavar="NAME", help=f"of: {', '.join(providers)}")
    present = [d for d in DEVICES if d == "cpu" or torch.cuda.is_available()]
    add("--device", nargs="+", choices=DEVICES, default=present, help="(all there are)")
    add("--without", nargs="+", default=[], metavar="NAME", help="leave out these providers")
    add(
        "--threads",
        nargs="+",
        type=arguments.positive,
        default=threads,
        help=f"CPU threads ({threads})",
    )
    add("--repeats", type=arguments.positive, default=20, help="samples of each provider (20)")
    add(
        "--seconds",
        type=arguments.seconds,
        default=2.0,
        help="for each provider and case; slower ones get fewer samples, at least 3 (2)",
    )
    add(
        "--pages",
        choices=("warm", "fresh"),
        default="warm",
        help="large CPU outputs go to memory used before (default) or to pages never touched, "
        "as in a first call",
    )
    add("--memory", action="store_true", help="measure peak memory too (recorded as peak_mb)")
    add("--record", action="store_true", help=f"put rows into {_results(bench)}")
    add("--json", action="store_true", help="print only the JSON document")
    if bench.plot:
        add("--plot", metavar="FILE.svg", help=bench.plot_help)
    return parser


def _results(bench: Bench) -> Path:
    path = records.RESULTS / f"{bench.op}.csv"
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _select(kind: str, items: list, wanted: list[str] | None) -> list:
    if wanted is None:
        return items
    names = [item.name for item in items]
    for pattern in wanted:
        if not fnmatch.filter(names, pattern):
            raise ValueError(f"no {kind} {pattern!r}; choose from {', '.join(names)}")
    return [item for item in items if any(fnmatch.fnmatch(item.name, p) for p in wanted)]


def _check_plot(path: str | None) -> None:
    # Before the measurement, not after minutes of it.
    if path is None:
        return
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError(f"--plot needs matplotlib: {INSTALL_HINT}")
    if not Path(path).resolve().parent.is_dir():
        raise ValueError(f"--plot: no folder {Path(path).resolve().parent}")


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text[:100]}", end="", file=sys.stderr, flush=True)


def main(bench: Bench, argv: list[str] | None = None) -> int:
    parser = _parser(bench)
    options = parser.parse_args(argv)
    plot = getattr(options, "plot", None)
    try:
        options.cases = _select("case", bench.cases, options.cases)
        chosen = _select("provider", bench.providers, options.providers)
        options.providers = [
            p for p in chosen if not any(fnmatch.fnmatch(p.name, no) for no in options.without)
        ]
        _check_plot(plot)
        if "cuda" in options.device and not torch.cuda.is_available():
            raise ValueError("--device cuda: torch sees no CUDA device on this machine")
    except ValueError as error:
        parser.error(str(error))
    try:
        report = measure(bench, options, _progress)
    finally:
        _progress("")
    claims = summary.judge(bench.claims, report.rows)
    if not options.json:
        print(summary.table(report.rows, bench.unit))
        if bench.notes:
            print(bench.notes(report.rows))
        figures = [gpu_rows.line(row) for row in report.rows if "cold_ms" in row]
        missing = [f"{text} ({', '.join(cases)})" for text, cases in report.unavailable.items()]
        print(*figures, *missing, *map(summary.sentence, claims), *report.wrong, sep="\n")
    if plot:
        bench.plot(report.rows, plot)
    if options.record:
        records.record(_results(bench), report.rows)
    notes = {"unavailable": report.unavailable, "wrong": report.wrong}
    print(json.dumps({"op": bench.op, "rows": report.rows, "claims": claims, **notes}))
    return 1 if report.wrong else 0
