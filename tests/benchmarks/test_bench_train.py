"""The benchmark of training: every provider is checked, and the check can fail."""

import importlib
import json
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="module")
def bench():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
        # The allocator cannot be set back for the tests after these.
        patch.setattr(importlib.import_module("timing"), "fix_allocator", lambda pages: "system")
        yield importlib.import_module("bench_train")


@pytest.mark.slow
def test_end_to_end(bench, capsys):
    flags = ["--threads", "1", "--repeats", "2", "--seconds", "0.1", "--cases", "quick-*"]
    providers = ["bwt", "bwt-captured", "eager-*", "gemm"]
    assert bench.main([*flags, "--providers", *providers, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len(rows) == 2 * 5 and {row["unit"] for row in rows} == {"step"}
    rates = bench.rates(rows).splitlines()
    assert len(rates) == 2 * 4 and all("steps/s" in x and "tokens/s" in x for x in rates)


@pytest.mark.parametrize("name", ["bwt", "eager-sdpa"])
def test_the_check_notices_a_small_error(bench, name):
    case = next(case for case in bench.CASES if case.name == "quick-hmm")
    x = bench.inputs(case, "cpu")
    provider = next(p for p in bench.PROVIDERS if p.name == name)
    call, units = provider.make(case, bench.STEP, x, "cpu")
    outputs = call.result()
    assert bench.check(case, bench.STEP, x, outputs, units) is None
    index = max(range(len(outputs)), key=lambda i: outputs[i].abs().max())
    outputs[index] = outputs[index] * 1.01
    assert f"result {index} is off by" in bench.check(case, bench.STEP, x, outputs, units)


def test_timed_steps_train(bench):
    case = next(case for case in bench.CASES if case.name == "quick-bijection")
    provider = next(p for p in bench.PROVIDERS if p.name == "bwt")
    call, _ = provider.make(case, bench.STEP, bench.inputs(case, "cpu"), "cpu")
    before = [p.detach().clone() for p in call.parameters]
    call.result()
    assert all(torch.equal(p, q) for p, q in zip(call.parameters, before, strict=True))
    call()
    assert not any(torch.equal(p, q) for p, q in zip(call.parameters, before, strict=True))


def test_the_check_after_the_timing_is_of_the_same_weights(bench):
    case = next(case for case in bench.CASES if case.name == "quick-bijection")
    provider = next(p for p in bench.PROVIDERS if p.name == "bwt")
    call, _ = provider.make(case, bench.STEP, bench.inputs(case, "cpu"), "cpu")
    first = call.result()
    call()
    moved = [p.detach().clone() for p in call.parameters]
    assert all(torch.equal(g, h) for g, h in zip(first, call.result(), strict=True))
    assert all(torch.equal(p, q) for p, q in zip(call.parameters, moved, strict=True))


def test_a_profile_is_a_trace_that_viewers_open(bench, tmp_path, capsys):
    path = tmp_path / "step.json"
    assert bench.main(["--profile", str(path), "--cases", "quick-bijection"]) == 0
    assert "open it in ui.perfetto.dev" in capsys.readouterr().out
    names = {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}
    assert {"bwt::attention", "aten::_fused_adamw_"} <= names
