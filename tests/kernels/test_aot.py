"""The verdict on kernels compiled ahead of time."""

import pytest
from bwt.kernels import aot, configs
from helpers.triton_aot import run_python

GOOD = {"name": "k", "arch": "sm_89", "registers": 80, "stack": 0, "spills": 0, "shared": 99 << 10}


@pytest.mark.parametrize(
    "change,why",
    [
        ({}, None),
        ({"stack": 8}, "8 bytes of stack, 0 spills"),
        ({"spills": 2}, "0 bytes of stack, 2 spills"),
        ({"shared": (99 << 10) + 16}, "101392 bytes of shared memory of 101376"),
        ({"arch": "sm_90", "shared": (99 << 10) + 16}, None),
        ({"failure": "CompilationError: no"}, "CompilationError: no"),
    ],
)
def test_a_kernel_is_shipped_only_without_a_fault(change, why):
    assert aot.fault(GOOD | change) == why


def test_a_spill_that_is_known_must_not_grow():
    name, stack = next(iter(aot.KNOWN_SPILLS.items()))
    known = GOOD | {"name": name, "stack": stack, "spills": 9}
    assert aot.fault(known) is None
    assert aot.fault(known | {"stack": stack + 8}) == f"{stack + 8} bytes of stack, 9 spills"
    assert aot.fault(known | {"shared": 100 << 10}).endswith("of shared memory of 101376")
    half = known | {"name": name.replace(".fp16.", ".bf16.")}
    assert half["name"] != name and aot.fault(half) is None
    assert aot.fault(half | {"stack": stack + 8}) == f"{stack + 8} bytes of stack, 9 spills"


def test_known_spills_are_of_forms_that_exist():
    """And of such as ask for more than weights and entropy."""
    forms = aot.specialisations("attention", "sm_80")
    assert all(name in forms and name.endswith(".asked") for name in aot.KNOWN_SPILLS)


def test_the_summary_has_the_worst_of_each_architecture_and_names_every_fault():
    records = [
        GOOD | {"registers": 40},
        GOOD | {"name": "spilling", "registers": 255, "stack": 16, "shared": 12},
        {"name": "broken", "arch": "sm_90", "failure": "PTXASError: no"},
    ]
    header, ampere, hopper, *faults = aot.summarise(records).splitlines()
    columns = header.split()
    first = dict(zip(columns, ampere.split(), strict=True))
    assert first["arch"] == "sm_89" and first["kernels"] == "2" and first["faults"] == "1"
    assert (first["registers"], first["stack"], first["shared"]) == ("255", "16", str(99 << 10))
    assert dict(zip(columns, hopper.split(), strict=True))["failed"] == "1"
    assert faults == [
        "sm_89 spilling: 16 bytes of stack, 0 spills",
        "sm_90 broken: PTXASError: no",
    ]


def test_a_kernel_that_does_not_compile_is_a_record_and_not_the_end():
    record = aot.build_by_name("hmm_filter", "nonsense", "sm_80", None, True)
    assert record == {"name": "nonsense", "arch": "sm_80", "failure": "KeyError: 'nonsense'"}


@pytest.mark.emulated
@pytest.mark.parametrize("arch", configs.ARCHITECTURES)
def test_a_sample_of_all_forms_is_without_a_fault(arch):
    """A few of each architecture, other ones each; `make check-kernels` compiles all."""
    names = sorted(name for op in aot.ops() for name in aot.specialisations(op, arch))
    sample = names[23 * configs.ARCHITECTURES.index(arch) :: 199]
    done = run_python(
        *("-m", "bwt.kernels.aot", "--summary", "--jobs", "1"),
        *("--arch", arch.removeprefix("sm_"), "--match", *sample),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    row = done.stdout.splitlines()[1].split()
    assert row[:3] == [arch, str(len(sample)), "0"]


@pytest.mark.parametrize("arch", ("sm_75", "sm_90", "gfx942"))
@pytest.mark.parametrize("op", aot.ops())
def test_the_hardest_forms_have_every_configuration(op, arch):
    """And ask for most of what their kernels can be asked for."""
    forms = aot.specialisations(op, arch)
    few = aot.hardest(forms)
    assert len(few) < len(forms)

    def configurations(names):
        return {(forms[name].name, str(forms[name].config)) for name in names}

    assert configurations(few) == configurations(forms)
    assert not {name.rpartition(".")[2] for name in few} & {"plain", "captured", "every0"}


def test_a_kernel_without_a_stack_is_briefly_judged_the_same():
    name = "hmm_filter_ends.chunks.fp32.S5.V5.own"
    launch = aot.specialisations("hmm_filter", "sm_80")[name]
    long, brief = (aot.build(name, launch, "sm_80", None, brief=brief) for brief in (False, True))
    assert brief["stack"] == 0 and {key: long[key] for key in brief} == brief
    assert "instructions" in long and "instructions" not in brief


def test_an_entry_may_lift_the_compilers_own_limit_of_registers():
    entry = ("attention", "stream_keys", "fp16", 16)
    [nvidia], [amd] = (configs.lookup(*entry, arch) for arch in ("sm_80", "gfx942"))
    assert nvidia.options["maxnreg"] == nvidia.registers == 255
    assert amd == nvidia._replace(registers=None, stages=1) and "maxnreg" not in amd.options


def test_blocks_of_amd_have_at_most_four_warps_and_one_stage():
    for op in aot.ops():
        for launch in aot.specialisations(op, "gfx942").values():
            assert launch.config.warps <= 4 and launch.config.stages == 1


def test_every_architecture_has_launches_of_every_op():
    for op in aot.ops():
        for arch in configs.ARCHITECTURES:
            assert aot.specialisations(op, arch)
