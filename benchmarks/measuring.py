"""Measures the providers of a benchmark, group by group, each with a check before and after."""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import import_module
from typing import Any

import common
import records
import summary
import timing
import torch
from common import Bench, Case, Provider, Unavailable, Wrong, per_unit
from progress import Progress
from timing import Call


@dataclass
class Report:
    rows: list[dict] = field(default_factory=list)
    unavailable: dict[str, list[str]] = field(default_factory=dict)  # "provider: reason" -> cases
    wrong: list[str] = field(default_factory=list)

    def note_unavailable(self, provider: str, reason: str, case: str) -> None:
        cases = self.unavailable.setdefault(f"{provider} not available: {reason}", [])
        if case not in cases:
            cases.append(case)


class Clock:
    """How calls are timed on a device, with caches warm or cold."""

    def __init__(self, device: str, cold: bool):
        self.device, self.cold = device, cold

    @cached_property
    def figures(self):
        """gpu_rows.Figures of a GPU. Imported only then: its clocks are in bwt, which is an older
        one where a commit is compared with the present."""
        if self.device == "cpu":
            return None
        return import_module("gpu_rows").Figures(import_module("clocks").Gpu(self.device))

    @cached_property
    def clock(self) -> timing.Clock:
        if self.figures:
            clocks = import_module("clocks")
            clock = clocks.cold_seconds if self.cold else clocks.warm_seconds
            return partial(clock, self.figures.gpu)
        return timing.cold_clock(timing.evictor()) if self.cold else timing.cpu_seconds

    @property
    def pace(self) -> timing.Pace:
        if self.figures:
            return timing.GPU
        return timing.COLD if self.cold else timing.CPU

    @property
    def device_name(self) -> str:
        return self.figures.gpu.name if self.figures else records.cpu_name()

    @property
    def cache(self) -> str:
        return "cold" if self.cold else "warm"


@dataclass
class Group:
    """Measurements that are compared with each other: same case, mode, device and threads."""

    bench: Bench
    case: Case
    mode: str
    inputs: Any
    clock: Clock
    threads: int
    ready: dict[str, tuple[Call, float]] = field(default_factory=dict)

    def prepare(self, providers: list[Provider], report: Report, progress: Progress) -> None:
        for provider in providers:
            try:
                with progress.busy(f"checking {provider.name}"):
                    self.ready[provider.name] = common.prepare(
                        self.bench, provider, self.case, self.mode, self.inputs, self.clock.device
                    )
            except Unavailable as reason:
                # That a peer has no backward pass is no news in each table.
                if self.mode in provider.modes:
                    report.note_unavailable(provider.name, str(reason), self.case.name)
            except Wrong as fault:
                self.note_wrong(provider, str(fault), report, progress)

    def measure(
        self,
        providers: list[Provider],
        options: argparse.Namespace,
        report: Report,
        progress: Progress,
    ) -> list[dict]:
        self.prepare(providers, report, progress)
        calls = {name: call for name, (call, _) in self.ready.items()}
        budget = (options.repeats, options.seconds, self.clock.pace)
        samples = timing.interleaved(calls, self.clock.clock, *budget, progress.say)
        kept = [provider for provider in providers if provider.name in self.ready]
        rows = [self._row(provider, samples[provider.name]) for provider in kept]
        if figures := self.clock.figures:
            figures.add(self.bench, self.case, rows, calls, options)
        if options.memory:
            measured = figures.gpu.peak_bytes if figures else timing.peak_bytes
            for row in rows:
                peak = measured(calls[row["provider"]])
                row["peak_mb"] = None if peak is None else peak / 1e6
        right = self.still_right(kept, report, progress)
        rows = [row for row in rows if row["provider"] in right]
        self._add_ratios(rows)
        return rows

    def still_right(
        self, providers: list[Provider], report: Report, progress: Progress
    ) -> set[str]:
        """Without those whose results are wrong after the timing."""
        right = set()
        for provider in providers:
            try:
                if not provider.bound:
                    with progress.busy(f"checking {provider.name} again"):
                        common.compare(
                            self.bench,
                            self.case,
                            self.mode,
                            self.inputs,
                            *self.ready[provider.name],
                        )
                right.add(provider.name)
            except Wrong as fault:
                self.note_wrong(provider, f"{fault} (after the timing)", report, progress)
        return right

    def note_wrong(
        self, provider: Provider, fault: str, report: Report, progress: Progress
    ) -> None:
        at = f"{self.case.name} {self.mode} {self.clock.device}, {self.threads} thread(s)"
        report.wrong.append(f"WRONG {provider.name}: {at}: {fault}")
        progress.tell(report.wrong[-1])

    def _row(self, provider: Provider, samples: list[float]) -> dict:
        time = timing.quantiles(samples)
        return {
            "op": self.bench.op,
            "case": self.case.name,
            "provider": provider.name,
            "mode": self.mode,
            "shape": self.case.shape,
            "dtype": self.case.dtype,
            "device": self.clock.device_name,
            "threads": self.threads,
            "cache": self.clock.cache,
            "backend": provider.backend,
            "unit": self.bench.unit,
            "units": self.ready[provider.name][1],
            "median_ms": time.median * 1e3,
            "p20_ms": time.p20 * 1e3,
            "p80_ms": time.p80 * 1e3,
            "samples_ms": [sample * 1e3 for sample in samples],
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


def groups(bench: Bench, options: argparse.Namespace, progress: Progress) -> Iterator[Group]:
    """All that are asked for, one after another, each with its threads set."""
    for device in options.device:
        clock = Clock(device, options.cold)
        # The host's threads do nothing for a kernel on the GPU.
        thread_counts = options.threads if device == "cpu" else [1]
        cases = [case for case in options.cases if device in case.devices]
        for number, case in enumerate(cases, 1):
            progress.at(f"case {number} of {len(cases)}, {case.name}")
            with progress.busy("making its inputs"):
                inputs = bench.inputs(case, device)
            for mode in case.modes:
                for threads in thread_counts:
                    place = f"{case.name} {mode}, {device}, {threads} thread(s)"
                    progress.at(f"case {number} of {len(cases)}, {place}")
                    with timing.pinned_threads(threads):
                        yield Group(bench, case, mode, inputs, clock, threads)


def measure(
    bench: Bench,
    options: argparse.Namespace,
    progress: Progress,
    show: Callable[[list[dict]], None] = lambda rows: None,
) -> Report:
    """`show` gets the rows of each group as soon as they are there."""
    report = Report()
    fixed = records.environment(bench.packages, timing.fix_allocator(options.pages))
    for group in groups(bench, options, progress):
        served = [p for p in options.providers if group.clock.device in p.devices]
        rows = group.measure(served, options, report, progress)
        rows = [{**row, **fixed} for row in rows]
        report.rows += rows
        show(rows)
    if not torch.cuda.is_available():
        for provider in options.providers:
            if not set(provider.devices) & set(options.device):
                report.note_unavailable(provider.name, "torch sees no CUDA device", "all cases")
    return report


def table_of(bench: Bench, options: argparse.Namespace) -> summary.Table:
    cases = [summary.name_of(case.name, mode) for case in options.cases for mode in case.modes]
    baselines = [bench.baseline, *(case.baseline for case in options.cases if case.baseline)]
    return summary.Table(cases, [p.name for p in options.providers], bench.unit, baselines)
