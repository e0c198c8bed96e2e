"""The benchmark harness: no timing without a check, and records that survive."""

import importlib
import json
import os
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def path():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        # The allocator cannot be set back for the tests after these.
        patch.setattr(importlib.import_module("timing"), "fix_allocator", lambda pages: "system")
        yield


@pytest.fixture
def common():
    return importlib.import_module("common")


@pytest.fixture
def records(monkeypatch, tmp_path):
    module = importlib.import_module("records")
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    return module


def make_bench(common, calls, **changes):
    """Doubling a vector of ones, by `calls`: name -> function of the input."""

    def provider(name, function):
        return common.Provider(name, lambda case, mode, x, device: (lambda: function(x), 2))

    def check(case, mode, x, outputs, units):
        return None if torch.equal(outputs, 2 * x) else "not doubled"

    case = common.Case("tiny", {"N": 8}, units=2)
    settings = dict(
        op="double",
        cases=[case],
        providers=[provider(*item) for item in calls.items()],
        inputs=lambda case, device: torch.ones(8, device=device),
        check=check,
        baseline="add",
    )
    return common.Bench(**{**settings, **changes})


FAST = ["--threads", "1", "--repeats", "2", "--seconds", "0.1"]
RIGHT = {"add": lambda x: x + x, "scale": lambda x: 2 * x}


def run(common, capsys, bench, *arguments):
    code = common.main(bench, [*FAST, *arguments])
    captured = capsys.readouterr()
    return code, captured.out.splitlines(), captured.err


def test_rows_and_claims(common, capsys):
    claims = (
        common.Claim("tiny", slow="add", fast="scale", at_least=1e9),
        common.Claim("tiny", slow="add", fast="scale", at_most=1e9),
        common.Claim("tiny", slow="add", fast="absent", at_most=1),
    )
    code, lines, _ = run(common, capsys, make_bench(common, RIGHT, claims=claims))
    document = json.loads(lines[-1])
    assert code == 0
    assert [row["provider"] for row in document["rows"]] == ["add", "scale"]
    add, scale = document["rows"]
    assert 0 < add["p20_ms"] <= add["median_ms"] <= add["p80_ms"]
    assert (add["units"], add["repeats"], add["threads"]) == (2, 2, 1)
    assert scale["ratio"] == pytest.approx(add["median_ms"] / scale["median_ms"])
    assert [claim["verdict"] for claim in document["claims"]] == ["MISS", "PASS"]


def test_claims_are_shown_beside_what_the_bound_allows():
    summary = importlib.import_module("summary")
    where = dict(case="c", mode="forward", device="d", threads=1, units=1)
    times = dict(slow=9.0, fast=6.0, limit=5.0)
    rows = [
        {**where, "provider": name, "median_ms": time, "bound": name == "limit"}
        for name, time in times.items()
    ]
    claim = summary.Claim("c", slow="slow", fast="fast", at_least=1.6)
    (judged,) = summary.judge([claim], rows)
    assert "measured 1.5 of 1.8 at the bound limit, 1 thread(s)" in summary.sentence(judged)
    (without,) = summary.judge([claim], rows[:2])
    assert summary.sentence(without).endswith("measured 1.5, 1 thread(s)")


def test_wrong_provider_is_shown_and_not_timed(common, capsys):
    calls = []

    def wrong(x):
        calls.append(x)
        return 3 * x

    bench = make_bench(common, {**RIGHT, "triple": wrong, "broken": lambda x: 1 / 0})
    code, lines, _ = run(common, capsys, bench)
    document = json.loads(lines[-1])
    assert code == 1
    assert len(calls) == 1  # the check's
    assert {row["provider"] for row in document["rows"]} == {"add", "scale"}
    assert any(line.startswith("WRONG triple") and "not doubled" in line for line in lines)
    assert any(line.startswith("WRONG broken") and "ZeroDivisionError" in line for line in lines)


def test_unavailable_provider_says_why(common, capsys):
    def make(case, mode, x, device):
        import no_such_package  # noqa: F401

    bench = make_bench(common, RIGHT)
    bench.providers.append(common.Provider("peer", make))
    code, lines, _ = run(common, capsys, bench)
    assert code == 0
    assert any("peer not available" in x and "no_such_package" in x for x in lines)


@pytest.mark.parametrize(
    "arguments,complaint",
    [
        (["--cases", "huge"], "no case 'huge'; choose from tiny"),
        (["--providers", "magic"], "no provider 'magic'; choose from add, scale"),
        (["--threads", "0"], "'0' is not a whole number of at least 1"),
        (["--seconds", "nan"], "'nan' is not a number of seconds above 0"),
    ],
)
def test_bad_argument_is_one_line(common, capsys, arguments, complaint):
    with pytest.raises(SystemExit) as stop:
        common.main(make_bench(common, RIGHT), arguments)
    captured = capsys.readouterr()
    assert stop.value.code == 2
    assert captured.out == ""
    assert complaint in captured.err and captured.err.count("\n") == 1


def test_json_only(common, capsys):
    code, lines, errors = run(common, capsys, make_bench(common, RIGHT), "--json")
    assert (code, len(lines), errors) == (0, 1, "")
    assert json.loads(lines[0])["op"] == "double"


def test_record_replaces_rows_of_the_same_key(common, records, capsys):
    bench = make_bench(common, RIGHT)
    path = records.RESULTS / "double.csv"
    run(common, capsys, bench)
    assert not path.exists()  # only on request
    run(common, capsys, bench, "--record")
    first = records.read(path)
    run(common, capsys, bench, "--record", "--providers", "add", "--repeats", "1")
    second = records.read(path)
    assert [row["provider"] for row in second] == ["add", "scale"]
    assert second[0]["repeats"] == "1" and second[1] == first[1]
    run(common, capsys, bench, "--record", "--threads", "2")
    assert len(records.read(path)) == 4
    assert json.loads(second[0]["shape"]) == {"N": 8}
    assert json.loads(second[0]["versions"])["torch"] == torch.__version__
    assert tuple(second[0]) == records.COLUMNS


def test_record_is_all_or_nothing(records, monkeypatch, tmp_path):
    path = tmp_path / "x.csv"
    row = dict.fromkeys(records.COLUMNS, "a")
    records.record(path, [row])
    before = path.read_bytes()

    def fail(source, target):
        raise OSError("no")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no"):
        records.record(path, [{**row, "case": "b"}])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_slow_calls_get_fewer_samples_spread_over_the_run():
    timing = importlib.import_module("timing")
    order = []
    calls = {"fast": lambda: order.append("f"), "slow": lambda: order.append("s")}
    # A clock that calls each once and says what it took.
    timing_seconds = {"f": 0.01, "s": 10.0}

    def clock(call, loops):
        call()
        return timing_seconds[order[-1]]

    samples = timing.interleaved(calls, clock, repeats=9, seconds=1.0)
    assert [len(s) for s in samples.values()] == [9, timing.FEWEST_SAMPLES]
    # The fast one is called once before each sample; the slow one warms itself up.
    assert "".join(order[-21:]) == 3 * ("ff" * 3 + "s")


def test_bounds(common):
    case = common.Case("c", {}, dtype="float64", units=4)
    call, units = common.write_bound("write", lambda c: [(2, 3), (5,)]).make(case, "", None, "cpu")
    assert [(tuple(x.shape), x.dtype) for x in call()] == [
        ((2, 3), torch.float64),
        ((5,), torch.float64),
    ]
    assert units == 4
    # One timed product of 2 * 1024^3 operations stands for as many units as it could serve.
    _, units = common.gemm_bound("mm", lambda c, mode: 2 * 1024**3).make(case, "", None, "cpu")
    assert units == 4


def test_peak_memory(monkeypatch):
    timing = importlib.import_module("timing")
    peak = timing.peak_bytes(lambda: torch.ones(16 << 20))
    assert peak is None or 60e6 < peak < 100e6


def test_bijection_posterior_end_to_end(capsys):
    bench = importlib.import_module("bench_bijection_posterior")
    arguments = ["--cases", "noisy-V8-K7", "--providers", "torch", "write"]
    assert bench.main([*FAST, *arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(row["provider"], row["mode"]) for row in document["rows"]] == [
        ("torch", "forward"),
        ("write", "forward"),
        ("torch", "forward+backward"),
    ]


@pytest.mark.parametrize("mode", ["forward", "forward+backward"])
def test_bijection_posterior_check_notices_a_small_error(mode):
    bench = importlib.import_module("bench_bijection_posterior")
    case = next(case for case in bench.CASES if case.name == "noisy-V8-K7")
    x = bench.inputs(case, "cpu")
    torch_provider = next(p for p in bench.BENCH.providers if p.name == "torch")
    call, count = torch_provider.make(case, mode, x, "cpu")
    outputs = [output.clone() for output in call()]
    assert bench.check(case, mode, x, outputs, count) is None
    outputs[0][0] *= 1 + 1e-4
    assert "is off by" in bench.check(case, mode, x, outputs, count)


def test_permanents_agree_with_the_reference():
    thewalrus = pytest.importorskip("thewalrus")
    bench = importlib.import_module("bench_bijection_posterior")
    case = bench.declare(2, 6, 4, noisy=True, replacement=True)
    x = bench.inputs(case, "cpu")
    want = bench.reference.bijection_posterior(
        x.keys.numpy(), x.values.numpy(), 4, channel=x.channel.double().numpy()
    )
    for b, t in [(0, 0), (0, 3), (1, 5)]:
        keys, values = x.keys[b].tolist(), x.values[b].tolist()
        row = bench.permanent_row(
            thewalrus.perm, keys[t], keys[:t], values[:t], x.channel.double().numpy()
        )
        assert abs(row - want.posterior[b, t]).max() < 1e-12
