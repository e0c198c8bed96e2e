"""The tuner: every kernel at the sizes people use, nothing wrong is timed, tables per device."""

import json
import os

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")
from bwt.kernels import configs, tuned  # noqa: E402

from bwt.cli import main  # noqa: E402
from bwt.tuning import checks, device, search, subjects  # noqa: E402

TUNER = "helpers.tune_here"  # called in the interpreting process
SCAN = ("selective_scan", "forward", "fp32", 4)
EVERY_KERNEL = [
    ("attention", "short_forward", "fp32", 16),
    ("attention", "short_backward", "fp32", 16),
    ("attention", "blocks_backward", "fp32", 16),
    *(
        ("attention", f"stream_{name}", "fp32", 16)
        for name in ("forward", "weights", "offset", "keys", "queries")
    ),
    ("hmm_filter", "rows_forward", "fp32", 8),
    ("hmm_filter", "rows_backward", "fp32", 8),
    ("hmm_filter", "dot_forward", "fp32", 32),
    ("hmm_filter", "dot_backward", "fp32", 32),
    ("hmm_filter", "starts", "fp32", 8),
    ("hmm_filter", "ends", "fp32", 8),
    ("selective_scan", "forward", "fp32", 16),
    ("selective_scan", "backward", "fp32", 16),
]

CHECKED = ("short_forward", "stream_forward", "rows_forward", "dot_forward", "starts", "forward")


@pytest.fixture
def devices(monkeypatch, tmp_path):
    """A folder of tables of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tuned.forget()
    yield tmp_path / "bwt/devices"
    tuned.forget()


def test_without_a_gpu_it_says_so(capsys):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert main(["tune"]) == 2
    said = capsys.readouterr().err
    assert "times kernels on a GPU" in said and said.count("\n") == 1


@pytest.mark.parametrize(
    "words, complaint",
    [
        (["gelu"], "no op 'gelu'; choose from attention, hmm_filter, selective_scan"),
        (["--kernel", "short"], "no kernel 'short'; choose from short_forward"),
        (["--size", "17"], "no size 17; choose from 16, 32"),
        (["attention", "--kernel", "ends"], "no kernel is of all the names given"),
    ],
)
def test_what_is_not_there_cannot_be_tuned(words, complaint, capsys):
    assert main(["tune", *words]) == 2
    assert complaint in capsys.readouterr().err


def test_every_kernel_of_the_table_is_covered():
    kinds = {(key.op, key.kernel) for key in subjects.keys(quick=False)}
    assert kinds == {key[:2] for key in configs.TABLE} == {key[:2] for key in EVERY_KERNEL}


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90", "sm_100"])
def test_works_are_those_people_have_and_use_the_config_they_tune(arch):
    """Otherwise a candidate would be timed by a launch that does not run it."""
    names = set()
    for subject in subjects.subjects(subjects.keys(quick=False), arch):
        config = configs.lookup(*subject.key, arch)[subject.index]
        for work in subject.works:
            assert work.example(arch).config == config, (subject.name, work.name)
            names.add((subject.key.op, work.name))
    assert {("attention", f"T{length}") for length in (37, 39, 93, 64, 128)} <= names
    assert ("selective_scan", "L93") in names and ("hmm_filter", "rows-S5-T50") in names


def test_quick_is_what_the_presets_train_with():
    quick, every = (subjects.keys(quick=q) for q in (True, False))
    assert set(quick) < set(every) and {key.op for key in quick} == {key.op for key in every}
    assert search.estimate(subjects.subjects(quick, "sm_80")) < search.estimate(
        subjects.subjects(every, "sm_80")
    )


@pytest.mark.parametrize("key", EVERY_KERNEL, ids=lambda key: "-".join(map(str, key)))
def test_neighbours_differ_in_one_value_and_keep_the_entrys_place(key):
    for subject in subjects.subjects([subjects.Key(*key)], "sm_80"):
        config = configs.lookup(*key, "sm_80")[subject.index]
        found = list(subjects.neighbours(subject, config))
        assert found and config not in found
        for other in found:
            changed = [name for name in config.tiles if config.tiles[name] != other.tiles[name]]
            others = (config.warps != other.warps) + (config.stages != other.stages)
            assert len(changed) + others == 1
            assert not ("PACK" in config.tiles and "BS" in changed)


@pytest.mark.parametrize("key", EVERY_KERNEL, ids=lambda key: "-".join(map(str, key)))
def test_the_check_runs_each_kernel_and_its_launch_can_be_timed(interpreter, key):
    """Interpreted, with the present config. Forward and backward of an op have one check."""
    check = key[1] in CHECKED
    names = interpreter.call(TUNER, "check_and_time_once", key, check)
    assert set(names) == {f"{key[0]}_{key[1].removeprefix('rows_').removeprefix('dot_')}"}


def test_flow(interpreter, tmp_path):
    """From 4 warps the search goes to 2, where its clock is fastest, and writes the table."""
    said, entries, text, launches = interpreter.call(TUNER, "flow", [SCAN], str(tmp_path))
    [(tiles, warps, stages, _)] = entries[SCAN]
    assert (warps, stages) == (2, 1) and tiles == {"CH": 8, "BE": 128, "NR": 1}
    assert set(launches) == {"selective_scan_forward"}
    assert said[0].startswith("1/1 selective_scan forward fp32 4 (L5), about ")
    assert "chosen" in said[-1] and "1.20 times as fast" in said[-1]
    document = json.loads(text)
    assert document["device"] == "NVIDIA Test 1" and document["architecture"] == "sm_80"
    [entry] = document["entries"]
    assert entry["configs"] == [{"tiles": tiles, "warps": 2, "stages": 1, "registers": None}]


@pytest.mark.parametrize("fault,words", [("wrong", "wrong at L5"), ("refused", "out of resource")])
def test_what_is_wrong_or_does_not_compile_is_reported_and_not_timed(
    interpreter, tmp_path, fault, words
):
    """The present config, of 4 warps, has the fault: it is left as it is."""
    said, entries, _, launches = interpreter.call(TUNER, "flow", [SCAN], str(tmp_path), fault=fault)
    assert launches == []
    assert any(words in line and "the present one" in line for line in said)
    [(_, warps, _, _)] = entries[SCAN]
    assert warps == 4


@pytest.mark.slow
def test_a_candidate_at_fault_is_skipped(interpreter, tmp_path):
    """Backward starts from 8 warps; 4 are at fault though the clock would prefer them."""
    key = ("selective_scan", "backward", "fp32", 4)
    said, entries, _, _ = interpreter.call(
        TUNER, "flow", [key], str(tmp_path), best=4, fault="refused"
    )
    assert any("warps4" in line and "skipped: fails at L5" in line for line in said)
    [(_, warps, _, _)] = entries[key]
    assert warps == 8


@pytest.mark.slow
def test_the_command_itself(interpreter, tmp_path):
    """With a device, its clock and its name pretended, and one entry."""
    code, text, table = interpreter.call(TUNER, "command", str(tmp_path), SCAN)
    lines = text.splitlines()
    assert code == 0 and lines[0].startswith("NVIDIA Test 1: 1 configs to tune, about ")
    assert lines[-1].startswith(f"kept in {tmp_path}/bwt/devices/Test-1.json")
    assert json.loads(table)["entries"][0]["op"] == "selective_scan"


@pytest.mark.slow
def test_a_dry_run_keeps_nothing(interpreter, tmp_path):
    code, text, table = interpreter.call(
        TUNER, "command", str(tmp_path), SCAN, "--dry-run", "--json"
    )
    assert code == 0 and table == "" and json.loads(text)["entries"]


def test_out_of_time_leaves_whole_entries(interpreter, tmp_path):
    said, entries, text, _ = interpreter.call(TUNER, "flow", [SCAN], str(tmp_path), limit=-1.0)
    assert entries == {} and text == "" and said[-1].startswith("out of time: 1 of 1")


def test_spills_are_skipped(monkeypatch):
    class Compiled:
        n_spills = 12

    class Launch:
        def run(self, device):
            return Compiled()

    monkeypatch.setattr(subjects, "with_memory", lambda launch, device: Launch())
    work = subjects.Work("x", check=lambda call: None, example=lambda arch: None)
    subject = subjects.Subject(subjects.Key(*SCAN), 0, (work,))
    machine = search.Machine("sm_80", "cpu", print, lambda call: pytest.fail("timed"))
    config = configs.lookup(*SCAN, "sm_80")[0]
    with pytest.raises(search.Skipped, match="spills 12 registers at x"):
        search.seconds(subject, config, machine)


def test_a_try_leaves_the_table_as_it_was():
    before = dict(configs.TABLE)
    subject = subjects.subjects([subjects.Key(*SCAN)], "sm_80")[0]
    config = configs.lookup(*SCAN, "sm_80")[0]._replace(warps=16)
    with pytest.raises(ZeroDivisionError), search.trying(subject, "sm_80", config):
        assert configs.lookup(*SCAN, "sm_80") == (config,)
        assert configs.lookup(*SCAN, "sm_90") != (config,)
        raise ZeroDivisionError
    assert before == configs.TABLE


class TestTables:
    CONFIG = configs.C(8, 3, CH=16, BE=4, NR=1)

    def test_the_order_is_device_architecture_any(self, devices, monkeypatch):
        key = subjects.Key(*SCAN)
        any_entry = configs.lookup(*key, "sm_90")
        device.write("NVIDIA A100-SXM4-80GB", "sm_80", {key: (self.CONFIG,)})
        assert [path.name for path in devices.iterdir()] == ["A100-SXM4-80GB.json"]
        assert configs.lookup(*key, "sm_80:A100-SXM4-80GB") == (self.CONFIG,)
        assert configs.lookup(*key, "sm_80") == any_entry
        assert configs.lookup(*key, "sm_80:H100") == any_entry
        other = ("selective_scan", "forward", "fp64", 4)
        assert configs.lookup(*other, "sm_80:A100-SXM4-80GB") == configs.lookup(*other, "sm_80")

    def test_bf16_is_served_by_a_devices_fp16(self, devices):
        config = configs.C(4, 2, BT=32, BS=32)
        key = subjects.Key("attention", "stream_forward", "fp16", 32)
        device.write("NVIDIA X", "sm_80", {key: (config,)})
        assert configs.lookup(*key._replace(mode="bf16"), "sm_80:X") == (config,)

    def test_a_device_is_asked_for_its_table(self, devices, monkeypatch):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda index=None: "NVIDIA X 1")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 0))
        cuda = torch.device("cuda:0")
        assert configs.architecture(cuda) == "sm_80"
        device.write("NVIDIA X 1", "sm_80", {subjects.Key(*SCAN): (self.CONFIG,)})
        assert configs.architecture(cuda) == "sm_80:X-1"
        assert configs.architecture(torch.device("cpu")) == "sm_80"

    def test_a_try_is_not_hidden_by_the_devices_own_table(self, devices, monkeypatch):
        """A launcher asks for the architecture itself, also while its device is tuned again."""
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda index=None: "NVIDIA X 1")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 0))
        cuda, key = torch.device("cuda:0"), subjects.Key(*SCAN)
        device.write("NVIDIA X 1", "sm_80", {key: (self.CONFIG,)})
        subject = subjects.subjects([key], "sm_80")[0]
        tried = self.CONFIG._replace(warps=2)
        with search.trying(subject, "sm_80", tried):
            assert configs.lookup(*key, configs.architecture(cuda)) == (tried,)
        assert configs.lookup(*key, configs.architecture(cuda)) == (self.CONFIG,)

    def test_writing_again_keeps_other_entries(self, devices):
        first, second = subjects.Key(*SCAN), subjects.Key("selective_scan", "backward", "fp32", 4)
        device.write("X", "sm_80", {first: (self.CONFIG,), second: (self.CONFIG,)})
        changed = self.CONFIG._replace(warps=1)
        device.write("X", "sm_80", {first: (changed,)})
        assert configs.lookup(*first, "sm_80:X") == (changed,)
        assert configs.lookup(*second, "sm_80:X") == (self.CONFIG,)

    def test_writing_is_all_or_nothing(self, devices, monkeypatch):
        key = subjects.Key(*SCAN)
        path = device.write("X", "sm_80", {key: (self.CONFIG,)})
        before = path.read_bytes()

        def fail(source, target):
            raise OSError("no")

        monkeypatch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="no"):
            device.write("X", "sm_80", {key: (self.CONFIG._replace(warps=1),)})
        assert path.read_bytes() == before and list(devices.iterdir()) == [path]

    def test_a_table_that_is_none_is_named(self, devices):
        devices.mkdir(parents=True)
        (devices / "X.json").write_text('{"entries": [{"op": "attention"}]}')
        with pytest.raises(ValueError, match=r"X.json is not a table of bwt tune"):
            configs.lookup(*SCAN, "sm_80:X")

    @pytest.mark.parametrize(
        "name,slug",
        [
            ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
            ("NVIDIA H100 80GB HBM3", "H100-80GB-HBM3"),
            ("NVIDIA GeForce RTX 4090", "GeForce-RTX-4090"),
            ("AMD Instinct MI300X/../x", "AMD-Instinct-MI300X-..-x"),
        ],
    )
    def test_slugs(self, name, slug):
        assert tuned.slug(name) == slug and "/" not in slug


class TestChecks:
    """A wrong kernel is not passed: one value of each output is moved, by little."""

    @staticmethod
    def spoiled(interpreter, op, place):
        def call(function, *tensors, **options):
            found = interpreter.call(f"bwt.kernels.{op}", function, *tensors, **options)
            if function.endswith(place[0]):
                x = found[place[1]]
                x[(0,) * x.ndim] += 0.02 * x.abs().max().clamp(min=1.0)
            return found

        return call

    CALLS = {
        "attention": lambda call: checks.attention(call, "fp32", (1, 2, 9, 16)),
        "hmm_filter": lambda call: checks.hmm_filter(
            call, "fp32", "rows", (3, 6, 5, 4), (True, False, True)
        ),
        "selective_scan": lambda call: checks.selective_scan(call, "fp32", (2, 20, 3, 4)),
    }

    @pytest.mark.parametrize("op", CALLS)
    def test_what_is_right_passes(self, interpreter, op):
        self.CALLS[op](lambda *a, **k: interpreter.call(f"bwt.kernels.{op}", *a, **k))

    @pytest.mark.parametrize(
        "op, place",
        [
            *(("attention", ("_forward", i)) for i in range(4)),
            *(("attention", ("_backward", i)) for i in range(3)),
            *(("hmm_filter", ("_forward", i)) for i in range(3)),
            *(("hmm_filter", ("_backward", i)) for i in range(3)),
            ("selective_scan", ("_forward", 0)),
            *(("selective_scan", ("_backward", i)) for i in range(6)),
        ],
    )
    def test_what_is_wrong_does_not(self, interpreter, op, place):
        with pytest.raises(AssertionError, match="is off by"):
            self.CALLS[op](self.spoiled(interpreter, op, place))
