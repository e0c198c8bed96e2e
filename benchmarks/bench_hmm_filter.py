"""Speed of hmm_filter, per sequence.

    python benchmarks/bench_hmm_filter.py --plot growth.svg

Peers: `numba`, one sequence for each iteration of a prange loop; `compiled`, the eager baseline
(sequences last) through torch.compile. `write` is the bound: the outputs written with constants;
`copy`: copied from memory; `gemm`: the products with a shared transition matrix at the speed of
torch.mm; `4-forward`: four times the forward pass.
"""

import functools
import math
import sys
from typing import NamedTuple

import command
import common
import numpy as np
import torch
from bounds import deviation, hmm_error, slope_deviation
from common import FORWARD, FULL, Bench, Case, Claim, Provider, Unavailable, per_unit
from torch import Tensor

from bwt.ops import _dispatch
from bwt.ops._hmm_filter_torch import hmm_filter_torch
from bwt.ops.hmm_filter import hmm_filter
from bwt.reference.hmm_filter import HMMFilterOutput
from bwt.reference.hmm_filter import hmm_filter as reference_filter

OP = "hmm_filter"
CHECKED = 64  # sequences compared with the reference
CHECKED_STEPS = 2000


class Inputs(NamedTuple):
    observations: Tensor  # [B, T]
    parameters: tuple[Tensor, Tensor, Tensor]  # initial, transition, emission
    grads: tuple[Tensor, Tensor, Tensor]  # of filtered, predicted, log_likelihood


def declare(B, T, S, V, *, shared=False, dtype="float32", modes=(FORWARD,), baseline=None) -> Case:
    shape = dict(B=B, T=T, S=S, V=V, shared=shared)
    kind = "shared" if shared else "own"
    name = f"{kind}-S{S}-T{T}-B{B}-{dtype.replace('float', 'f')}"
    return Case(name, shape, modes, dtype, units=B, baseline=baseline)


BOTH = (FORWARD, FULL)
MAIN = {
    dtype: declare(4096, 50, 5, 5, dtype=dtype, modes=BOTH, baseline=peer)
    for dtype, peer in [("float32", "compiled"), ("float64", "numba")]
}
LARGE = declare(256, 256, 64, 64, shared=True, modes=BOTH)
LONG = declare(1, 100_000, 5, 5, shared=True)
GROWTH = {  # one of B, T, S at a time
    "B": [declare(B, 50, 5, 5) for B in (16, 256)] + [MAIN["float32"]],
    "T": [declare(256, T, 5, 5) for T in (10, 500, 5000)],
    "S": [declare(256, 50, S, 8) for S in (2, 8, 9, 16, 32, 128)],
}
CASES = [*MAIN.values(), LARGE, LONG]
CASES += [case for cases in GROWTH.values() for case in cases if case not in CASES]
QUICK = (declare(1024, 50, 5, 5, modes=BOTH), declare(64, 64, 64, 64, shared=True, modes=BOTH))


def inputs(case: Case, device: str) -> Inputs:
    B, T, S, V = (case.shape[name] for name in "BTSV")
    rng = np.random.default_rng(0)
    dtype = getattr(torch, case.dtype)

    def rows(*shape):
        x = rng.standard_exponential(shape if case.shape["shared"] else (B, *shape))
        return torch.from_numpy(x / x.sum(-1, keepdims=True)).to(device, dtype)

    observations = torch.from_numpy(rng.integers(V, size=(B, T))).to(device)
    parameters = rows(S), rows(S, S), rows(S, V)
    grads = [
        torch.from_numpy(rng.standard_normal(s)).to(device, dtype) for s in output_shapes(case)
    ]
    return Inputs(observations, parameters, tuple(grads))


def output_shapes(case: Case) -> list[tuple[int, ...]]:
    B, T, S = (case.shape[name] for name in "BTS")
    return [(B, T, S), (B, T, S), (B,)]


def with_backward(forward, x: Inputs, mode: str):
    """The call to time; a forward pass of parameters, or that and the gradients of all three."""
    if mode == FORWARD:
        return lambda: forward(*x.parameters)
    leaves = [p.clone().requires_grad_() for p in x.parameters]
    return lambda: torch.autograd.grad(forward(*leaves), leaves, x.grads)


def backend_provider(backend: str, devices=("cpu", "cuda"), modes=BOTH) -> Provider:
    def make(case, mode, x, device):
        try:
            _dispatch.choose(OP, backend, torch.device(device))
        except RuntimeError as reason:
            raise Unavailable(reason) from reason
        if backend in ("torch", "reference") and case.shape["T"] > CHECKED_STEPS:
            raise Unavailable("takes seconds for so many steps")

        def forward(*parameters):
            return hmm_filter(x.observations, *parameters, backend=backend)

        return with_backward(forward, x, mode), case.units

    return Provider(backend, make, devices, modes, backend=backend)


def make_compiled(case, mode, x, device):
    if case not in MAIN.values():
        raise Unavailable("compiles for minutes; only where a claim needs it")
    run = torch.compile(hmm_filter_torch, dynamic=False)

    def forward(*parameters):
        return run(x.observations, *parameters, None)

    return with_backward(forward, x, mode), case.units


@functools.cache
def numba_filter():
    import numba

    @numba.njit(parallel=True)
    def run(observations, initial, transition, emission, filtered, predicted, log_likelihood):
        B, T = observations.shape
        S = initial.shape[1]
        for b in numba.prange(B):
            total = 0.0
            for t in range(T):
                evidence = 0 * initial[b, 0]  # in the dtype of the parameters
                for j in range(S):
                    p = initial[b, j]
                    if t > 0:
                        p = 0 * p
                        for i in range(S):
                            p += filtered[b, t - 1, i] * transition[b, i, j]
                    predicted[b, t, j] = p
                    filtered[b, t, j] = p * emission[b, j, observations[b, t]]
                    evidence += filtered[b, t, j]
                for j in range(S):
                    filtered[b, t, j] /= evidence
                total += math.log(evidence)
            log_likelihood[b] = total

    return run


def make_numba(case, mode, x, device):
    import numba

    if case.shape["shared"]:
        raise Unavailable("was written for own parameters")
    run = numba_filter()
    arrays = [p.numpy() for p in (x.observations, *x.parameters)]
    dtype = getattr(torch, case.dtype)

    def call():
        numba.set_num_threads(torch.get_num_threads())
        outputs = [torch.empty(shape, dtype=dtype) for shape in output_shapes(case)]
        run(*arrays, *(output.numpy() for output in outputs))
        return outputs

    return call, case.units


def make_copy(case, mode, x, device):
    sources = [torch.zeros_like(grad) for grad in x.grads]
    return lambda: [source.clone() for source in sources], case.units


def make_four_forwards(case, mode, x, device):
    return lambda: hmm_filter(x.observations, *x.parameters), case.units / 4


def multiply_adds(case: Case, mode: str) -> float:
    """Operations of the products with the transition matrix."""
    B, T, S = (case.shape[name] for name in "BTS")
    return 2.0 * B * T * S * S * (1 if mode == FORWARD else 3)


def traffic(case: Case, mode: str) -> float:
    """Symbols and parameters are read, three outputs written; backward, all of these and the
    gradients of the outputs are read and those of the parameters written."""
    B, T, S, V = (case.shape[name] for name in "BTSV")
    size = getattr(torch, case.dtype).itemsize
    parameters = size * (S + S * S + S * V) * (1 if case.shape["shared"] else B)
    outputs = size * (2 * B * T * S + B)
    forward = 8 * B * T + parameters + outputs
    return forward if mode == FORWARD else 2 * forward + outputs + parameters


@functools.cache
def expected_forward(case: Case) -> HMMFilterOutput:
    x = inputs(case, "cpu")
    return reference_filter(
        x.observations[:CHECKED, :CHECKED_STEPS].numpy(), *first_parameters(case, x, CHECKED)
    )


def first_parameters(case: Case, x: Inputs, count: int) -> list[np.ndarray]:
    chosen = slice(None) if case.shape["shared"] else slice(count)
    return [p[chosen].double().numpy() for p in x.parameters]


@functools.cache
def expected_slope(case: Case) -> tuple[list[np.ndarray], float]:
    """Directions in the parameters of the first sequences (of all, if they are shared), and by
    central differences of the reference the slope along them of what is differentiated."""
    x = inputs(case, "cpu")
    count = case.shape["B"] if case.shape["shared"] else min(CHECKED, case.shape["B"])
    parameters = first_parameters(case, x, count)
    rng = np.random.default_rng(1)
    directions = [p * rng.standard_normal(p.shape) for p in parameters]
    grads = [grad[:count].double().numpy() for grad in x.grads]

    def objective(step):
        moved = [p + step * d for p, d in zip(parameters, directions, strict=True)]
        fields = reference_filter(x.observations[:count].numpy(), *moved)
        return sum((grad * got).sum() for grad, got in zip(grads, fields, strict=True))

    step = 1e-5
    return directions, (objective(step) - objective(-step)) / (2 * step)


def check(case: Case, mode: str, x: Inputs, outputs, units: float) -> str | None:
    if mode == FULL:
        return check_slope(case, outputs)
    target = expected_forward(case)
    for name, got, want in zip(HMMFilterOutput._fields, outputs, target, strict=True):
        if name == "log_likelihood" and case.shape["T"] > CHECKED_STEPS:
            continue
        fault = compare(case, name, got[:CHECKED], want)
        if fault:
            return fault
    return None


def compare(case: Case, name: str, got: Tensor, want: np.ndarray) -> str | None:
    if want.ndim == 3:
        got = got[:, : want.shape[1]]
    steps = want.shape[1] if want.ndim == 3 else case.shape["T"]
    return deviation(name, got, want, hmm_error(getattr(torch, case.dtype), case.shape["S"], steps))


def check_slope(case: Case, gradients) -> str | None:
    directions, want = expected_slope(case)
    terms = [
        gradient[: len(d)].double().cpu().numpy() * d
        for gradient, d in zip(gradients, directions, strict=True)
    ]
    return slope_deviation(terms, want, getattr(torch, case.dtype), roundings=64)


STYLES = {  # marker, colour (Okabe and Ito's, which the colour-blind can tell apart)
    "numba": ("s", "#D55E00"),
    "torch": ("^", "#0072B2"),
    "native": ("o", "#009E73"),
    "triton": ("D", "#CC79A7"),
}


def plot_growth(rows: list[dict], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in rows if row["mode"] == FORWARD and row["provider"] in STYLES]
    names = {case.name for cases in GROWTH.values() for case in cases}
    rows = [row for row in rows if row["case"] in names]
    if not rows:
        print("--plot: nothing to draw: no growth case was measured", file=sys.stderr)
        return
    threads, device = min(row["threads"] for row in rows), rows[0]["device"]
    rows = [row for row in rows if (row["threads"], row["device"]) == (threads, device)]
    with pyplot.rc_context({"svg.fonttype": "none", "font.size": 10, "axes.axisbelow": True}):
        figure, axes = pyplot.subplots(1, 3, figsize=(10, 3.6), layout="constrained", sharey=True)
        for panel, (name, cases) in zip(axes, GROWTH.items(), strict=True):
            _draw_panel(panel, name, cases, rows)
        axes[0].set_ylabel("time per sequence (us)")
        axes[0].legend(frameon=False)
        figure.suptitle(
            f"hmm_filter, float32, own parameters; {device}, {threads} thread{'s' * (threads > 1)}",
            size=10,
        )
        figure.savefig(path)
        pyplot.close(figure)


def _draw_panel(axes, name: str, cases: list[Case], rows: list[dict]) -> None:
    sizes = {case.name: case.shape[name] for case in cases}
    for provider, (marker, colour) in STYLES.items():
        line = [row for row in rows if row["case"] in sizes and row["provider"] == provider]
        if not line:
            continue
        line.sort(key=lambda row: sizes[row["case"]])
        x = [sizes[row["case"]] for row in line]
        median, low, high = (
            [per_unit(row, f"{q}_ms") * 1e6 for row in line] for q in ("median", "p20", "p80")
        )
        axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(x, median, marker=marker, color=colour, label=provider, markersize=5)
    fixed = ", ".join(f"{k}={cases[0].shape[k]}" for k in "BTS" if k != name)
    labels = {"B": "sequences B", "T": "steps T", "S": "states S"}
    axes.set(xscale="log", yscale="log", xlabel=f"{labels[name]}  ({fixed})")
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def claims():
    for case in MAIN.values():
        for peer in ("compiled", "numba"):
            goal = "goal: three times as fast as the best peers, in the same precision"
            yield Claim(case.name, slow=peer, fast="native", at_least=3, goal=goal)
    for dtype, case in MAIN.items():
        goal = "goal: 2.5 times the time of copying the outputs"
        chain = "dependent steps with a transposition at both ends bound it, not memory"
        remark = f"known: {chain} (benchmarks/README.md)" if dtype == "float32" else ""
        native = dict(slow="native", fast="copy", at_most=2.5)
        yield Claim(case.name, **native, goal=goal, remark=remark)
    goal = "goal: 60% of the speed of torch.mm in the products with the transition matrix"
    yield Claim(LARGE.name, slow="native", fast="gemm", at_most=1 / 0.6, goal=goal)
    for case in (*MAIN.values(), LARGE):
        goal = "goal: forward and backward in the time of four forward passes"
        yield Claim(case.name, slow="native", fast="4-forward", at_most=1, mode=FULL, goal=goal)


BENCH = Bench(
    op=OP,
    cases=CASES,
    providers=[
        backend_provider("native", devices=("cpu",)),
        backend_provider("triton", devices=("cuda",)),
        backend_provider("torch"),
        Provider("compiled", make_compiled, modes=(FORWARD,)),
        Provider("numba", make_numba, devices=("cpu",), modes=(FORWARD,)),
        common.write_bound("write", output_shapes),
        Provider("copy", make_copy, modes=(FORWARD,), bound=True),
        common.gemm_bound("gemm", multiply_adds),
        Provider("4-forward", make_four_forwards, modes=(FULL,), bound=True),
    ],
    inputs=inputs,
    check=check,
    baseline="torch",
    unit="sequence",
    operations=multiply_adds,
    traffic=traffic,
    claims=tuple(claims()),
    quick=QUICK,
    slow=("compiled", "numba"),
    plot=plot_growth,
    plot_help="draw time against B, T and S",
    packages=("numba",),
)


def main(argv: list[str] | None = None) -> int:
    return command.main(BENCH, argv)


if __name__ == "__main__":
    sys.exit(main())
