"""torch.ops.bwt called directly, past the checks of bwt.ops, with what does not fit: an error, and
never a crash. Each op has a process of its own, which must live to the end."""

import subprocess
import sys

import pytest
import torch

B, T, S, V, H, D, E, N = 3, 5, 4, 6, 2, 8, 7, 3


def zeros(*shape, dtype=torch.float64):
    return torch.zeros(shape, dtype=dtype)


def ids(*shape):
    return zeros(*shape, dtype=torch.int64)


def uniform(*shape):
    return torch.full(shape, 1 / shape[-1], dtype=torch.float64)


def good_calls() -> dict:
    """Arguments that fit, by the name of the op."""
    heads, rows = zeros(B, H, T, D), zeros(B, H, T)
    weights = uniform(B, H, T, T)
    hmm = [ids(B, T), uniform(S), uniform(S, S), uniform(S, V), torch.full((B,), T)]
    filtered = [uniform(B, T, S), uniform(B, T, S), zeros(B)]
    scan = [zeros(B, T, E), zeros(B, T, E), zeros(E, N), zeros(B, T, N), zeros(B, T, N), zeros(E)]
    of_models = [*scan[:2], zeros(B, E, N), *scan[3:5], zeros(B, E)]
    keys = torch.arange(T).expand(B, T)
    bijection = [zeros(B, T, V), zeros(B, T), zeros(B, T), keys, keys, uniform(V, V)]
    return {
        "attention": [heads, heads, heads, True, 1.0, *[True] * 4, 2, [0], [0]],
        "attention_backward": [
            *(heads, weights, rows, rows, heads, heads, heads, heads, rows, weights, rows),
            *(True, 1.0, uniform(B, H, T), rows, zeros(B, H, T, 2)),
            *(ids(B, H, T), zeros(B, H, T, 2), ids(B, H, T, 2)),
        ],
        "hmm_filter": hmm,
        "hmm_filter_backward": [zeros(B, T, S), zeros(B, T, S), zeros(B), *hmm, *filtered],
        "hmm_smooth": [*hmm, *filtered],
        "bijection_posterior": [keys, keys, V, torch.float64],
        "bijection_posterior.noisy": [keys, keys, uniform(V, V), torch.float64],
        "bijection_posterior_backward": bijection,
        "selective_scan": [*scan, zeros(B, N, E), True, 1, True],
        "selective_scan_backward": [
            *(zeros(B, T, E), zeros(B, N, E), *of_models, zeros(B, N, E)),
            *(zeros(B, T, N, E), True, 1),
        ],
        "rms_norm": [zeros(B, T, D), zeros(D), 1e-6],
        "rms_norm_backward": [zeros(B, T, D), zeros(B, T, D), zeros(D), zeros(B * T)],
        "gelu": [zeros(B, T, D), zeros(D)],
        "gelu_backward": [zeros(B, T, D), zeros(B, T, D), zeros(D)],
        "add_bias": [zeros(B, T, D), zeros(D)],
        "add_bias_backward": [zeros(B, T, D), zeros(D)],
        "add_rms_norm": [zeros(B, T, D), zeros(B, T, D), zeros(D), zeros(D), 1e-6],
        "add_rms_norm_backward": [
            *(zeros(B, T, D), zeros(B, T, D), zeros(B, T, D)),
            *(zeros(D), zeros(B * T), True),
        ],
    }


def replacements(x):
    """What to put in the place of an argument, by what is then wrong with it."""
    if isinstance(x, torch.dtype):
        return {"float16": torch.float16, "int64": torch.int64}
    if isinstance(x, bool | float):
        return {}
    if isinstance(x, list):
        return {"negative": [-1], "huge": [1 << 40], "repeated": x + x}
    if isinstance(x, int):
        return {"negative": -1, "huge": 1 << 40}
    kinds = {"None": None, "scalar": x.new_zeros(()), "another dimension": x[None]}
    for dtype in (torch.float16, torch.int16, torch.bool, torch.float32):
        kinds[str(dtype).removeprefix("torch.")] = x.to(dtype)
    for d in range(x.ndim):
        kinds[f"{d} shorter"] = x.narrow(d, 0, x.shape[d] - 1)
        kinds[f"{d} empty"] = x.narrow(d, 0, 0)
        kinds[f"{d} doubled"] = torch.cat([x, x], d)
    return kinds


# For the kernels of GPUs.
UNREAD = {("attention_backward", name) for name in ("out", "lse", "entropy", "top_weights")}


def accepted(name: str) -> list[str]:
    """Which of the calls with one wrong argument do not raise."""
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.bwt, packet), overload or "default")
    good = good_calls()[name]
    op(*good)
    calm = []
    for i, x in enumerate(good):
        argument = op._schema.arguments[i].name
        if (name, argument) in UNREAD:
            continue
        for kind, other in replacements(x).items():
            try:
                op(*good[:i], other, *good[i + 1 :])
            except (RuntimeError, TypeError):
                continue
            calm.append(f"{argument} {kind}")
    return calm


# What fits all the same: an optional argument may be absent, there may be fewer queries than keys,
# more steps than lengths say, another number of symbols in what does not look at the sum of a row,
# rows of any number, and parameters of one model.
ANY_ROWS = {f"x {d} {kind}" for d in (0, 1) for kind in ("shorter", "empty", "doubled")}
FITTING = {
    "attention": {"q 2 shorter"},
    "attention_backward": {
        *(f"grad_{name} None" for name in ("out", "weights", "entropy", "lse")),
        *(f"grad_{name} None" for name in ("received", "max_logit", "top_k")),
        "weights None",
    },
    "hmm_filter": {"lengths None", "observations 1 doubled"},
    "hmm_filter_backward": {
        *(f"grad_{name} None" for name in ("filtered", "predicted", "log_likelihood")),
        *("lengths None", "emission 1 shorter", "emission 1 doubled"),
    },
    "hmm_smooth": {"lengths None", "emission 1 shorter", "emission 1 doubled"},
    "selective_scan": {"D None", "initial None"},
    "selective_scan_backward": {"D None", "initial None", "grad_last None"},
    "rms_norm": {"x another dimension", *ANY_ROWS, "weight another dimension"},
    "rms_norm_backward": {"weight another dimension"},
    "gelu": {"x another dimension", *ANY_ROWS, "bias None", "bias another dimension"},
    "gelu_backward": {"bias None", "bias another dimension"},
    "add_bias": {"x another dimension", *ANY_ROWS, "bias another dimension"},
    "add_bias_backward": {
        *("grad_y another dimension", "bias another dimension"),
        *(kind.replace("x", "grad_y") for kind in ANY_ROWS),
    },
    "add_rms_norm": {"bias None"},
    "add_rms_norm_backward": {"grad_total None", "weight another dimension"},
}


@pytest.fixture(scope="module")
def answers():
    """Of each op, what it took. From one process for all: where it died, the answers end."""
    child = [sys.executable, "-P", __file__]
    done = subprocess.run(child, capture_output=True, text=True)
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    return {name: set(took) for name, *took in lines}, done.stderr[-2000:]


@pytest.mark.parametrize("name", good_calls())
def test_what_does_not_fit_is_refused(name, answers):
    took, complaint = answers
    assert name in took, complaint
    assert took[name] == FITTING.get(name, set())


if __name__ == "__main__":
    import bwt.ops  # noqa: F401  registers the ops

    for op in good_calls():
        print(op, *accepted(op), sep="\t", flush=True)
