"""Speed of bijection_posterior, per sequence.

    python benchmarks/bench_bijection_posterior.py --plot growth.svg

Slow providers are timed on fewer sequences than the case has (`units` in the row); times are per
sequence for all. `write` is the bound: the three outputs written with constants. `thewalrus` takes
each noisy row from permanents, one for each value, and gives no entropy or evidence.
"""

import functools
import math
import sys
from typing import NamedTuple

import command
import common
import numpy as np
import torch
from bounds import deviation, rounding, slope_deviation
from common import FORWARD, FULL, Bench, Case, Claim, Provider, Unavailable, per_unit
from torch import Tensor

from bwt import ops, reference
from bwt.ops import _dispatch
from bwt.reference.bijection_posterior import BijectionPosterior, NoisyEvidence

OP = "bijection_posterior"
NOISE = 0.2
# Multiply-adds in the reference that one check or one timed call may cost: about a second.
REFERENCE_BUDGET = 2e7
# Table entries that one call of eager torch may compute (about two seconds), and keep for the
# backward pass (about 400 MB for each of the few tensors it saves).
TORCH_BUDGET = 2e8
TORCH_SAVED_BUDGET = 5e7


class Inputs(NamedTuple):
    keys: Tensor  # [B, K]
    values: Tensor  # [B, K]
    channel: Tensor | None  # [V, V]
    grads: tuple[Tensor, Tensor, Tensor]  # of posterior, entropy and log_evidence


def declare(B: int, K: int, V: int, *, noisy: bool, replacement=False, modes=(FORWARD,)) -> Case:
    shape = dict(B=B, K=K, V=V, noisy=noisy, replacement=replacement)
    name = f"{'noisy' if noisy else 'noiseless'}-V{V}-K{K}"
    return Case(name, shape, modes, units=B)


BOTH = (FORWARD, FULL)
GROWTH = [
    declare(64, 7, 8, noisy=True, modes=BOTH),
    declare(16, 11, 12, noisy=True, modes=BOTH),
    declare(4, 15, 16, noisy=True),
    declare(2, 19, 20, noisy=True),
]
CASES = [
    declare(4096, 19, 20, noisy=False),
    declare(4096, 40, 20, noisy=False, replacement=True),
    declare(64, 9, 10, noisy=True, modes=BOTH),
    declare(64, 20, 10, noisy=True, replacement=True),
    *GROWTH,
]

QUICK = (declare(512, 11, 12, noisy=False), declare(8, 5, 6, noisy=True, modes=BOTH))


def inputs(case: Case, device: str) -> Inputs:
    B, K, V = (case.shape[name] for name in "BKV")
    rng = np.random.default_rng(0)
    dtype = getattr(torch, case.dtype)
    if case.shape["replacement"]:
        keys = rng.integers(V, size=(B, K))
    else:
        keys = np.stack([rng.permutation(V)[:K] for _ in range(B)])
    values = np.stack([rng.permutation(V)[row] for row in keys])
    channel = None
    if case.shape["noisy"]:
        # With probability NOISE the true value is replaced by one drawn uniformly.
        values = np.where(rng.random((B, K)) < NOISE, rng.integers(V, size=(B, K)), values)
        channel = ((1 - NOISE) * torch.eye(V) + NOISE / V).to(device, dtype)
    grads = [
        torch.from_numpy(rng.standard_normal(s)).to(device, dtype) for s in output_shapes(case)
    ]
    ids = (torch.from_numpy(ids).to(device) for ids in (keys, values))
    return Inputs(*ids, channel, tuple(grads))


def output_shapes(case: Case) -> list[tuple[int, ...]]:
    B, K, V = (case.shape[name] for name in "BKV")
    return [(B, K, V), (B, K), (B, K)]


def reference_cost(case: Case, steps: int) -> float:
    """Multiply-adds of the reference for one sequence."""
    if not case.shape["noisy"]:
        return 1e3 * steps  # none, but a Python loop of about that cost
    V = case.shape["V"]
    return sum(min(t, V) for t in range(steps)) * V * 2.0 ** (V - 1)


def sequences(case: Case, provider: str, mode: str) -> int:
    """How many of the case's sequences one call of a provider handles."""
    B, K, V = (case.shape[name] for name in "BKV")
    if provider == "thewalrus":
        affordable = 4 if V <= 12 else 1
    elif provider == "reference":
        affordable = REFERENCE_BUDGET / reference_cost(case, K)
    elif provider == "torch" and case.shape["noisy"]:
        # The table of subsets grows once for each value, key and step; backward keeps them all.
        numbers = V * sum(min(t, V) for t in range(K)) * 2.0**V
        affordable = (TORCH_BUDGET if mode == FORWARD else TORCH_SAVED_BUDGET) / numbers
    else:
        affordable = B
    if affordable < 1:
        raise Unavailable("takes minutes or gigabytes for one sequence")
    return min(B, int(affordable))


def backend_provider(backend: str, devices=("cpu", "cuda"), modes=BOTH) -> Provider:
    def make(case, mode, x, device):
        try:
            _dispatch.choose(OP, backend, torch.device(device))
        except RuntimeError as reason:
            raise Unavailable(reason) from reason
        count = sequences(case, backend, mode)
        keys, values, V = x.keys[:count], x.values[:count], case.shape["V"]
        channel = x.channel

        def forward():
            return ops.bijection_posterior(keys, values, V, channel=channel, backend=backend)

        if mode == FORWARD:
            return forward, count
        channel = channel.clone().requires_grad_()
        grads = [grad[:count] for grad in x.grads]
        return lambda: torch.autograd.grad(forward(), channel, grads), count

    return Provider(backend, make, devices, modes, backend=backend)


def make_thewalrus(case, mode, x, device):
    if not case.shape["noisy"]:
        raise Unavailable("needs no permanents without noise")
    from thewalrus import perm

    count = sequences(case, "thewalrus", mode)
    keys, values = x.keys[:count].tolist(), x.values[:count].tolist()
    channel = x.channel.double().numpy()

    def call():
        rows = [
            [permanent_row(perm, k[t], k[:t], v[:t], channel) for t in range(len(k))]
            for k, v in zip(keys, values, strict=True)
        ]
        return (torch.from_numpy(np.array(rows)),)

    return call, count


def permanent_row(perm, key, seen_keys, seen_values, channel) -> np.ndarray:
    """p(pi(key) = v) ~ likelihood of the key's own observations at v, times the permanent of the
    other keys' likelihoods over the values but v. Keys not seen yet have rows of ones: they count
    each assignment of the seen ones equally often, which the normalisation removes."""
    V = len(channel)
    likelihood = {}
    for seen, value in zip(seen_keys, seen_values, strict=True):
        likelihood[seen] = likelihood.get(seen, 1.0) * channel[:, value]
    own = likelihood.pop(key, np.ones(V))
    if not likelihood:
        return own / own.sum()
    others = np.ones((V - 1, V))
    others[: len(likelihood)] = list(likelihood.values())
    row = own * [perm(np.delete(others, v, axis=1)) for v in range(V)]
    return row / row.sum()


class Expected(NamedTuple):
    picks: list[int]  # sequences; the first few, which every provider handles, and some of all
    fields: tuple[np.ndarray, ...]  # of their first steps, as many as the reference can do
    last_row: np.ndarray | None  # of sequence 0, if `fields` does not have it


@functools.cache
def expected_forward(case: Case) -> Expected:
    x = inputs(case, "cpu")
    B, K, V = (case.shape[name] for name in "BKV")
    steps = max(s for s in range(1, K + 1) if reference_cost(case, s) <= REFERENCE_BUDGET)
    count = min(256, int(REFERENCE_BUDGET / max(reference_cost(case, steps), 1.0)))
    picks = sorted({*range(min(4, B, count)), *np.linspace(0, B - 1, count, dtype=int).tolist()})
    channel = None if x.channel is None else x.channel.double().numpy()
    keys, values = x.keys.numpy(), x.values.numpy()
    fields = reference.bijection_posterior(
        keys[picks, :steps], values[picks, :steps], V, channel=channel
    )
    last_row = None
    if steps < K:
        evidence = NoisyEvidence(channel)
        for key, value in zip(keys[0, :-1].tolist(), values[0, :-1].tolist(), strict=True):
            evidence.observe(key, value)
        last_row, _ = evidence.row(int(keys[0, -1]), int(values[0, -1]))
    return Expected(picks, fields, last_row)


@functools.cache
def expected_slope(case: Case, count: int) -> tuple[np.ndarray, float]:
    """A direction in channel space, and by central differences of the reference the slope along it
    of what the backward pass differentiates."""
    x = inputs(case, "cpu")
    channel = x.channel.double().numpy()
    direction = channel * np.random.default_rng(1).standard_normal(channel.shape)
    grads = [grad[:count].double().numpy() for grad in x.grads]

    def objective(moved):
        keys, values = x.keys[:count].numpy(), x.values[:count].numpy()
        fields = reference.bijection_posterior(keys, values, len(moved), channel=moved)
        return sum((grad * got).sum() for grad, got in zip(grads, fields, strict=True))

    step = 1e-5
    rise = objective(channel + step * direction) - objective(channel - step * direction)
    return direction, rise / (2 * step)


def check(case: Case, mode: str, x: Inputs, outputs, count: float) -> str | None:
    if mode == FULL:
        return check_slope(case, *outputs, int(count))
    target = expected_forward(case)
    picks = [pick for pick in target.picks if pick < len(outputs[0])]
    # Not strict: thewalrus has the posterior only.
    for name, got, want in zip(BijectionPosterior._fields, outputs, target.fields, strict=False):
        fault = compare(name, got[picks, : want.shape[1]], want[: len(picks)], case.dtype)
        if fault:
            return fault
    if target.last_row is not None:
        return compare("last posterior row", outputs[0][0, -1], target.last_row, case.dtype)
    return None


def compare(name: str, got: Tensor, want: np.ndarray, dtype: str) -> str | None:
    return deviation(name, got, want, rounding(getattr(torch, dtype)))


def check_slope(case: Case, gradient: Tensor, count: int) -> str | None:
    direction, want = expected_slope(case, count)
    terms = gradient.double().cpu().numpy() * direction
    return slope_deviation([terms], want, getattr(torch, case.dtype), roundings=4)


def operations(case: Case) -> int:
    """Multiply-adds of the dynamic programme for one sequence whose keys do not repeat."""
    K, V = case.shape["K"], case.shape["V"]
    return sum(i * math.comb(V, i) for i in range(1, K))


def traffic(case: Case, mode: str) -> float:
    """Ids are read and three outputs written; backward, ids and the gradients of the outputs are
    read."""
    B, K, V = (case.shape[name] for name in "BKV")
    outputs = getattr(torch, case.dtype).itemsize * B * K * (V + 2)
    forward = 2 * 8 * B * K + outputs
    return forward if mode == FORWARD else 2 * forward


def plot_growth(rows: list[dict], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    work = {case.name: operations(case) for case in GROWTH}
    rows = [row for row in rows if row["case"] in work and row["mode"] == FORWARD]
    rows = [row for row in rows if row["provider"] in STYLES]
    if not rows:
        print("--plot: nothing to draw: no growth case was measured", file=sys.stderr)
        return
    threads = min(row["threads"] for row in rows)
    device = rows[0]["device"]
    rows = [row for row in rows if (row["threads"], row["device"]) == (threads, device)]
    with pyplot.rc_context({"svg.fonttype": "none", "font.size": 10, "axes.axisbelow": True}):
        figure, axes = pyplot.subplots(figsize=(6.6, 4.4), layout="constrained")
        for name, (marker, colour) in STYLES.items():
            _draw_line(axes, name, marker, colour, [r for r in rows if r["provider"] == name], work)
        _draw_slope(axes, rows, work)
        _label(axes, work)
        axes.set_title(
            f"bijection_posterior, noisy channel\n{device}, {threads} thread{'s' * (threads > 1)}",
            size=10,
        )
        figure.savefig(path)
        pyplot.close(figure)


STYLES = {  # marker, colour (Okabe and Ito's, which the colour-blind can tell apart)
    "reference": ("v", "#999999"),
    "thewalrus": ("s", "#D55E00"),
    "torch": ("^", "#0072B2"),
    "native": ("o", "#009E73"),
    "cuda": ("D", "#CC79A7"),
}


def _draw_line(axes, name, marker, colour, rows, work) -> None:
    if not rows:
        return
    x = [work[row["case"]] for row in rows]
    median, low, high = (
        [per_unit(row, f"{q}_ms") * 1e3 for row in rows] for q in ("median", "p20", "p80")
    )
    axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.plot(x, median, marker=marker, color=colour, label=name, markersize=5)


def _draw_slope(axes, rows, work) -> None:
    """Time in proportion to the operations, through the fastest point at the largest size."""
    most = max(work[row["case"]] for row in rows)
    time = min(per_unit(row) * 1e3 for row in rows if work[row["case"]] == most)
    x = np.array([min(work.values()), most])
    axes.plot(x, time * x / most, "k:", linewidth=1, label="slope 1")


def _label(axes, work) -> None:
    axes.set(xscale="log", yscale="log", ylabel="time per sequence (ms)")
    axes.set_xlabel(r"operations per sequence, $\sum_{i=1}^{K-1} i\,C(V,i)$  (multiply-adds)")
    top = axes.secondary_xaxis("top")
    top.set_xticks(list(work.values()), [f"V={case.shape['V']}" for case in GROWTH])
    top.minorticks_off()
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.spines["right"].set_visible(False)
    axes.legend(frameon=False)


def claims():
    for name in ("noiseless-V20-K19", "noiseless-V20-K40"):
        goal = "goal: ten times as fast as the best vectorised torch"
        yield Claim(name, slow="torch", fast="native", at_least=10, goal=goal)
        goal = "goal: twice the time of writing the same output to memory"
        remark = "known: looking at the pairs takes as long again (benchmarks/README.md)"
        target = dict(slow="native", fast="write", at_most=2)
        yield Claim(name, **target, goal=goal, remark=remark)
    goal = "goal: fifty times as fast as rows from a library of permanents"
    yield Claim("noisy-V10-K9", slow="thewalrus", fast="native", at_least=50, goal=goal)


BENCH = Bench(
    op=OP,
    cases=CASES,
    providers=[
        backend_provider("native", devices=("cpu",)),
        backend_provider("cuda", devices=("cuda",)),
        backend_provider("torch"),
        backend_provider("reference", devices=("cpu",), modes=(FORWARD,)),
        Provider("thewalrus", make_thewalrus, devices=("cpu",), modes=(FORWARD,)),
        common.write_bound("write", output_shapes),
    ],
    inputs=inputs,
    check=check,
    baseline="torch",
    unit="sequence",
    traffic=traffic,
    claims=tuple(claims()),
    quick=QUICK,
    slow=("reference", "thewalrus"),
    plot=plot_growth,
    plot_help="draw time against operations for the noisy cases V = 8, 12, 16, 20",
    packages=("thewalrus",),
)


def main(argv: list[str] | None = None) -> int:
    return command.main(BENCH, argv)


if __name__ == "__main__":
    sys.exit(main())
