"""bijection_posterior in every backend, against the NumPy float64 reference."""

import itertools

import numpy as np
import pytest
import torch
from helpers.bijections import (
    assert_agrees,
    draw,
    draw_channel,
    enumerate_in_log_space,
    lay_out,
    symmetric_channel,
)
from helpers.tolerances import subset_sums
from hypothesis import given, settings
from hypothesis import strategies as st

from bwt import ops, reference

BACKENDS = ["native", "torch"]
DTYPES = [torch.float32, torch.float64]


SHAPES = [
    pytest.param(B, K, V, id=f"B{B}-K{K}-V{V}")
    for B, K, V in [(1, 1, 1), (3, 5, 1), (4, 19, 20), (5, 40, 20), (2, 7, 33), (3, 300, 130)]
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("B,K,V", SHAPES)
def test_noiseless(backend, dtype, B, K, V, monkeypatch):
    rng = np.random.default_rng(0)
    monkeypatch.setattr(torch, "get_default_dtype", lambda: dtype)
    for replacement in (True, False):
        steps = K if replacement else min(K, V)
        keys, values = draw(rng, B, steps, V, replacement=replacement)
        got = ops.bijection_posterior(keys, values, V, backend=backend)
        assert got.posterior.dtype == dtype
        assert_agrees(got, keys, values, V)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ids", [torch.int32, torch.int64])
def test_noiseless_distinct_keys_native(dtype, ids, monkeypatch):
    """Every row length up to a word of bits and beyond, at every alignment of a sequence's rows."""
    rng = np.random.default_rng(1)
    monkeypatch.setattr(torch, "get_default_dtype", lambda: dtype)
    for V in range(1, 67):
        for K in sorted({1, (V + 1) // 2, max(V - 1, 1), V}):
            keys, values = draw(rng, 9, K, V, replacement=False)
            got = ops.bijection_posterior(keys.to(ids), values.to(ids), V, backend="native")
            assert_agrees(got, keys, values, V)


@pytest.mark.parametrize("V", [5, 20, 32, 63, 64])
@pytest.mark.parametrize("wrong", [-1, "V", 64, 64 + 3, 2**31 - 64, -(2**31), 2**32 + 1, 2**40])
@pytest.mark.parametrize("name", ["keys", "values"])
def test_noiseless_id_out_of_range_native(name, wrong, V):
    """Among distinct keys, ids that a word of bits would take for others."""
    wrong = V if wrong == "V" else wrong
    for step in (0, V // 2, V - 1):
        keys, values = draw(np.random.default_rng(2), 6, V, V, replacement=False)
        (keys if name == "keys" else values)[4, step] = wrong
        with pytest.raises(ValueError, match=rf"{name}\[4, {step}\] is {wrong};"):
            ops.bijection_posterior(keys, values, V, backend="native")


NOISY_SHAPES = [
    pytest.param(B, K, V, id=f"B{B}-K{K}-V{V}")
    for B, K, V in [
        (2, 3, 1),
        (3, 5, 2),
        (3, 12, 5),
        (4, 14, 6),
        (3, 16, 7),
        (2, 20, 9),
        (1, 9, 12),
    ]
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("B,K,V", NOISY_SHAPES)
def test_noisy(backend, dtype, B, K, V):
    rng = np.random.default_rng(1)
    for channel in (
        draw_channel(rng, V, dtype),
        symmetric_channel(V, 0.2 if V > 1 else 0.0, dtype),
    ):
        for replacement in (True, False):
            keys, values = draw(rng, B, K if replacement else min(K, V), V, replacement=replacement)
            noisy = torch.from_numpy(rng.integers(V, size=tuple(values.shape)))
            values = torch.where(torch.rand(values.shape) < 0.3, noisy, values) if V > 1 else values
            got = ops.bijection_posterior(keys, values, V, channel=channel, backend=backend)
            assert got.posterior.dtype == dtype
            assert_agrees(got, keys, values, V, channel)


def test_noisy_twenty_symbols_forty_observations():
    """The largest size the design promises. The reference is too slow here, so: without noise the
    noisy path must reproduce the closed form, and a relabelling of the values must carry over."""
    rng = np.random.default_rng(2)
    keys, values = draw(rng, 2, 40, 20)
    got = ops.bijection_posterior(keys, values, 20, channel=torch.eye(20, dtype=torch.float64))
    exact = reference.bijection_posterior(keys.numpy(), values.numpy(), 20)
    np.testing.assert_allclose(got.posterior.numpy(), exact.posterior, atol=subset_sums(20, 40))
    np.testing.assert_allclose(got.log_evidence.numpy(), exact.log_evidence, atol=1e-11)

    channel = symmetric_channel(20, 0.05)
    relabel = torch.from_numpy(rng.permutation(20))
    one = ops.bijection_posterior(keys, values, 20, channel=channel)
    other = ops.bijection_posterior(keys, relabel[values], 20, channel=channel)
    assert torch.isfinite(one.log_evidence).all()
    bound = subset_sums(20, 40)
    torch.testing.assert_close(other.posterior[..., relabel], one.posterior, rtol=0, atol=bound)
    torch.testing.assert_close(
        one.posterior.sum(-1), torch.ones(2, 40).double(), rtol=0, atol=bound
    )


@pytest.mark.parametrize("noise", [1e-3, 1e-9, 1e-30])
def test_sharp_channels_neither_under_nor_overflow(noise):
    """Forty contradictory observations of few keys: likelihood ratios beyond a double's range."""
    rng = np.random.default_rng(3)
    keys = torch.from_numpy(rng.integers(3, size=(4, 40)))
    values = torch.from_numpy(rng.integers(2, size=(4, 40)))
    channel = symmetric_channel(5, noise)
    got = ops.bijection_posterior(keys, values, 5, channel=channel)
    expected = reference.bijection_posterior(
        keys.numpy(), values.numpy(), 5, channel=channel.numpy()
    )
    bound = subset_sums(5, 40)
    np.testing.assert_allclose(got.posterior.numpy(), expected.posterior, rtol=0, atol=bound)
    np.testing.assert_allclose(got.log_evidence.numpy(), expected.log_evidence, rtol=1e-13)


def test_one_perturbed_channel_entry_is_noticed():
    """The bounds are tight enough to fail: a relative error of 1e-6 in one entry shows."""
    rng = np.random.default_rng(4)
    keys, values = draw(rng, 4, 10, 6)
    channel = draw_channel(rng, 6)
    wrong = channel.clone()
    wrong[1, 2] *= 1 + 1e-6
    got = ops.bijection_posterior(keys, values, 6, channel=wrong)
    with pytest.raises(AssertionError):
        assert_agrees(got, keys, values, 6, channel)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradcheck(backend):
    rng = np.random.default_rng(5)
    for V, K in [(1, 2), (3, 4), (7, 9)]:
        keys, values = draw(rng, 2, K, V)
        channel = draw_channel(rng, V).requires_grad_()

        def outputs(channel, keys=keys, values=values, V=V):
            return tuple(ops.bijection_posterior(keys, values, V, channel=channel, backend=backend))

        assert torch.autograd.gradcheck(outputs, (channel,), eps=1e-6, atol=1e-7)


@pytest.mark.parametrize("noise", [0.3, 1e-12])
def test_gradients_agree_with_autograd_through_log_space(noise):
    """Against autograd through an enumeration of bijections in log space: also where the table
    needs the extended range."""
    rng = np.random.default_rng(6)
    V, K = 4, 24
    keys = torch.from_numpy(rng.integers(3, size=(2, K)))
    values = torch.from_numpy(rng.integers(3, size=(2, K)))
    channel = symmetric_channel(V, noise).requires_grad_()
    weights = [torch.from_numpy(rng.normal(size=shape)) for shape in [(2, K, V), (2, K), (2, K)]]

    def gradient(outputs):
        loss = sum((weight * output).sum() for weight, output in zip(weights, outputs, strict=True))
        return torch.autograd.grad(loss, channel)[0]

    got = gradient(ops.bijection_posterior(keys, values, V, channel=channel))
    expected = gradient(enumerate_in_log_space(keys, values, channel))
    torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-8 * float(expected.abs().max()))


def test_gradient_where_the_channel_is_zero():
    """An entry at zero still has a slope: raising it makes impossible bijections possible."""
    channel = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]]).double()
    keys, values = torch.tensor([[0, 0, 1, 2]]), torch.tensor([[0, 1, 2, 0]])

    def evidence(channel):
        return ops.bijection_posterior(keys, values, 3, channel=channel).log_evidence[0, -1]

    channel.requires_grad_()
    (gradient,) = torch.autograd.grad(evidence(channel), channel)
    step = 1e-6
    for i, j in itertools.product(range(3), range(3)):
        raised = channel.detach().clone()
        raised[i, j] += step
        slope = (evidence(raised) - evidence(channel.detach())) / step
        assert abs(float(slope - gradient[i, j])) < 1e-5


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("steps", [0, 1])
def test_a_channel_that_enters_no_posterior_has_a_gradient_of_zero(backend, steps):
    channel = symmetric_channel(3, 0.1).requires_grad_()
    ids = torch.zeros(2, steps, dtype=torch.long)
    got = ops.bijection_posterior(ids, ids, 3, channel=channel, backend=backend)
    for output in (got.posterior, got.entropy):
        gradient = torch.autograd.grad(output.sum(), channel, retain_graph=True)[0]
        assert not gradient.any()


def test_opcheck():
    rng = np.random.default_rng(7)
    keys, values = draw(rng, 3, 6, 5)
    channel = draw_channel(rng, 5).requires_grad_()
    op = torch.ops.bwt.bijection_posterior
    torch.library.opcheck(op.noisy, (keys, values, channel, torch.float64))
    torch.library.opcheck(op.default, (keys, values, 5, torch.float32))


def test_compiles_without_graph_break():
    rng = np.random.default_rng(8)
    keys, values = draw(rng, 3, 6, 5)
    compiled = torch.compile(
        lambda k, v: ops.bijection_posterior(k, v, 5).entropy * 2, fullgraph=True, backend="eager"
    )
    expected = ops.bijection_posterior(keys, values, 5).entropy * 2
    assert torch.equal(compiled(keys, values), expected)


def test_result_does_not_depend_on_threads():
    rng = np.random.default_rng(9)
    keys, values = draw(rng, 150, 12, 6)
    channel = draw_channel(rng, 6).requires_grad_()
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            got = ops.bijection_posterior(keys, values, 6, channel=channel)
            results.append((*got, torch.autograd.grad(got.entropy.sum(), channel)[0]))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


@settings(deadline=None, max_examples=60)
@given(
    batch=st.integers(0, 4),
    steps=st.integers(0, 9),
    num_symbols=st.integers(1, 9),
    noisy=st.booleans(),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    layout=st.sampled_from(["contiguous", "transposed", "strided", "offset"]),
    seed=st.integers(0, 2**16),
)
def test_any_shape_and_layout(batch, steps, num_symbols, noisy, dtype, layout, seed):
    rng = np.random.default_rng(seed)
    keys, values = draw(rng, batch, steps, num_symbols)
    channel = draw_channel(rng, num_symbols) if noisy else None
    views = [lay_out(ids.to(dtype), layout) for ids in (keys, values)]
    got = ops.bijection_posterior(*views, num_symbols, channel=channel)
    assert got.posterior.shape == (batch, steps, num_symbols)
    assert_agrees(got, keys, values, num_symbols, channel)


GOOD = torch.tensor([[0, 1, 2]])
CHANNEL = torch.full((3, 3), 1 / 3)
BAD_INPUT = {
    "key too large": (
        (torch.tensor([[0, 3, 1]]), GOOD, 3),
        {},
        r"keys\[0, 1\] is 3; ids must be 0 to 2",
    ),
    "negative key": ((torch.tensor([[0, -1, 1]]), GOOD, 3), {}, r"keys\[0, 1\] is -1"),
    "value too large": ((GOOD, torch.tensor([[0, 1, 9]]), 3), {}, r"values\[0, 2\] is 9"),
    "id beyond int32": ((GOOD, GOOD + (1 << 40), 3), {}, r"values\[0, 0\] is 1099511627776"),
    "noisy key too large": ((GOOD + 1, GOOD, 3), {"channel": CHANNEL}, r"keys\[0, 2\] is 3"),
    "noisy value": ((GOOD, GOOD - 1, 3), {"channel": CHANNEL}, r"values\[0, 0\] is -1"),
    "value used twice": (
        (GOOD, torch.tensor([[0, 1, 1]]), 3),
        {},
        "sequence 0 contradicts itself at step 2: value 1 for key 2",
    ),
    "key changes value": (
        (torch.tensor([[0, 0, 2]]), GOOD, 3),
        {},
        "sequence 0 contradicts itself at step 1",
    ),
    "impossible under the channel": (
        (GOOD, torch.tensor([[0, 0, 2]]), 3),
        {"channel": torch.eye(3)},
        "contradicts itself at step 1",
    ),
    "float ids": (
        (GOOD.float(), GOOD, 3),
        {},
        "keys must be an int32 or int64 tensor, got torch.float32",
    ),
    "list": (([[0, 1]], GOOD, 3), {}, "keys must be an int32 or int64 tensor, got list"),
    "one dimension": (
        (GOOD[0], GOOD[0], 3),
        {},
        r"keys must be \[batch, steps\], got shape \(3,\)",
    ),
    "shapes differ": ((GOOD, GOOD[:, :2], 3), {}, "must agree in shape, dtype and device"),
    "dtypes differ": ((GOOD, GOOD.int(), 3), {}, "must agree in shape, dtype and device"),
    "no symbols": ((GOOD, GOOD, 0), {}, "num_symbols must be 1 to 4096, got 0"),
    "too many symbols": ((GOOD, GOOD, 5000), {}, "num_symbols must be 1 to 4096, got 5000"),
    "too many noisy symbols": (
        (GOOD, GOOD, 25),
        {"channel": torch.eye(25)},
        "num_symbols must be 1 to 24 with a channel",
    ),
    "symbols not an int": ((GOOD, GOOD, 3.0), {}, "num_symbols must be an int, got float"),
    "channel shape": (
        (GOOD, GOOD, 3),
        {"channel": torch.eye(4)},
        r"channel must be \[3, 3\] on cpu",
    ),
    "channel dtype": ((GOOD, GOOD, 3), {"channel": torch.eye(3).half()}, "got torch.float16"),
    "rows do not sum to one": (
        (GOOD, GOOD, 3),
        {"channel": CHANNEL * 1.01},
        r"channel\[0\] is not a distribution \(sum 1.01",
    ),
    "negative probability": (
        (GOOD, GOOD, 3),
        {"channel": torch.tensor([[1.0, 0, 0], [0.5, 1, -0.5], [0, 0, 1]])},
        r"channel\[1\] is not a distribution .* smallest entry -0.5",
    ),
    "NaN in the channel": (
        (GOOD, GOOD, 3),
        {"channel": CHANNEL * float("nan")},
        r"channel\[0\] is not a distribution",
    ),
    "unknown backend": (
        (GOOD, GOOD, 3),
        {"backend": "fast"},
        "no backend 'fast'; choose one of auto, native",
    ),
}


@pytest.mark.parametrize("backend", ["native", "torch", "reference"])
@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_answered_with_one_clear_line(name, backend):
    arguments, options, message = BAD_INPUT[name]
    with pytest.raises(ValueError, match=message) as caught:
        ops.bijection_posterior(*arguments, **{"backend": backend, **options})
    assert "\n" not in str(caught.value)


def test_the_first_contradiction_is_named():
    keys = torch.arange(4).repeat(200, 1)
    values = keys.clone()
    values[77, 3] = 0
    values[150, 1] = 0
    with pytest.raises(ValueError, match="sequence 77 contradicts itself at step 3"):
        ops.bijection_posterior(keys, values, 4)


@pytest.mark.parametrize("channel", [None, torch.eye(4).double()], ids=["noiseless", "noisy"])
def test_after_a_contradiction_rows_are_zero(channel):
    """What compiled code sees, where nothing can be raised."""
    keys, values = torch.tensor([[0, 1, 2, 3]]), torch.tensor([[0, 0, 1, 2]])
    posterior, entropy, log_evidence, _ = torch.ops.bwt.bijection_posterior(
        keys, values, 4 if channel is None else channel, torch.float64
    )
    torch.testing.assert_close(posterior[0, 1], torch.tensor([0, 1, 1, 1]).double() / 3)
    assert not posterior[0, 2:].any() and not entropy[0, 2:].any()
    assert log_evidence[0, 0] > -2 and (log_evidence[0, 1:] == -torch.inf).all()


def test_explicit_backend_never_falls_back():
    with pytest.raises(RuntimeError, match="backend 'cuda' cannot serve: serves CUDA tensors"):
        ops.bijection_posterior(GOOD, GOOD, 3, backend="cuda")


def test_environment_chooses_the_backend(monkeypatch):
    monkeypatch.setenv("BWT_BACKEND", "nonsense")
    with pytest.raises(ValueError, match="no backend 'nonsense'"):
        ops.bijection_posterior(GOOD, GOOD, 3)
