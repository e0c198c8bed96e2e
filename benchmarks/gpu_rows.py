"""What a row has on a GPU beside the time with a warm cache."""

from functools import partial
from typing import Any

import clocks
import machine
import peaks
import timing


class Figures:
    """Adds to rows of one device: time with a cold cache, launch latency, percent of its peaks.

    Bandwidth is held against the cold time, as everything comes from memory then, arithmetic
    against the warm one.
    """

    def __init__(self, gpu: clocks.Gpu):
        self.gpu = gpu
        self.peak = peaks.of(gpu.name, partial(clocks.kernel_seconds, gpu))
        self.circumstances = machine.circumstances() | {"peaks": self.peak.source}

    def add(self, bench, case, rows: list[dict], calls: dict[str, timing.Call], options) -> None:
        clock = partial(clocks.cold_seconds, self.gpu)
        budget = (options.repeats, options.seconds, timing.GPU)
        samples = timing.interleaved(calls, clock, *budget)
        for row in rows:
            name = row["provider"]
            cold = timing.quantiles(samples[name]).median
            row["cold_ms"] = cold * 1e3
            row["host_us"] = clocks.host_seconds(self.gpu, calls[name]) * 1e6
            row["gpu"] = self.circumstances
            row |= self._percents(bench, case, row, cold)

    def _percents(self, bench, case, row: dict, cold: float) -> dict[str, Any]:
        """A provider may handle fewer units in a call than the case has."""
        found: dict[str, Any] = {"bandwidth_percent": None, "arithmetic_percent": None}
        if row["bound"]:
            return found
        share = row["units"] / case.units
        if bench.traffic is not None:
            rate = share * bench.traffic(case, row["mode"]) / cold
            found["bandwidth_percent"] = 100 * rate / self.peak.bandwidth
        if bench.operations is not None:
            rate = share * bench.operations(case, row["mode"]) / (row["median_ms"] / 1e3)
            found["arithmetic_percent"] = 100 * rate / self.peak.arithmetic(row["dtype"])
        return found
