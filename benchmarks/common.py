"""What a benchmark file declares: a Bench of cases, providers, inputs and a check. It ends with
`sys.exit(command.main(BENCH))`.

No provider is timed before its results have been compared with bwt.reference at the very shapes and
thread count of the timing, and once more after it; one that fails is shown as WRONG, gets no row,
and makes the exit code 1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import timing
import torch
from summary import FORWARD, Claim, per_unit
from timing import Call

__all__ = ["FORWARD", "FULL", "Bench", "Case", "Claim", "Provider", "Unavailable", "per_unit"]

FULL = "forward+backward"
INSTALL_HINT = "pip install -e '.[bench]'"


class Unavailable(Exception):
    """This provider cannot serve this case here; the message says why."""


class Wrong(Exception):
    """This provider's results do not agree with the reference."""


@dataclass(frozen=True, eq=False)
class Case:
    name: str
    shape: dict[str, Any]
    modes: tuple[str, ...] = (FORWARD,)
    dtype: str = "float32"
    units: float = 1  # units of work in one call; times are compared per unit
    baseline: str | None = None  # the bench's, if None
    devices: tuple[str, ...] = ("cpu", "cuda")


@dataclass(frozen=True)
class Provider:
    """`make(case, mode, inputs, device)` returns the call to time and the units it handles; it
    imports what it needs and raises Unavailable or ImportError if it cannot. What is compared with
    the reference is what the call returns, or its method `result()` if it has one."""

    name: str
    make: Callable[[Case, str, Any, str], tuple[Call, float]]
    devices: tuple[str, ...] = ("cpu", "cuda")
    modes: tuple[str, ...] = (FORWARD, FULL)
    backend: str = ""  # of bwt, if it is one
    bound: bool = False  # a limit of the machine: computes nothing, is not checked


@dataclass(frozen=True)
class Bench:
    op: str
    cases: list[Case]
    providers: list[Provider]
    inputs: Callable[[Case, str], Any]  # (case, device), outside the timed region
    check: Callable[[Case, str, Any, Any, float], str | None]  # see `prepare`; returns the fault
    baseline: str
    unit: str = "call"
    claims: tuple[Claim, ...] = ()
    notes: Callable[[list[dict]], str] | None = None  # rows -> text below the table
    plot: Callable[[list[dict], str], None] | None = None
    plot_help: str = ""
    packages: tuple[str, ...] = ()  # peers whose versions belong in the rows
    # Of a case and mode: floating-point operations, and bytes that must be read or written.
    operations: Callable[[Case, str], float] | None = None
    traffic: Callable[[Case, str], float] | None = None
    # What --quick measures instead of all cases, and which providers it leaves out as slow: they
    # compile, or one call takes seconds.
    quick: tuple[Case, ...] = ()
    slow: tuple[str, ...] = ()


def write_bound(name: str, shapes: Callable[[Case], list[tuple[int, ...]]]) -> Provider:
    """The time to write a case's outputs to memory and do nothing else."""

    def make(case, mode, inputs, device):
        dtype = getattr(torch, case.dtype)
        return timing.write_call(shapes(case), dtype, device), case.units

    return Provider(name, make, modes=(FORWARD,), bound=True)


def gemm_bound(name: str, operations: Callable[[Case, str], float]) -> Provider:
    """The time a case's floating-point operations take at the speed of torch.mm in float32. One
    large product is timed and stands for as many units as it has operations for."""

    def make(case, mode, inputs, device):
        call, done = timing.gemm_call(device)
        return call, case.units * done / operations(case, mode)

    return Provider(name, make, bound=True)


def prepare(
    bench: Bench, provider: Provider, case: Case, mode: str, inputs: Any, device: str
) -> tuple[Call, float]:
    """The provider's call, after its results have been checked.

    Raises:
        Unavailable, Wrong: with the reason.
    """
    if mode not in provider.modes:
        raise Unavailable(f"has no {mode}")
    try:
        call, units = provider.make(case, mode, inputs, device)
    except ImportError as error:
        raise Unavailable(f"{error}; {INSTALL_HINT}") from error
    if not provider.bound:
        compare(bench, case, mode, inputs, call, units)
    return call, units


def compare(bench: Bench, case: Case, mode: str, inputs: Any, call: Call, units: float) -> None:
    """Raises Wrong where results do not agree with the reference."""
    try:
        fault = bench.check(case, mode, inputs, getattr(call, "result", call)(), units)
    except Exception as error:  # any failure of the code under test is its result
        fault = f"{type(error).__name__}: {error}"
    if fault:
        raise Wrong(fault)


def combinations(bench: Bench, device: str = "cpu") -> list:
    """(case, mode, provider) as pytest parameters with readable ids."""
    import pytest

    return [
        pytest.param(case, mode, provider, id=f"{case.name}-{mode}-{provider.name}")
        for case in bench.cases
        for mode in case.modes
        for provider in bench.providers
        if device in provider.devices and mode in provider.modes
    ]
