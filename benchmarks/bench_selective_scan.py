"""Speed of selective_scan, per sequence.

    python benchmarks/bench_selective_scan.py --plot scan.svg

Peers: `torch`, the Python loop over steps; `associative`, the recurrence as a parallel scan of
log2(L) rounds over whole tensors, and `compiled`, the same through torch.compile. These two hold
[B, L, E, N] numbers many times over and get a part of the batch; times are per sequence.

Bounds: `arithmetic`, the multiply-adds of the recurrence and its exponentials (see SLOTS), at the
speed of torch.mm; `traffic`, reading what must be read and writing what must be written.
"""

import functools
import math
import sys
from typing import NamedTuple

import command
import common
import numpy as np
import plots
import torch
from bounds import deviation, scan_error
from common import FORWARD, FULL, Bench, Case, Claim, Provider, Unavailable
from torch import Tensor
from torch.nn import functional

from bwt import reference
from bwt.ops import _dispatch, selective_scan

OP = "selective_scan"
CHECKED = 2  # sequences of which everything is compared with the reference
PART = 8  # sequences for peers that need N times the memory
BOTH = (FORWARD, FULL)


class Inputs(NamedTuple):
    tensors: tuple[Tensor, ...]  # u, delta, A, B, C, D
    grad: Tensor  # of y


def declare(B, L, E, N) -> Case:
    return Case(f"B{B}-L{L}-E{E}-N{N}", dict(B=B, L=L, E=E, N=N), BOTH, units=B)


MAIN = declare(64, 93, 512, 16)
CASES = [MAIN, declare(64, 31, 128, 16), declare(2, 2048, 512, 16)]


def inputs(case: Case, device: str) -> Inputs:
    """As in a Mamba at the start: rates -1 .. -N, steps of 1e-3 to 1e-1."""
    B, L, E, N = (case.shape[name] for name in "BLEN")
    rng = np.random.default_rng(0)
    steps = np.exp(rng.uniform(np.log(1e-3), np.log(1e-1), size=(B, L, E)))
    arrays = (
        rng.standard_normal((B, L, E)),
        np.log(np.expm1(steps)),
        np.tile(-np.arange(1.0, N + 1), (E, 1)),
        rng.standard_normal((B, L, N)),
        rng.standard_normal((B, L, N)),
        np.ones(E),
    )
    grad = rng.standard_normal((B, L, E))
    dtype = getattr(torch, case.dtype)
    *tensors, grad = (torch.from_numpy(x).to(device, dtype) for x in (*arrays, grad))
    return Inputs(tuple(tensors), grad)


def part(x: Inputs, count: int) -> Inputs:
    u, delta, A, B, C, D = x.tensors
    return Inputs((u[:count], delta[:count], A, B[:count], C[:count], D), x.grad[:count])


def with_backward(forward, x: Inputs, mode: str):
    """The call to time; a forward pass, or that and the gradients of all six."""
    if mode == FORWARD:
        return lambda: forward(*x.tensors)
    leaves = [p.clone().requires_grad_() for p in x.tensors]
    return lambda: torch.autograd.grad(forward(*leaves), leaves, x.grad)


def backend_provider(backend: str, devices=("cpu", "cuda")) -> Provider:
    def make(case, mode, x, device):
        try:
            _dispatch.choose(OP, backend, torch.device(device))
        except RuntimeError as reason:
            raise Unavailable(reason) from reason

        def forward(*tensors):
            return selective_scan(*tensors, delta_softplus=True, backend=backend)

        return with_backward(forward, x, mode), case.units

    return Provider(backend, make, devices, BOTH, backend=backend)


def associative(u, delta, A, B, C, D):
    """In round k each step takes over the 2^k steps before those it has."""
    step = functional.softplus(delta)
    a = (step.unsqueeze(-1) * A).exp()
    x = (step * u).unsqueeze(-1) * B.unsqueeze(2)
    reach = 1
    while reach < u.shape[1]:
        x = torch.cat([x[:, :reach], x[:, reach:] + a[:, reach:] * x[:, :-reach]], 1)
        a = torch.cat([a[:, :reach], a[:, reach:] * a[:, :-reach]], 1)
        reach *= 2
    return (x @ C.unsqueeze(-1)).squeeze(-1) + D * u


def make_associative(case, mode, x, device, compiled=False):
    if case is not MAIN:
        raise Unavailable("takes gigabytes or minutes; only where a claim needs it")
    run = torch.compile(associative, dynamic=False) if compiled else associative
    return with_backward(run, part(x, PART), mode), PART


# Multiplications, with or without an addition, for each sequence, step, channel and state. A matrix
# product does as many per second as the processor can. Additions alone, rounding and shifts of the
# exponential are not counted: some processors have room for them beside. An exponential to float32
# precision takes 7 (its argument, a polynomial of degree 6), and is needed in both passes, unless
# N times as much memory is spent; h takes 2 in both. Then y; and backward g, a g, g a h, and the
# gradients of A, delta, u, B and C.
SLOTS = {FORWARD: 7 + 2 + 1, FULL: 7 + 2 + 1 + 7 + 2 + 8}


def operations(case: Case, mode: str) -> float:
    """A slot of a matrix product counts as two operations."""
    return 2 * SLOTS[mode] * math.prod(case.shape[name] for name in "BLEN")


def make_traffic(case, mode, x, device):
    """y is written, u and delta are read; backward, these and the gradient of y are read and two
    gradients written."""
    u, delta, *_ = x.tensors
    if mode == FORWARD:
        return lambda: (u.clone(), delta.sum()), case.units
    return lambda: (u.clone(), delta.clone(), x.grad.clone(), u.sum(), delta.sum()), case.units


def traffic(case: Case, mode: str) -> float:
    """Bytes of what make_traffic moves, and of B and C."""
    B, L, E, N = (case.shape[name] for name in "BLEN")
    inner, outer = B * L * N, B * L * E
    forward = 3 * outer + 2 * inner
    size = getattr(torch, case.dtype).itemsize
    return size * (forward if mode == FORWARD else 2 * forward + 2 * outer + 2 * inner)


@functools.cache
def expected(case: Case, count: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """y and the gradients of the first sequences; those of A and D summed over `count`."""
    x = inputs(case, "cpu")
    u, delta, A, B, C, D = (p.double().numpy() for p in x.tensors)
    found = []
    for b in range(count):
        one = slice(b, b + 1)
        arrays = (u[one], delta[one], A, B[one], C[one], D)
        grad = x.grad[one].double().numpy()
        gradients = reference.selective_scan_backward(grad, *arrays, delta_softplus=True)
        y = reference.selective_scan(*arrays, delta_softplus=True) if b < CHECKED else None
        found.append((y, gradients))
    first = found[:CHECKED]
    y = np.concatenate([y for y, _ in first])
    together = [np.concatenate([g[i] for _, g in first]) for i in (0, 1, 3, 4)]
    summed = [sum(g[i] for _, g in found) for i in (2, 5)]
    return y, [*together[:2], summed[0], *together[2:], summed[1]]


def check(case: Case, mode: str, x: Inputs, outputs, units: float) -> str | None:
    y, gradients = expected(case, int(units))
    if mode == FORWARD:
        return compare(case, "y", outputs[:CHECKED], y, case.shape["N"])
    sums = {"A": units * case.shape["L"], "D": units * case.shape["L"]}
    sums |= {"B": case.shape["E"], "C": case.shape["E"]}
    for name, got, want in zip(("u", "delta", "A", "B", "C", "D"), outputs, gradients, strict=True):
        got = got if name in "AD" else got[:CHECKED]
        fault = compare(case, f"gradient of {name}", got, want, sums.get(name, case.shape["N"]))
        if fault:
            return fault
    return None


def compare(case: Case, name: str, got: Tensor, want: np.ndarray, terms: float) -> str | None:
    bound = scan_error(getattr(torch, case.dtype), case.shape["L"], terms)
    return deviation(name, got, want, bound)


COLOURS = {
    "native": "#009E73",
    "triton": "#CC79A7",
    "associative": "#0072B2",
    "torch": "#D55E00",
    "compiled": "#E69F00",
    "traffic": "#999999",
    "arithmetic": "#000000",
}


def claims():
    goal = "goal: twenty times as fast as a loop over steps"
    yield Claim(MAIN.name, slow="torch", fast="native", at_least=20, mode=FULL, goal=goal)
    for peer in ("associative", "compiled"):
        goal = "goal: three times as fast as the best scan of whole tensors"
        yield Claim(MAIN.name, slow=peer, fast="native", at_least=3, mode=FULL, goal=goal)
    for bound in ("traffic", "arithmetic"):
        goal = f"goal: three times the bound of {bound}"
        exponentials = "two exponentials for each step, channel and state bound it, not memory"
        remark = f"known: {exponentials} (benchmarks/README.md)" if bound == "traffic" else ""
        target = dict(slow="native", fast=bound, at_most=3, mode=FULL)
        yield Claim(MAIN.name, **target, goal=goal, remark=remark)


BENCH = Bench(
    op=OP,
    cases=CASES,
    providers=[
        backend_provider("native", devices=("cpu",)),
        backend_provider("triton", devices=("cuda",)),
        backend_provider("torch"),
        Provider("associative", make_associative),
        Provider("compiled", functools.partial(make_associative, compiled=True)),
        common.gemm_bound("arithmetic", operations),
        Provider("traffic", make_traffic, bound=True),
    ],
    inputs=inputs,
    check=check,
    baseline="torch",
    unit="sequence",
    operations=operations,
    traffic=traffic,
    claims=tuple(claims()),
    quick=(declare(8, 31, 128, 16),),
    slow=("associative", "compiled"),
    plot=functools.partial(
        plots.bars,
        mode=FULL,
        cases=[case.name for case in CASES],
        colours=COLOURS,
        title="selective scan, float32",
    ),
    plot_help="draw forward + backward times of all cases",
)


def main(argv: list[str] | None = None) -> int:
    return command.main(BENCH, argv)


if __name__ == "__main__":
    sys.exit(main())
