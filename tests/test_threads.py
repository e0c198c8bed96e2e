"""The environment that the command sets for OpenMP, and the CPUs that a container may use."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from bwt import threads


def set_in(environment, monkeypatch, *, modules=(), limit=4, cpus=4):
    """Return what set_environment adds to an environment."""
    environment = dict(environment)
    monkeypatch.setattr(threads, "os", SimpleNamespace(environ=environment))
    monkeypatch.setattr(threads, "sys", SimpleNamespace(modules=modules))
    monkeypatch.setattr(threads, "cpu_limit", lambda: limit)
    monkeypatch.setattr(threads, "visible_cpus", lambda: cpus)
    threads.set_environment()
    return environment


def test_waiting_threads_spin_briefly_unless_the_user_says_otherwise(monkeypatch):
    assert set_in({}, monkeypatch) == threads.SPINNING
    for name in ("GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_WAIT_POLICY"):
        assert set_in({name: "7"}, monkeypatch) == {name: "7"}


def test_a_quota_limits_the_threads_unless_the_user_says_otherwise(monkeypatch):
    limited = set_in({}, monkeypatch, limit=2)
    assert limited == {**threads.SPINNING, "OMP_NUM_THREADS": "2"}
    chosen = set_in({"OMP_NUM_THREADS": "3"}, monkeypatch, limit=2)
    assert chosen["OMP_NUM_THREADS"] == "3"


def test_a_process_that_has_loaded_torch_is_left_alone(monkeypatch):
    assert set_in({}, monkeypatch, modules=("torch",), limit=2) == {}


def test_the_command_sets_it_before_torch_is_loaded():
    code = """
import os, sys, bwt.cli
try: bwt.cli.main([])
except SystemExit: pass
print(os.environ['GOMP_SPINCOUNT'], 'torch' in sys.modules)
"""
    names = (*threads.SPINNING, "OMP_WAIT_POLICY")
    environment = {name: x for name, x in os.environ.items() if name not in names}
    words = [sys.executable, "-P", "-c", code]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [threads.SPINNING["GOMP_SPINCOUNT"], "False"]


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.cfs_quota_us": "400000\n", "cpu.cfs_period_us": "100000\n"}, 4.0),
        ({"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_quotas_of_both_versions_of_control_groups(files, quota, tmp_path):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert threads._quota(tmp_path) == quota


def test_the_smallest_quota_counts_and_is_rounded_up(monkeypatch):
    monkeypatch.setattr(threads, "visible_cpus", lambda: 8)
    for quotas, limit in (([], 8), ([6.0, 1.5], 2), ([0.2], 1), ([64.0], 8)):
        monkeypatch.setattr(threads, "_quotas", lambda quotas=quotas: iter(quotas))
        assert threads.cpu_limit() == limit
