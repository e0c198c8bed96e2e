"""A short part of `make fuzz` with fixed seeds, and that a fault is found and named."""

import fuzz
import pytest
import torch
from helpers import fuzz_cases

from bwt import ops

COUNTS = {"damaged": 12, "malformed": 300}


@pytest.fixture(autouse=True)
def same_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(fuzz_cases.KINDS))
def test_a_few_of_each_kind(kind):
    for seed in range(COUNTS.get(kind, 60)):
        try:
            fuzz_cases.check(kind, seed)
        except Exception as error:
            raise AssertionError(f"{fuzz.reproduction(kind, seed)} fails") from error


def test_a_planted_fault_is_found(monkeypatch):
    gelu = ops.gelu
    monkeypatch.setattr(ops, "gelu", lambda x, **options: gelu(x, **options) * 1.001)
    failed = 0
    for seed in range(10):
        try:
            fuzz_cases.check("pointwise", seed)
        except AssertionError:
            failed += 1
    assert 2 <= failed <= 9  # those that drew gelu


def test_a_case_that_kills_its_process_is_named(monkeypatch, tmp_path):
    """By a worker that dies in its second case."""
    script = tmp_path / "dies.py"
    script.write_text(
        "import json, os, signal\n"
        "for seed in (5, 6):\n"
        "    print(json.dumps({'next': seed}), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    monkeypatch.setattr(fuzz, "__file__", str(script))
    done, (failure,) = fuzz.batch("scan", 5, 2)
    assert done == 2 and failure.startswith("python tests/fuzz.py --case scan 6   # exit -9")
