"""The Triton kernels of hmm_filter as compiled code: their sm_80 PTX is executed and compared with
NumPy in float64, and they are compiled for every architecture that is shipped."""

import pytest
from helpers import tiers
from helpers.hmm_triton import DTYPES, MODULE, SHARED, Case, check, check_halves

pytest.importorskip("triton", reason="Triton is not installed")

from helpers.triton_aot import (  # noqa: E402
    assert_within_budget,
    execute,
    kernels,
    kernels_of_examples,
)

EXECUTED = [
    ("fp32", Case("rows", 5, 3, 5, 6)),
    ("fp64", Case("rows", 9, 4, 3, 3, SHARED)),
    ("fp32", Case("rows", 3, 4, 16, 40, (True, False, False))),
    ("fp32", Case("rows", 2, 4, 20, 5)),
    ("fp32", Case("rows", 2, 3, 64, 5, SHARED)),
    ("fp32", Case("dot", 17, 3, 19, 4, SHARED)),
    ("fp64", Case("dot", 3, 3, 20, 4, SHARED)),
    ("fp32", Case("chunks", 1, 9, 5, 4, SHARED)),
    ("fp64", Case("chunks", 1, 8, 3, 4)),
    ("bf16", Case("rows", 5, 12, 5, 6)),
    ("fp16", Case("chunks", 2, 9, 5, 4, SHARED)),
    ("bf16", Case("dot", 3, 3, 20, 4, SHARED)),
]
DEFAULT = (0, 5, 7)  # one of each path

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "gfx942")
# A sample; `python -m bwt.kernels.aot --op hmm_filter` compiles every entry of the table.
# Registers and bytes of shared memory, the most of any NVIDIA architecture.
SHIPPED = {
    ("fp32", Case("rows", 64, 4096, 5, 5)): {
        "forward": (61, 0),
        "exact": (54, 0),
        "backward": (64, 128),
    },
    ("fp32", Case("rows", 64, 4096, 128, 512)): {
        "forward": (113, 1024),
        "exact": (64, 32),
        "backward": (136, 1024),
    },
    ("fp64", Case("rows", 64, 4096, 16, 27, SHARED)): {
        "forward": (121, 0),
        "exact": (54, 0),
        "backward": (254, 256),
    },
    ("fp32", Case("dot", 64, 4096, 64, 64, SHARED)): {
        "forward": (166, 5120),
        "exact": (62, 16),
        "backward": (162, 5120),
    },
    ("fp32", Case("chunks", 64, 4096, 5, 5)): {
        "forward_basis": (55, 0),
        "starts": (52, 0),
        "forward": (59, 0),
        "exact": (48, 0),
        "backward_basis": (64, 0),
        "ends": (22, 0),
        "backward": (69, 128),
    },
}
ROWS, LARGE, DOUBLE, DOT, CHUNKS = SHIPPED
COMPILED = [(*form, arch) for form in (ROWS, DOT) for arch in ARCHITECTURES]
COMPILED += [(*DOUBLE, "sm_90"), (*LARGE, "sm_100"), (*CHUNKS, "sm_80"), (*CHUNKS, "gfx942")]


def form_ids(forms):
    return ["-".join((mode, case.name, *arch)) for mode, case, *arch in forms]


def example(mode, case):
    names = ("path", "batch", "steps", "states", "symbols", "own")
    return {"mode": mode} | dict(zip(names, case, strict=True))


@pytest.fixture
def emulate(compiler, monkeypatch):
    """(call, stats by label): launchers whose kernels run as PTX."""
    from bwt.kernels import configs, hmm_filter

    stats = {}

    def run(self, device):
        stats[hmm_filter.label(self)] = execute(compiler.find(self), self)

    monkeypatch.setattr(configs.Launch, "run", run)
    return lambda name, *args, **options: getattr(hmm_filter, name)(*args, **options), stats


def test_every_kernel_is_executed_by_default():
    from bwt.kernels import aot

    executed = kernels_of_examples(MODULE, [example(*EXECUTED[i]) for i in DEFAULT])
    assert executed == kernels(aot.specialisations("hmm_filter", "sm_80").values())


@pytest.mark.parametrize(
    "mode,case",
    tiers.mark("emulated", EXECUTED, DEFAULT, unpack=True),
    ids=form_ids(EXECUTED),
)
def test_ptx(compiler, emulate, mode, case):
    call, stats = emulate
    records = compiler.get(MODULE, "sm_80", **example(mode, case))
    (check if mode in ("fp32", "fp64") else check_halves)(call, mode, case)
    assert stats.keys() == records.keys()
    for name, found in stats.items():
        assert records[name]["stack"] == records[name]["spills"] == 0, name
        # Below 64 bytes a step of a sequence is less than two sectors.
        worst = 1.1 if case.S * DTYPES[mode].itemsize >= 64 else 3
        assert found.store_sectors <= worst * found.store_sectors_ideal, name


@pytest.mark.emulated
@pytest.mark.parametrize("mode,case,arch", COMPILED, ids=form_ids(COMPILED))
def test_compiled_code_stays_within_budget(compiler, mode, case, arch):
    records = compiler.get(MODULE, arch, **example(mode, case))
    assert_within_budget(records, SHIPPED[mode, case], "hmm_filter", arch)


def test_every_entry_is_compiled_ahead_of_time():
    from bwt.kernels import aot
    from bwt.kernels.configs import TABLE, lookup

    for arch in ARCHITECTURES:
        compiled = {
            (launch.name, name.split(".")[2], launch.arguments["SP"], repr(launch.config))
            for name, launch in aot.specialisations("hmm_filter", arch).items()
        }
        for op, kernel, dtype, size, _ in TABLE:
            if op == "hmm_filter":
                [config] = lookup(op, kernel, dtype, size, arch)
                name = f"hmm_filter_{kernel.removeprefix('rows_').removeprefix('dot_')}"
                assert (name, dtype, size, repr(config)) in compiled, (kernel, dtype, size)
