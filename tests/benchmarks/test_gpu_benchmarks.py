"""Benchmarks on a GPU, executed with one that only pretends: times, percents, checks before and
after; and the table of peaks."""

import importlib
import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.fake_gpu import US, CpuAsGpu, FakeGpu

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
SMI = "NVIDIA A100-SXM4-80GB, 575.1, 81920, 81000, 1410, 1410, 1593, [N/A], 31, 8.0\n"


@pytest.fixture(scope="module", autouse=True)
def path():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        patch.setattr(importlib.import_module("timing"), "fix_allocator", lambda pages: "system")
        yield


def module(name):
    return importlib.import_module(name)


@pytest.fixture
def gpu(monkeypatch):
    """torch says there is a GPU, and the benchmarks get one that pretends."""
    fake = FakeGpu()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(module("clocks"), "Gpu", lambda device="cuda": fake)
    monkeypatch.setattr(module("machine"), "output", lambda command: SMI)
    return fake


class TestClocks:
    def test_a_cold_call_comes_after_a_flush_and_a_warm_one_after_itself(self):
        clocks, gpu = module("clocks"), FakeGpu()
        call = gpu.kernel(warm=10 * US, cold=70 * US)
        assert clocks.cold_seconds(gpu, call, 3) == pytest.approx(70 * US)
        assert clocks.warm_seconds(gpu, call, 3) == pytest.approx(10 * US)
        assert gpu.flushes == 6

    def test_the_time_is_the_devices_even_if_queueing_takes_longer(self):
        clocks, gpu = module("clocks"), FakeGpu()
        call = gpu.kernel(warm=2 * US, cold=3 * US, launch=40 * US)
        assert clocks.warm_seconds(gpu, call) == pytest.approx(2 * US)
        assert clocks.cold_seconds(gpu, call) == pytest.approx(3 * US)
        assert clocks.host_seconds(gpu, call) == pytest.approx(40 * US)

    def test_launch_latency_does_not_wait_for_the_device(self):
        clocks, gpu = module("clocks"), FakeGpu()
        assert clocks.host_seconds(gpu, gpu.kernel(warm=1.0, cold=1.0)) == pytest.approx(5 * US)

    def test_a_kernels_time_is_a_cold_one(self):
        clocks, gpu = module("clocks"), FakeGpu()
        assert clocks.kernel_seconds(gpu, gpu.kernel(1 * US, 9 * US)) == pytest.approx(9 * US)

    def test_the_buffer_is_larger_than_the_cache(self, monkeypatch):
        clocks = module("clocks")

        class Small(clocks.Gpu):
            l2_bytes = 96 << 20

        gpu = Small("cpu")
        gpu.flush()
        assert gpu.buffer.numel() == 192 << 20
        Small.l2_bytes = 1 << 20
        other = Small("cpu")
        other.flush()
        assert other.buffer.numel() == clocks.clocks.LEAST_FLUSH


class TestPeaks:
    @pytest.mark.parametrize(
        "name,bandwidth,tensor",
        [
            ("NVIDIA A100-SXM4-80GB", 2.039e12, 312e12),
            ("NVIDIA A100 80GB PCIe", 1.935e12, 312e12),
            ("NVIDIA A100-SXM4-40GB", 1.555e12, 312e12),
            ("NVIDIA H100 80GB HBM3", 3.35e12, 989e12),
            ("NVIDIA H100 PCIe", 2.0e12, 756e12),
            ("NVIDIA B200", 8.0e12, 2250e12),
            ("NVIDIA GeForce RTX 4090", 1.008e12, 165.2e12),
        ],
    )
    def test_table(self, name, bandwidth, tensor):
        peak = module("peaks").known(name)
        assert (peak.bandwidth, peak.tensor) == pytest.approx((bandwidth, tensor)) and peak.source

    @pytest.mark.parametrize(
        "name",
        ["NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA H100 NVL", "NVIDIA GB200", "Tesla T4"],
    )
    def test_others_are_not_taken_for_one_of_them(self, name):
        assert module("peaks").known(name) is None

    def test_order_of_size(self):
        """16 bits before tf32 before float32 before float64, all above a byte of bandwidth."""
        for _, peak in module("peaks").TABLE:
            assert peak.tensor > peak.tf32 >= peak.fp32 > peak.fp64 > peak.bandwidth / 8

    def test_measured(self):
        """A machine of which a copy takes 2 s and each product 4 s."""
        times = iter([2.0, 4.0, 4.0, 4.0, 4.0])
        calls = []

        def seconds(call):
            calls.append(call())
            return next(times)

        peaks = module("peaks")
        peak = peaks.measured(seconds, "cpu", copied=1000, order=8)
        assert peak.bandwidth == 1000 and peak.tensor == peak.fp32 == peak.tf32 == 2 * 8**3 / 4
        assert peak.fp64 == 2 * 2**3 / 4 and "measured" in peak.source
        assert [call.dtype for call in calls[1:]] == [
            torch.bfloat16,
            torch.float32,
            torch.float64,
            torch.float32,
        ]
        assert torch.get_float32_matmul_precision() == "highest"

    @pytest.mark.parametrize(
        "dtype,field",
        [("float16", "tensor"), ("bfloat16", "tensor"), ("float32", "fp32"), ("float64", "fp64")],
    )
    def test_arithmetic_of_a_dtype(self, dtype, field):
        peak = module("peaks").known("NVIDIA B200")
        assert peak.arithmetic(dtype) == getattr(peak, field)


def make_bench(gpu, results, **changes):
    """Providers whose calls take 10 us warm and 70 us cold and return the given results in turn."""
    common = module("common")

    def provider(name, values):
        answers = iter(values)

        def make(case, mode, x, device):
            call = gpu.kernel(10 * US, 70 * US)
            call.result = lambda: next(answers)
            return call, 2

        return common.Provider(name, make, devices=("cuda",))

    settings = dict(
        op="fake",
        cases=[common.Case("c", {"N": 8}, units=4)],
        providers=[provider(*item) for item in results.items()],
        inputs=lambda case, device: None,
        check=lambda case, mode, x, outputs, units: None if outputs == 1 else f"got {outputs}",
        baseline="a",
        operations=lambda case, mode: 2 * 19.5e12 * 10e-6,  # of all units: the peak in 20 us
        traffic=lambda case, mode: 0.5 * 2.039e12 * 140e-6,
    )
    return common.Bench(**{**settings, **changes})


def run(capsys, bench, *arguments):
    flags = ["--device", "cuda", "--repeats", "4", *arguments]
    measuring, rows = module("measuring"), []

    def measure(*given, whole=measuring.measure):
        report = whole(*given)
        rows.extend(report.rows)
        return report

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "measure", measure)
        code = module("command").main(bench, flags)
    return code, capsys.readouterr().out.splitlines(), rows


def test_a_row_has_both_times_latency_percents_and_circumstances(gpu, capsys):
    code, lines, [row] = run(capsys, make_bench(gpu, {"a": [1, 1]}))
    assert code == 0
    assert row["median_ms"] == pytest.approx(0.01) and row["cold_ms"] == pytest.approx(0.07)
    assert row["host_us"] == pytest.approx(5)
    # Half of the case's units in a call: of the peak of arithmetic, and half of that of memory.
    assert row["arithmetic_percent"] == pytest.approx(100)
    assert row["bandwidth_percent"] == pytest.approx(50)
    assert (row["device"], row["threads"]) == ("NVIDIA A100-SXM4-80GB", 1)
    assert row["gpu"]["driver"] == "575.1" and row["gpu"]["power_limit_w"] is None
    assert row["gpu"]["peaks"] == "A100 datasheet" and row["versions"]["torch"]
    wanted = "L2 warm 0.01 ms, cold 0.07 ms, 5 us to launch, 50.0% of bandwidth, 100.0% of arith"
    assert any(wanted in line for line in lines)


def test_cold_alone(gpu, capsys):
    _, lines, [row] = run(capsys, make_bench(gpu, {"a": [1, 1]}), "--cold")
    assert row["median_ms"] == pytest.approx(0.07) and row["cache"] == "cold"
    assert any("a: L2 cold 0.07 ms, 5 us to launch" in line for line in lines)


def test_wrong_after_the_timing_gets_no_row(gpu, capsys):
    code, lines, rows = run(capsys, make_bench(gpu, {"a": [1, 1], "b": [1, 7], "c": [7]}))
    assert code == 1 and [row["provider"] for row in rows] == ["a"]
    wrong = [line for line in lines if line.startswith("WRONG")]
    assert any("b" in line and "got 7 (after the timing)" in line for line in wrong)
    assert any("c" in line and line.endswith("got 7") for line in wrong) and len(wrong) == 2


def test_memory_and_records(gpu, capsys, monkeypatch, tmp_path):
    records = module("records")
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    _, _, [row] = run(capsys, make_bench(gpu, {"a": [1, 1]}), "--memory", "--record")
    assert row["peak_mb"] == 12
    [kept] = records.read(tmp_path / "fake.csv")
    assert kept["cold_ms"] == "0.07" and json.loads(kept["gpu"])["driver"] == "575.1"


def test_a_case_of_the_gpu_is_not_measured_on_a_cpu(gpu, capsys):
    common = module("common")
    cases = [common.Case("c", {}, units=4, devices=("cuda",))]
    bench = make_bench(gpu, {"a": [1, 1]}, cases=cases)
    code = module("command").main(bench, ["--device", "cpu", "--json"])
    assert code == 0 and json.loads(capsys.readouterr().out)["rows"] == []


def test_cuda_without_a_device_is_one_line(capsys):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    bench = module("bench_attention")
    with pytest.raises(SystemExit) as stop:
        bench.main(["--device", "cuda"])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and error.count("\n") == 1 and "sees no CUDA device" in error


BENCHES = [
    *("attention", "hmm_filter", "bijection_posterior", "selective_scan", "pointwise"),
    *("train", "mamba"),
]


SMALL = {  # arguments of `declare`; a whole model is small as it is
    "attention": ((2, 2, 9, 8), dict(fused=True)),
    "hmm_filter": ((4, 6, 3, 3), dict(modes=("forward", "forward+backward"))),
    "bijection_posterior": ((2, 3, 4), dict(noisy=True, modes=("forward", "forward+backward"))),
    "selective_scan": ((2, 5, 4, 3), {}),
    "pointwise": (("rms_norm", 6, 8), {}),
    "train": (("small", "bijection", "quick", 4), {}),
    "mamba": (("small", "quick", 4), {}),
}
PROVIDERS = ("sdpa", "torch", "eager", "bwt", "mamba")  # that run on a CPU and a GPU alike


@pytest.mark.parametrize("name", BENCHES)
def test_every_benchmark_has_providers_cases_and_figures_for_a_gpu(name):
    bench = module(f"bench_{name}").BENCH
    assert any("cuda" in case.devices for case in bench.cases)
    assert any("cuda" in provider.devices and not provider.bound for provider in bench.providers)
    for case in bench.cases:
        for mode in case.modes:
            for count in (bench.operations, bench.traffic):
                assert count is None or count(case, mode) > 0, (case.name, mode)
    assert bench.operations or bench.traffic or name == "mamba"


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHES)
def test_every_benchmark_makes_rows_of_a_gpu(name, monkeypatch):
    """A small case with a CPU in the GPU's place: inputs, checks, both clocks, percents."""
    gpu_rows, measuring = module("gpu_rows"), module("measuring")
    monkeypatch.setattr(module("machine"), "output", lambda command: SMI)
    monkeypatch.setattr(module("clocks"), "HOST_SAMPLES", 1)
    bench = module(f"bench_{name}").BENCH
    sizes, options = SMALL[name]
    case = module(f"bench_{name}").declare(*sizes, **options)
    clock = measuring.Clock("cpu", cold=False)
    clock.figures = gpu_rows.Figures(CpuAsGpu())
    served = [p for p in bench.providers if "cuda" in p.devices and p.name in PROVIDERS]
    options = SimpleNamespace(repeats=1, seconds=0.01, memory=False)
    report, progress = measuring.Report(), module("progress").Progress(quiet=True)
    for mode in case.modes:
        group = measuring.Group(bench, case, mode, bench.inputs(case, "cpu"), clock, 1)
        report.rows += group.measure(served, options, report, progress)
    assert report.rows and not report.wrong
    for row in report.rows:
        assert row["device"] == "NVIDIA B200" and row["cold_ms"] > 0 and row["host_us"] > 0
        assert (row["bandwidth_percent"] is not None) == (bench.traffic is not None)
        assert (row["arithmetic_percent"] is not None) == (bench.operations is not None)
        assert module("summary").gpu_line(row).startswith(case.name)


def test_without_leaves_providers_out(gpu, capsys):
    results = {"a": [1, 1], "b-compiled": [1, 1]}
    _, _, rows = run(capsys, make_bench(gpu, results), "--without", "*compiled", "nothing")
    assert [row["provider"] for row in rows] == ["a"]


def test_all_benchmarks_are_listed():
    assert {path.stem for path in FOLDER.glob("bench_*.py")} == {f"bench_{n}" for n in BENCHES}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_check_of_attention_allows_what_its_dtype_loses_and_no_more(dtype):
    """Weights of the reference rounded as the dtype does pass; ten times that does not."""
    bench = module("bench_attention")
    case = bench.declare(2, 2, 39, 32, fused=True, dtype=dtype)
    x = bench.inputs(case, "cpu")
    forward, grads = bench.expected(case)
    kind = getattr(torch, dtype)
    exact = [torch.from_numpy(y) for y in (forward.out, forward.weights, *grads)]
    check = partial(bench.check, case, bench.FULL, x, units=1)
    assert check([y.to(kind) for y in exact]) is None
    for i in range(len(exact)):
        off = [y.clone() for y in exact]
        off[i].view(-1)[-1] += 40 * torch.finfo(kind).eps * max(1.0, off[i].abs().max().item())
        if dtype == "float32":
            off[i].view(-1)[-1] += 1e-3
        assert f"result {i} is off by" in check(off)


class TestMachine:
    def test_query(self):
        [record] = module("machine").query(lambda command: SMI)
        assert record["name"] == "NVIDIA A100-SXM4-80GB" and record["driver"] == "575.1"
        assert record["memory_mib"] == 81920 and record["power_limit_w"] is None

    def fails(self, command):
        raise OSError("nvidia-smi: no such file")

    def test_no_gpu(self):
        machine = module("machine")
        assert machine.fault(self.fails, list) == machine.NO_GPU
        assert machine.fault(lambda command: "", list) == machine.NO_GPU
        assert "\n" not in machine.NO_GPU
        assert machine.circumstances(self.fails) == {}

    def test_no_driver(self):
        words = module("machine").fault(self.fails, lambda: ["/dev/nvidia0"])
        assert "no such file" in words and "install its driver" in words

    def test_a_gpu(self):
        assert module("machine").fault(lambda command: SMI, list) is None

    def test_a_command_that_fails_or_is_missing_is_an_error_of_the_system(self):
        output = module("machine").output
        assert output(["echo", "x"]) == "x\n"
        for command in (["false"], ["no-such-command-here"]):
            with pytest.raises(OSError):
                output(command)
