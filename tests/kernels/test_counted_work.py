"""The work of kernels is what kernels/counted_work.json says, and no more."""

import pytest
from bwt.kernels import roofline
from bwt.kernels.gpus import GPUS
from helpers import counted_work
from helpers.nvcc import needs_nvcc

# Quick to execute, and every kernel is in one of them.
NVCC = {"bijection_posterior": [needs_nvcc]}
CASES = [
    pytest.param(case, id=case.name, marks=NVCC.get(case.op, ()))
    for case in counted_work.CASES
    if case.quick
]


def test_every_case_was_counted():
    recorded = {(work.op, work.shape, work.mode) for work in roofline.counted()}
    assert recorded >= {(case.op, case.shape, case.mode) for case in counted_work.CASES}


@pytest.mark.emulated
@pytest.mark.parametrize("case", CASES)
def test_work_has_not_grown(case, tmp_path):
    recorded = {work.label: work._asdict() for work in roofline.counted()}
    for entry in counted_work.count(case, str(tmp_path)):
        before = recorded[roofline.Work(**entry).label]
        change = counted_work.growth(before, entry)
        assert not change, (
            f"{entry['kernel']} at {case.shape}: {change} times the work that is recorded, which "
            f"{roofline.counted_with()} compiled, and this {counted_work.versions()}; if that is "
            "meant, run `python -P tests/helpers/counted_work.py --write`"
        )


def test_the_compilers_are_recorded():
    assert roofline.counted_with().keys() == counted_work.versions().keys()


def test_growth_is_seen():
    entry = roofline.counted()[0]._asdict()
    assert counted_work.growth(entry, entry) == {}
    more = entry | {"load_sectors": 1.1 * entry["load_sectors"]}
    assert counted_work.growth(entry, more) == {"load_sectors": pytest.approx(1.1)}


def work(**changes) -> roofline.Work:
    """A launch that does next to nothing."""
    nothing = dict.fromkeys(
        ("ideal_bytes", "load_sectors", "store_sectors", "wavefronts", "instructions"), 0
    )
    few = {"grid": 1, "warps": 4, "registers": 32, "shared": 0, "warp_cycles": 1}
    names = {"op": "op", "kernel": "kernel", "shape": "", "mode": "fp32", "machine_ratio": 1.0}
    return roofline.Work(**nothing | few | names | {"pipes": {}, "operations": {}} | changes)


@pytest.mark.parametrize("gpu", GPUS)
def test_a_copy_takes_what_the_memory_takes(gpu):
    size = 1 << 30
    copy = work(ideal_bytes=2 * size, load_sectors=size // 32, store_sectors=size // 32)
    found = roofline.predict(copy, GPUS[gpu])
    assert found.limiter == "memory" and found.share == 1
    assert found.seconds == pytest.approx(2 * size / GPUS[gpu].peak.bandwidth)


@pytest.mark.parametrize(
    "limiter, changes",
    [
        ("L2", {"load_sectors": 10**9}),
        ("shared memory", {"wavefronts": 10**9}),
        ("issue", {"instructions": 10**9}),
        ("fp32", {"pipes": {"fp32": 10**9}}),
        ("fp64", {"pipes": {"fp64": 10**9}}),
        ("integers", {"pipes": {"integer": 10**9}}),
        ("special functions", {"pipes": {"special": 10**9}}),
        ("tensor cores", {"operations": {"tensor": 10**12}}),
        ("latency", {"warp_cycles": 10**6}),
    ],
)
def test_what_is_busy_longest_limits(limiter, changes):
    for gpu in GPUS.values():
        found = roofline.predict(work(**changes), gpu)
        assert found.limiter == limiter and 0 <= found.share <= 1


@pytest.mark.parametrize(
    "changes, warps",
    [
        ({}, 64),  # as many as may be resident
        ({"registers": 128}, 16),
        ({"registers": 255}, 8),
        ({"shared": 80 << 10}, 8),
        ({"warps": 16, "registers": 255}, 16),  # one block at least
    ],
)
def test_resident_warps_of_an_a100(changes, warps):
    assert roofline.predict(work(**changes), GPUS["A100"]).resident == warps


def test_blocks_that_do_not_fit_at_once_come_in_waves():
    gpu = GPUS["A100"]
    at_once = gpu.multiprocessors * roofline.resident_blocks(work(), gpu)
    seconds = [
        roofline.predict(work(grid=grid, warp_cycles=10**6), gpu).seconds
        for grid in (1, at_once, at_once + 1)
    ]
    assert seconds[0] == seconds[1] == seconds[2] / 2


def test_the_page_shows_the_tables():
    page = roofline.PAGE.read_text()
    assert roofline.fill(page) == page, "run `python -P -m bwt.kernels.roofline`"
