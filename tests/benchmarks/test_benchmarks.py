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
def command():
    return importlib.import_module("command")


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


def run(command, capsys, bench, *arguments):
    code = command.main(bench, [*FAST, *arguments])
    captured = capsys.readouterr()
    return code, captured.out.splitlines(), captured.err


def run_json(command, capsys, bench, *arguments):
    code, lines, _ = run(command, capsys, bench, "--json", *arguments)
    return code, json.loads(lines[-1])


def test_rows_and_claims(common, command, capsys):
    claims = (
        common.Claim("tiny", slow="add", fast="scale", at_least=1e9),
        common.Claim("tiny", slow="add", fast="scale", at_most=1e9),
        common.Claim("tiny", slow="add", fast="absent", at_most=1),
    )
    code, document = run_json(command, capsys, make_bench(common, RIGHT, claims=claims))
    assert code == command.MISSED
    assert [row["provider"] for row in document["rows"]] == ["add", "scale"]
    add, scale = document["rows"]
    assert 0 < add["p20_ms"] <= add["median_ms"] <= add["p80_ms"]
    assert (add["units"], add["repeats"], add["threads"]) == (2, 2, 1)
    assert (add["cache"], len(add["samples_ms"])) == ("warm", 2)
    assert scale["ratio"] == pytest.approx(add["median_ms"] / scale["median_ms"])
    assert [claim["verdict"] for claim in document["claims"]] == ["missed", "met"]


def test_a_missed_target_is_explained(common, command, capsys):
    target = dict(slow="add", fast="scale", at_least=1e9)
    claim = common.Claim("tiny", **target, goal="goal: a billion", remark="known: nonsense")
    code, lines, _ = run(command, capsys, make_bench(common, RIGHT, claims=(claim,)))
    assert code == 3
    start = next(i for i, line in enumerate(lines) if line.startswith("target missed"))
    assert "tiny forward: add / scale at least 1e+09: measured" in lines[start]
    assert lines[start + 1 :] == [
        "    goal: a billion",
        "    known: nonsense",
        "1 of 1 targets missed (exit code 3)",
    ]


def test_without_json_there_is_none(common, command, capsys):
    _, lines, _ = run(command, capsys, make_bench(common, RIGHT))
    assert not any(line.startswith(("{", "[")) for line in lines)
    assert [line.split()[:2] for line in lines[-2:]] == [["tiny", "add"], ["tiny", "scale"]]


def rows_of(times, **samples):
    """Of one group: medians in ms, and samples where they are not the median alone."""
    where = dict(case="c", mode="forward", device="d", threads=1, units=1)
    return [
        {
            **where,
            "provider": name,
            "median_ms": time,
            "samples_ms": samples.get(name, [time] * 3),
            "bound": name == "limit",
        }
        for name, time in times.items()
    ]


def test_claims_are_shown_beside_what_the_bound_allows():
    summary = importlib.import_module("summary")
    rows = rows_of(dict(slow=9.0, fast=6.0, limit=5.0))
    claim = summary.Claim("c", slow="slow", fast="fast", at_least=1.6)
    (judged,) = summary.judge([claim], rows)
    words = "target missed: c forward: slow / fast at least 1.6: measured 1.5 (1.5 to 1.5)"
    assert summary.sentence(judged) == f"{words} of 1.8 at the bound limit, 1 thread(s)"
    (without,) = summary.judge([claim], rows[:2])
    assert summary.sentence(without) == f"{words}, 1 thread(s)"


@pytest.mark.parametrize(
    "target,verdict",
    [
        (dict(at_least=1.4), "met"),
        (dict(at_least=1.6), "undecided"),
        (dict(at_least=2.5), "missed"),
        (dict(at_most=1.6), "met"),
        (dict(at_most=1.4), "undecided"),
        (dict(at_most=0.7), "missed"),
    ],
)
def test_a_target_within_the_noise_is_not_missed(target, verdict):
    """Samples from 6 to 12 ms over 6: the ratio of medians is 1.5, and may be 1 to 2."""
    summary = importlib.import_module("summary")
    rows = rows_of(dict(slow=9.0, fast=6.0), slow=[6.0, 6.0, 9.0, 12.0, 12.0])
    (judged,) = summary.judge([summary.Claim("c", slow="slow", fast="fast", **target)], rows)
    assert judged["verdict"] == verdict


def test_wrong_provider_is_shown_and_not_timed(common, command, capsys):
    calls = []

    def wrong(x):
        calls.append(x)
        return 3 * x

    bench = make_bench(common, {**RIGHT, "triple": wrong, "broken": lambda x: 1 / 0})
    code, lines, _ = run(command, capsys, bench)
    assert code == 1
    assert len(calls) == 1  # the check's
    assert [line.split()[1] for line in lines if line.startswith("tiny")] == ["add", "scale"]
    assert any(line.startswith("WRONG triple") and "not doubled" in line for line in lines)
    assert any(line.startswith("WRONG broken") and "ZeroDivisionError" in line for line in lines)


def test_a_provider_that_goes_wrong_while_it_is_timed_is_caught(common, command, capsys):
    calls = []

    def tired(x):
        calls.append(x)
        return 2 * x if len(calls) < 5 else 3 * x

    bench = make_bench(common, {**RIGHT, "tired": tired})
    code, document = run_json(command, capsys, bench)
    assert code == 1 and len(calls) > 5
    assert {row["provider"] for row in document["rows"]} == {"add", "scale"}
    [wrong] = document["wrong"]
    assert wrong.startswith("WRONG tired") and "not doubled (after the timing)" in wrong


def test_rows_are_printed_as_they_come(common, command, capsys):
    """When the second case is prepared, the first one's rows are there."""
    seen = []

    def inputs(case, device):
        seen.append(capsys.readouterr().out)
        return torch.ones(8)

    cases = [common.Case(name, {}, units=2) for name in ("first", "second")]
    bench = make_bench(common, RIGHT, cases=cases, inputs=inputs)
    command.main(bench, FAST)
    assert "provider" in seen[0] and "first" not in seen[0]
    assert "first" in seen[1] and "scale" in seen[1] and "second" not in seen[1]


def test_quick_takes_the_quick_cases_and_says_what_it_leaves_out(common, command, capsys):
    quick = (common.Case("tinier", {"N": 4}, units=2),)
    bench = make_bench(common, RIGHT, quick=quick, slow=("sc*",))
    command.main(bench, ["--quick", "--repeats", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "quick: without scale"
    assert [line.split()[:3] for line in lines[3:]] == [["tinier", "add", "1"]]
    code, document = run_json(command, capsys, bench, "--quick", "--providers", "scale")
    assert [row["provider"] for row in document["rows"]] == ["scale"]
    code, document = run_json(command, capsys, bench, "--cases", "tiny*")
    assert {row["case"] for row in document["rows"]} == {"tiny"}


def test_every_benchmark_has_something_quick():
    for path in FOLDER.glob("bench_*.py"):
        bench = importlib.import_module(path.stem).BENCH
        assert bench.quick, path.stem
        options = importlib.import_module("options")
        names = options.names_of(options.all_cases(bench))
        assert len(set(names)) == len(names)  # of the same name would be taken for the same
        assert all(claim.goal for claim in bench.claims)


def test_cold_empties_the_caches_before_each_call(common, command, capsys, monkeypatch):
    order = []
    timing = importlib.import_module("timing")
    monkeypatch.setattr(timing, "evictor", lambda: lambda: order.append("evict"))

    def add(x):
        order.append("call")
        return x + x

    code, document = run_json(command, capsys, make_bench(common, {"add": add}), "--cold")
    assert code == 0 and document["rows"][0]["cache"] == "cold"
    # The checks call it, too, before and after.
    assert order == ["call", *["evict", "call"] * 3, "call"]


def test_the_buffer_is_twice_the_last_cache(tmp_path):
    timing = importlib.import_module("timing")
    for index, size in enumerate(("48K", "1280K", "3M", "")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}/size").write_text(f"{size}\n")
    assert timing.last_level_bytes(tmp_path) == 3 << 20
    assert timing.last_level_bytes(tmp_path / "none") == timing.UNKNOWN_CACHE
    assert timing.evictor()().numel() == 2 * timing.last_level_bytes()


def test_unavailable_provider_says_why(common, command, capsys):
    def make(case, mode, x, device):
        import no_such_package  # noqa: F401

    bench = make_bench(common, RIGHT)
    bench.providers.append(common.Provider("peer", make))
    code, lines, _ = run(command, capsys, bench)
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
def test_bad_argument_is_one_line(common, command, capsys, arguments, complaint):
    with pytest.raises(SystemExit) as stop:
        command.main(make_bench(common, RIGHT), arguments)
    captured = capsys.readouterr()
    assert stop.value.code == 2
    assert captured.out == ""
    assert complaint in captured.err and captured.err.count("\n") == 1


def test_json_only(common, command, capsys):
    code, lines, errors = run(command, capsys, make_bench(common, RIGHT), "--json")
    assert (code, len(lines), errors) == (0, 1, "")
    assert json.loads(lines[0])["op"] == "double"


def test_record_replaces_rows_of_the_same_key(common, command, records, capsys):
    bench = make_bench(common, RIGHT)
    path = records.RESULTS / "double.csv"
    run(command, capsys, bench)
    assert not path.exists()  # only on request
    run(command, capsys, bench, "--record")
    first = records.read(path)
    run(command, capsys, bench, "--record", "--providers", "add", "--repeats", "1")
    second = records.read(path)
    assert [row["provider"] for row in second] == ["add", "scale"]
    assert second[0]["repeats"] == "1" and second[1] == first[1]
    run(command, capsys, bench, "--record", "--threads", "2")
    assert len(records.read(path)) == 4
    assert json.loads(second[0]["shape"]) == {"N": 8}
    assert json.loads(second[0]["versions"])["torch"] == torch.__version__
    assert tuple(second[0]) == records.COLUMNS
    run(command, capsys, bench, "--record", "--cold", "--providers", "add")
    assert [row["cache"] for row in records.read(path)].count("cold") == 1


def test_rows_without_a_cache_were_warm(records, tmp_path):
    row = dict.fromkeys(records.COLUMNS, "a") | {"cache": "warm"}
    records.record(tmp_path / "x.csv", [row])
    text = (tmp_path / "x.csv").read_text().replace(",cache", "").replace(",warm", "")
    (tmp_path / "x.csv").write_text(text)
    records.record(tmp_path / "x.csv", [{**row, "median_ms": "b"}])
    [kept] = records.read(tmp_path / "x.csv")
    assert (kept["cache"], kept["median_ms"]) == ("warm", "b")


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


@pytest.mark.slow
def test_permanents_agree_with_the_reference():
    thewalrus = pytest.importorskip("thewalrus", reason="a bench extra")
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
