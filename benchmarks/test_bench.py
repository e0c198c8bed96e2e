"""All benchmarks under pytest-benchmark, which can compare saved runs:

    python -P -m pytest benchmarks --benchmark-only -o addopts=--import-mode=importlib

(the project's own options skip benchmarks). Each provider is checked before it is timed.
"""

import importlib
from pathlib import Path

import common
import pytest

BENCHES = [
    importlib.import_module(path.stem).BENCH for path in Path(__file__).parent.glob("bench_*.py")
]
COMBINATIONS = [
    pytest.param(bench, *combination.values, id=f"{bench.op}-{combination.id}")
    for bench in BENCHES
    for combination in common.combinations(bench)
]


@pytest.mark.parametrize("bench,case,mode,provider", COMBINATIONS)
def test_speed(benchmark, bench, case, mode, provider):
    try:
        call, units = common.prepare(bench, provider, case, mode, bench.inputs(case, "cpu"), "cpu")
    except common.Unavailable as reason:
        pytest.skip(f"{provider.name} not available: {reason}")
    benchmark.group = f"{bench.op} {case.name} {mode}"
    benchmark.extra_info.update(shape=case.shape, unit=bench.unit, units=units)
    benchmark(call)
