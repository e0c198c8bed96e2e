"""hmm_filter and hmm_smooth at great length and for extreme values, against exact arithmetic."""

import numpy as np
import pytest
import torch
from helpers import tiers
from helpers.hmm_exact import exact, slopes
from helpers.hmm_extremes import cases, certain_coins, coins, never_entered, there_and_back, widened
from helpers.tolerances import hmm_relative_error

from bwt.ops.hmm_filter import hmm_filter
from bwt.ops.hmm_smooth import hmm_smooth

BACKENDS = ["native", "torch"]
SMALL = {torch.float32: 1e-35, torch.float64: 1e-300}
DTYPES = list(SMALL)
NAMES = list(cases(1e-35))


def tensors(model, dtype, copies=1, shared=True):
    """The model in a dtype, and its numbers there as float64."""
    y, *parameters = model
    rounded = [torch.from_numpy(x).to(dtype) for x in parameters]
    plain = (y, *(x.double().numpy() for x in rounded))
    y = torch.from_numpy(y).expand(copies, -1)
    if not shared:
        rounded = [x.expand(copies, *x.shape) for x in rounded]
    return (y, *rounded), plain


def assert_close(name, got, want, dtype, bound):
    """Relative to each entry that is a normal number."""
    tiny = torch.finfo(dtype).tiny
    for row in got:
        np.testing.assert_allclose(row, want, rtol=bound, atol=tiny * bound, err_msg=name)


@pytest.mark.parametrize("backend", tiers.mark("slow", BACKENDS, (0,)))
@pytest.mark.parametrize("states", tiers.mark("slow", [None, 12], (0,)))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_values(name, dtype, states, backend):
    model = cases(SMALL[dtype])[name]
    if states:
        model = widened(model, states)
    arguments, plain = tensors(model, dtype, copies=3, shared=name != "coins")
    want = exact(*plain)
    bound = hmm_relative_error(dtype, arguments[1].shape[-1], len(plain[0]))
    got = hmm_filter(*arguments, backend=backend)
    smooth = hmm_smooth(*arguments, backend=backend)
    assert_close("filtered", got.filtered.double(), want.filtered, dtype, bound)
    assert_close("predicted", got.predicted.double(), want.predicted, dtype, bound)
    assert_close("smoothed", smooth.smoothed.double(), want.smoothed, dtype, bound)
    for log in (got.log_likelihood, smooth.log_likelihood):
        np.testing.assert_allclose(log.double(), want.log_likelihood, rtol=bound)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype,steps", [(torch.float32, 151), (torch.float64, 1081)])
def test_unlikely_is_not_impossible(backend, dtype, steps):
    arguments, _ = tensors(certain_coins(steps), dtype)
    got = hmm_filter(*arguments, backend=backend)
    want = (steps + 1) * np.log(0.5)
    np.testing.assert_allclose(got.log_likelihood.double(), want, rtol=1e-6)
    assert got.filtered[0, -1].tolist() == [0.0, 1.0]


GRADIENT_NAMES = [
    "coins",
    "certain-coins",
    "never-entered",
    "third-keeps-alive",
    "unentered-there-and-back",
    "left-to-right",
    "tiny-entries",
]


def gradient_case(name, dtype):
    """Shorter, as every entry is differentiated by itself."""
    short = 130 if dtype == torch.float32 else 1100
    if name in ("coins", "certain-coins", "never-entered"):
        build = {"coins": coins, "certain-coins": certain_coins, "never-entered": never_entered}
        return build[name](short if name == "certain-coins" else short // 2)
    y, *parameters = cases(SMALL[dtype])[name]
    return y[-160:] if name != "unentered-there-and-back" else y, *parameters


@pytest.mark.parametrize("incoming", ["log_likelihood", "all"])
@pytest.mark.parametrize("states", tiers.mark("slow", [None, 9], (0,)))
@pytest.mark.parametrize("name", GRADIENT_NAMES)
def test_gradients(name, states, incoming):
    check_gradients(name, states, incoming, torch.float32, "native")


@pytest.mark.parametrize("incoming", ["log_likelihood", "all"])
@pytest.mark.parametrize("name", ["certain-coins", "coins", "left-to-right"])
def test_gradients_in_torch(name, incoming):
    check_gradients(name, None, incoming, torch.float32, "torch")


def check_gradients(name, states, incoming, dtype, backend):
    model = gradient_case(name, dtype)
    if states:
        model = widened(model, states)
    arguments, plain = tensors(model, dtype, copies=2)
    y, *parameters = arguments
    leaves = [x.clone().requires_grad_() for x in parameters]
    got = hmm_filter(y, *leaves, backend=backend)
    rng = np.random.default_rng(0)
    shape = (y.shape[1], leaves[0].shape[-1])
    weights = [rng.standard_normal(shape), rng.standard_normal(shape), 1.5]
    if incoming != "all":
        weights[:2] = np.zeros((2, *shape))
    weights = [np.asarray(w, np.float32).astype(np.float64) for w in weights]
    loss = sum((x.double() * torch.from_numpy(w)).sum() for x, w in zip(got, weights, strict=True))
    found = torch.autograd.grad(loss, leaves)
    bound = hmm_relative_error(dtype, shape[1], shape[0])
    largest = torch.finfo(dtype).max
    for parameter, gradient, want in zip(
        ("initial", "transition", "emission"), found, slopes(*plain, weights), strict=True
    ):
        value, size = 2 * want  # two copies
        overflow = np.abs(value) >= largest
        assert gradient.isfinite().all(), parameter
        gradient = gradient.double().numpy()
        np.testing.assert_array_equal(
            gradient[overflow], np.sign(value[overflow]) * largest, err_msg=parameter
        )
        error = np.abs(gradient - value)[~overflow]
        allowed = bound * size[~overflow] + torch.finfo(dtype).tiny
        assert (error <= allowed).all(), (parameter, gradient, value, size)


def test_a_delicate_sequence_leaves_the_others_alone():
    """Same values and gradients beside it as without it, whatever the threads."""
    rare, _ = tensors(there_and_back(400), torch.float32, copies=1, shared=False)
    y = torch.randint(2, (40, 400))
    plain = [torch.rand(40, *x.shape[1:]).softmax(-1) for x in rare[1:]]
    y[17], sets = rare[0][0], [x.clone() for x in plain]
    for x, one in zip(sets, rare[1:], strict=True):
        x[17] = one[0]
    results = []
    for parameters in (plain, sets):
        leaves = [x.clone().requires_grad_() for x in parameters]
        got = hmm_filter(y, *leaves)
        gradients = torch.autograd.grad(got, leaves, [torch.ones_like(x) for x in got])
        results.append([*got, *gradients, hmm_smooth(y, *leaves).smoothed])
    others = torch.arange(40) != 17
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one[others], two[others], rtol=1e-5, atol=1e-5)
        assert two[17].isfinite().all()
