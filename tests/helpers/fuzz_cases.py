"""Random calls and what must hold for them. A case is a kind and a seed, and nothing else."""

import contextlib
import io
import shutil
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import torch

from bwt import ops, train
from bwt.cli import main
from helpers import exact_bijections, hmm_exact
from helpers.damaged_runs import COMMANDS, CONFIG, DAMAGES, FILES
from helpers.extreme_channels import power_channel
from helpers.strided import (
    Call,
    calls,
    distributions,
    expected_gradients,
    gradients,
    noise_like,
    normal,
    run,
    variants,
)
from helpers.tolerances import (
    attention_error,
    gelu_error,
    hmm_error,
    hmm_relative_error,
    norm_error,
    rounding,
    scan_error,
    subset_sums,
)

DTYPES = (torch.float32, torch.float64)


def check(kind: str, seed: int) -> None:
    """Raises if the case fails."""
    rng = np.random.default_rng([sorted(KINDS).index(kind), seed])
    torch.set_num_threads(int(rng.integers(1, 4)))
    KINDS[kind](rng)


def choose(rng, *values):
    return values[rng.integers(len(values))]


def compare(rng, call: Call, *, slopes: bool) -> None:
    """Some strides of every argument, one backend, values and perhaps gradients."""
    others = {
        name: choose(rng, *(other for _, other in variants(x)))
        for name, x in call.tensors().items()
        if x.ndim and x.numel()
    }
    strided = call.with_arguments(others)
    backend = choose(rng, "native", "native", "torch")
    call.assert_close(run(strided, backend), call.expected(), backend)
    if slopes and call.differentiable and all(x.numel() for x in call.tensors().values()):

        def incoming(i, output):
            return noise_like(i, output, call.dtype)

        target = expected_gradients(call, incoming)
        call.assert_close(gradients(strided, backend, incoming), target, f"gradients {backend}")


def attention(rng) -> None:
    dtype, keys = choose(rng, *DTYPES), int(rng.integers(1, 71))
    queries, size = int(rng.integers(1, keys + 1)), int(choose(rng, rng.integers(1, 40), 64, 256))
    batch, heads = rng.integers(1, 4, size=2).tolist()
    call = Call(
        "attention",
        "attention",
        {
            "q": normal(rng, dtype, batch, heads, queries, size),
            "k": normal(rng, dtype, batch, heads, keys, size),
            "v": normal(rng, dtype, batch, heads, keys, size),
            "causal": bool(rng.integers(2)),
            "capture": ("weights", "entropy"),
        },
        ("q", "k", "v"),
        lambda dtype: attention_error(dtype, keys, size),
    )
    compare(rng, call, slopes=bool(rng.integers(2)))


def hmm(rng) -> None:
    dtype, op = choose(rng, *DTYPES), choose(rng, "hmm_filter", "hmm_smooth")
    batch, steps = int(rng.integers(0, 20)), int(rng.integers(0, 60))
    states = int(choose(rng, rng.integers(1, 10), rng.integers(10, 40), 128))
    symbols = int(rng.integers(1, 13))
    own = rng.integers(2, size=3)
    shapes = {"initial": (states,), "transition": (states, states), "emission": (states, symbols)}
    parameters = {
        name: distributions(rng, dtype, *((batch,) if each else ()), *shape)
        for (name, shape), each in zip(shapes.items(), own, strict=True)
    }
    arguments = {"observations": torch.from_numpy(rng.integers(-1, symbols, size=(batch, steps)))}
    if rng.integers(2):
        arguments["lengths"] = torch.from_numpy(rng.integers(0, steps + 1, size=batch))
    call = Call(
        op,
        op,
        {**arguments, **parameters},
        tuple(parameters) if op == "hmm_filter" else (),
        lambda dtype: hmm_error(dtype, max(states, symbols), steps),
    )
    compare(rng, call, slopes=states <= 10 and steps <= 20 and bool(rng.integers(2)))


def extreme_hmm(rng) -> None:
    """Zeros, tiny entries and long sequences, against whole numbers of any length."""
    states, symbols = rng.integers(1, 5, size=2).tolist()
    steps = int(rng.integers(1, 400))
    dtype = choose(rng, *DTYPES)
    concentration = float(choose(rng, 1.0, 0.1, 0.02))

    def rows(*shape):
        x = rng.dirichlet(np.full(shape[-1], concentration), size=shape[:-1])
        x[rng.random(x.shape) < 0.2] = 0.0
        x[..., 0] += x.sum(-1) == 0
        return torch.from_numpy(x / x.sum(-1, keepdims=True)).to(dtype)

    parameters = (rows(states), rows(states, states), rows(states, symbols))
    y = rng.integers(-1, symbols, size=steps)
    want = hmm_exact.exact(y, *(x.double().numpy() for x in parameters))
    got = ops.hmm_filter(torch.from_numpy(y)[None], *parameters)
    smooth = ops.hmm_smooth(torch.from_numpy(y)[None], *parameters)
    bound, tiny = hmm_relative_error(dtype, states, steps), torch.finfo(dtype).tiny
    pairs = {
        name: (getattr(got, name)[0], getattr(want, name)) for name in ("filtered", "predicted")
    }
    pairs["smoothed"] = smooth.smoothed[0], want.smoothed
    for name, (actual, target) in pairs.items():
        np.testing.assert_allclose(actual.double(), target, rtol=bound, atol=2 * tiny, err_msg=name)
    for actual in (got.log_likelihood, smooth.log_likelihood):
        np.testing.assert_allclose(actual.double()[0], want.log_likelihood, rtol=bound, atol=bound)


def bijection(rng) -> None:
    symbols, batch = int(rng.integers(1, 70)), int(rng.integers(0, 9))
    steps = int(rng.integers(0, 2 * symbols + 1))
    table = rng.permuted(np.tile(np.arange(symbols), (batch, 1)), axis=1)
    keys = rng.integers(symbols, size=(batch, steps))
    values = np.take_along_axis(table, keys, 1)
    kind = choose(rng, torch.int32, torch.int64)
    call = Call(
        "bijection_posterior",
        "bijection_posterior",
        {
            "keys": torch.from_numpy(keys).to(kind),
            "values": torch.from_numpy(values).to(kind),
            "num_symbols": symbols,
        },
        (),
        rounding,
    )
    compare(rng, call, slopes=False)


def noisy_bijection(rng) -> None:
    dtype, symbols, batch = choose(rng, *DTYPES), int(rng.integers(1, 7)), int(rng.integers(0, 5))
    steps = int(rng.integers(0, 25))
    keys, values = torch.from_numpy(rng.integers(symbols, size=(2, batch, steps)))
    call = Call(
        "noisy",
        "bijection_posterior",
        {
            "keys": keys,
            "values": values,
            "num_symbols": symbols,
            "channel": distributions(rng, dtype, symbols, symbols),
        },
        ("channel",),
        # A gradient is a sum over all rows.
        lambda dtype: (1 + steps * batch) * (rounding(dtype) + steps * subset_sums(symbols, steps)),
    )
    compare(rng, call, slopes=2 <= symbols <= 5 and bool(rng.integers(2)))


def extreme_bijection(rng) -> None:
    """Channels down to the smallest normal number, against whole numbers."""
    symbols, steps = int(rng.integers(1, 5)), int(rng.integers(1, 60))
    channel = power_channel(rng, symbols, float(choose(rng, 1e-10, 1e-150, 1e-307)))
    keys, values = rng.integers(symbols, size=(2, steps))
    want = exact_bijections.exact(keys, values, channel)
    got = ops.bijection_posterior(
        torch.from_numpy(keys)[None],
        torch.from_numpy(values)[None],
        symbols,
        channel=torch.from_numpy(channel),
    )
    bound = steps * subset_sums(symbols, steps)
    np.testing.assert_allclose(got.posterior[0], want.posterior, rtol=bound, atol=5e-324)
    np.testing.assert_allclose(got.log_evidence[0], want.log_evidence, rtol=bound, atol=bound)


def scan(rng) -> None:
    dtype = choose(rng, *DTYPES)
    batch, steps, channels = (int(rng.integers(0, n)) for n in (4, 70, 20))
    states = int(choose(rng, rng.integers(1, 20), 64))
    models = () if rng.integers(2) else (int(rng.integers(1, 4)),)
    batch *= models[0] if models else 1
    arguments = {
        "u": normal(rng, dtype, batch, steps, channels),
        "delta": normal(rng, dtype, batch, steps, channels) - 2,
        "A": -normal(rng, dtype, *models, channels, states).abs(),
        "B": normal(rng, dtype, batch, steps, states),
        "C": normal(rng, dtype, batch, steps, states),
    }
    if rng.integers(2):
        arguments["D"] = normal(rng, dtype, *models, channels)
    if rng.integers(2):
        arguments["initial_state"] = normal(rng, dtype, batch, channels, states)
    call = Call(
        "selective_scan",
        "selective_scan",
        {**arguments, "delta_softplus": True},
        tuple(arguments),
        lambda dtype: scan_error(dtype, steps * max(batch, 1), states * max(channels, 1)),
    )
    compare(rng, call, slopes=bool(rng.integers(2)))


def pointwise(rng) -> None:
    dtype = choose(rng, *DTYPES)
    shape = rng.integers(1, 40, size=rng.integers(1, 4)).tolist()
    x = normal(rng, dtype, *shape) * float(choose(rng, 1.0, 30.0))
    models = int(choose(rng, *(n for n in range(1, 40) if int(np.prod(shape[:-1])) % n == 0)))
    size = (shape[-1],) if rng.integers(2) else (models, shape[-1])
    bias = {"bias": normal(rng, dtype, *size)} if rng.integers(2) else {}
    if rng.integers(2):
        arguments = {"x": x, **bias}
        largest = float(sum(y.abs().max() for y in arguments.values()))
        count = int(np.prod(shape[:-1]))  # of what a bias sums

        def error(dtype):
            return gelu_error(dtype, largest) + norm_error(dtype, count)

        call = Call("gelu", "gelu", arguments, tuple(arguments), error)
    else:
        name, arguments = "rms_norm", {"x": x, "weight": normal(rng, dtype, *size)}
        if bias:
            name, branch = "add_rms_norm", normal(rng, dtype, *shape)
            arguments = {"x": x, "branch": branch, "weight": arguments["weight"], **bias}
        total = ops.add_rms_norm(**arguments, backend="torch").total if bias else x
        # A gradient is what is left of terms as large as one over the norm of a row.
        steepest = max(1.0, float(total.double().square().mean(-1).rsqrt().max()))

        def error(dtype):
            return steepest * norm_error(dtype, int(np.prod(shape)))

        call = Call(name, name, arguments, tuple(arguments), error)
    compare(rng, call, slopes=bool(rng.integers(2)))


def _corrupted(rng, x: torch.Tensor):
    """Something else in the place of a tensor."""
    return choose(
        rng,
        lambda: x.tolist(),
        lambda: None,
        lambda: "x",
        lambda: x[None],
        lambda: x.flatten() if x.ndim > 1 else x[0],
        lambda: torch.cat([x, x[..., :1]], -1),
        lambda: x[..., 1:],
        lambda: x[:-1],
        lambda: x.bool(),
        lambda: x.to(torch.complex64),
        lambda: x.half() if x.is_floating_point() else x.float(),
        lambda: x.to(torch.int8),
        lambda: x.to("meta"),
        lambda: x + 1000 if not x.is_floating_point() else x * float("nan"),
        lambda: x - 1000,
    )()


def malformed(rng) -> None:
    """One argument is wrong: refused in one line, or served where it happens to make sense."""
    call = choose(rng, *calls(choose(rng, *DTYPES)))
    name = choose(rng, *call.tensors())
    wrong = call.arguments | {name: _corrupted(rng, call.arguments[name])}
    backend = choose(rng, "auto", "native", "torch", "reference")
    try:
        getattr(ops, call.op)(**wrong, backend=backend)
    except (ValueError, RuntimeError, TypeError, NotImplementedError) as error:
        text = str(error)
        if isinstance(error, ValueError) and ("\n" in text or not text.startswith(call.op[:4])):
            raise AssertionError(f"not one line that names the op: {text!r}") from error


@cache
def _finished() -> Path:
    path = Path(tempfile.mkdtemp(prefix="bwt-fuzz-")) / "run"
    train.train(CONFIG, path)
    main(["geometry", str(path), "--sequences", "16", "--json"])
    return path


def damaged(rng) -> None:
    """A file of a run is not what it was: an answer or one line, never a traceback."""
    with contextlib.redirect_stdout(io.StringIO()):
        source = _finished()
    with tempfile.TemporaryDirectory(prefix="bwt-fuzz-") as folder:
        run = Path(folder) / "run"
        shutil.copytree(source, run)
        file = run / choose(rng, *FILES)
        if rng.integers(2):
            DAMAGES[choose(rng, *DAMAGES)](file)
        else:
            data = bytearray(file.read_bytes())
            for place in rng.integers(len(data), size=rng.integers(1, 9)):
                data[place] = int(rng.integers(256))
            file.write_bytes(data)
        name = choose(rng, *COMMANDS)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(COMMANDS[name](str(run)))
        said = err.getvalue().strip().splitlines()
        if code not in (0, 2, 3) or (code == 2 and len(said) != 1):
            raise AssertionError(f"bwt {name} with {file.name} damaged: exit {code}, {said!r}")


KINDS = {
    "attention": attention,
    "bijection": bijection,
    "damaged": damaged,
    "extreme_bijection": extreme_bijection,
    "extreme_hmm": extreme_hmm,
    "hmm": hmm,
    "malformed": malformed,
    "noisy_bijection": noisy_bijection,
    "pointwise": pointwise,
    "scan": scan,
}
