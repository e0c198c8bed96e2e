"""The cases of bench_bijection_posterior under pytest-benchmark, which can compare saved runs:

    python -P -m pytest benchmarks --benchmark-only -o addopts=--import-mode=importlib

(the project's own options skip benchmarks). Each provider is checked before it is timed.
"""

import common
import pytest
from bench_bijection_posterior import BENCH


@pytest.mark.parametrize("case,mode,provider", common.combinations(BENCH))
def test_speed(benchmark, case, mode, provider):
    try:
        call, units = common.prepare(BENCH, provider, case, mode, BENCH.inputs(case, "cpu"), "cpu")
    except common.Unavailable as reason:
        pytest.skip(f"{provider.name} not available: {reason}")
    benchmark.group = f"{case.name} {mode}"
    benchmark.extra_info.update(shape=case.shape, unit=BENCH.unit, units=units)
    benchmark(call)
