"""The CUDA kernels of bijection_posterior without a GPU: their sm_80 PTX is executed and compared
with NumPy, and they are compiled for every architecture that is shipped."""

from math import comb

import numpy as np
import pytest
import torch
from emulator.bijection_cuda import NO_FAULT, SOURCE, run_gradient, run_noiseless, run_noisy
from emulator.ptx import Memory, launch
from helpers import tiers
from helpers.bijections import draw, draw_channel, enumerate_in_log_space, symmetric_channel
from helpers.extreme_channels import CASES, assert_exact, assert_exact_gradient, gradient_weights
from helpers.nvcc import needs_nvcc, ptx, usage
from helpers.subset_lattice import SubsetLattice
from helpers.tolerances import rounding, running_sum, subset_gradient, subset_sums

from bwt import ops, reference
from bwt.reference.bijection_posterior import BijectionPosterior

pytestmark = needs_nvcc


def assert_agrees(got, expected, error=0.0):
    for name in BijectionPosterior._fields:
        actual, target = getattr(got, name), getattr(expected, name)
        scale = max(1.0, np.abs(target).max(initial=0.0))
        dtype = torch.float32 if actual.dtype == np.float32 else torch.float64
        bound = rounding(dtype, scale) + scale * error + running_sum(target.shape[1], scale)
        np.testing.assert_allclose(actual, target, rtol=0, atol=bound, err_msg=name)


@pytest.mark.parametrize("out", [np.float32, np.float64])
@pytest.mark.parametrize(
    "B,K,V",
    [
        pytest.param(B, K, V, id=f"B{B}-K{K}-V{V}")
        for B, K, V in [(1, 1, 1), (5, 19, 20), (3, 40, 20), (2, 33, 7), (2, 70, 50), (1, 5, 300)]
    ],
)
def test_noiseless(B, K, V, out):
    rng = np.random.default_rng(B + K + V)
    for replacement in (True, False):
        steps = K if replacement else min(K, V)
        keys, values = (x.numpy() for x in draw(rng, B, steps, V, replacement=replacement))
        got, fault, stats = run_noiseless(keys, values, V, out)
        assert fault == NO_FAULT
        assert_agrees(got, reference.bijection_posterior(keys, values, V))
        # Rows are written in one run of addresses; entropy and evidence add short ones.
        assert stats.store_sectors <= 1.35 * stats.store_sectors_ideal + 8 * B


def test_noiseless_stores_are_coalesced():
    rng = np.random.default_rng(0)
    keys, values = (x.numpy() for x in draw(rng, 8, 32, 32, replacement=False))
    _, _, stats = run_noiseless(keys, values, 32)
    assert stats.store_sectors == stats.store_sectors_ideal


@pytest.mark.parametrize("noise,wide", [(0.2, 0), (1e-30, 1)])
def test_channel_range(noise, wide):
    """The kernel that decides whether doubles are wide enough."""
    memory, channel, found = Memory(), symmetric_channel(5, noise).numpy(), np.full(1, 7, np.int32)
    launch(
        ptx(SOURCE),
        memory,
        [memory.add(channel), channel.size, 30, memory.add(found)],
        grid=(1, 1, 1),
        block=(32, 1, 1),
        kernel="channel_range_kernel",
    )
    assert found[0] == wide


NOISY = [(1, 2, 1), (3, 4, 2), (3, 10, 5), (2, 12, 7)]


@pytest.mark.parametrize(
    "B,K,V",
    tiers.mark("emulated", NOISY, (1,), unpack=True),
    ids=[f"B{B}-K{K}-V{V}" for B, K, V in NOISY],
)
@pytest.mark.parametrize("in_shared", [True, False], ids=["shared", "global"])
@pytest.mark.parametrize("wide", [False, True], ids=["double", "wide"])
def test_noisy(B, K, V, in_shared, wide):
    rng = np.random.default_rng(B + K + V)
    channel = draw_channel(rng, V).numpy()
    keys, values = rng.integers(V, size=(2, B, K))
    got, fault, _ = run_noisy(keys, values, channel, wide=wide, in_shared=in_shared)
    assert fault == NO_FAULT
    expected = reference.bijection_posterior(keys, values, V, channel=channel)
    assert_agrees(got, expected, subset_sums(V, K))


# Several high parts for few symbols: levels give way to each other, and overwrite their like.
CROWDED = SubsetLattice(9, low=4, tiles=1)


@pytest.mark.emulated
@pytest.mark.parametrize("in_shared", [True, False], ids=["shared", "global"])
@pytest.mark.parametrize("wide", [False, True], ids=["double", "wide"])
def test_levels_that_overwrite_each_other(in_shared, wide):
    assert CROWDED.capacity(warps=2) < comb(9, 4) + comb(9, 5)
    rng = np.random.default_rng(9)
    channel = draw_channel(rng, 9).numpy()
    keys, values = rng.integers(9, size=(2, 2, 20))
    keys[0, :9] = rng.permutation(9)
    got, fault, _ = run_noisy(
        keys, values, channel, wide=wide, in_shared=in_shared, lattice=CROWDED
    )
    assert fault == NO_FAULT
    expected = reference.bijection_posterior(keys, values, 9, channel=channel)
    assert_agrees(got, expected, subset_sums(9, 20))


@pytest.mark.emulated
def test_no_order_of_warps_changes_a_bit():
    rng = np.random.default_rng(10)
    channel = draw_channel(rng, 9).numpy()
    keys, values = rng.integers(9, size=(2, 1, 12))
    first, *others = (
        run_noisy(keys, values, channel, in_shared=False, lattice=CROWDED, seed=seed)[0]
        for seed in range(3)
    )
    for other in others:
        for a, b in zip(first, other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_levels_of_twenty_symbols_take_a_megabyte_and_a_half():
    numbers = SubsetLattice(20).numbers(warps=8, adjoints=False)
    assert comb(20, 10) < numbers and 8 * numbers <= 1.5 * 2**20


def test_levels_in_global_memory_are_read_in_runs():
    """From a table indexed by mask a warp fetched twice the sectors of what it asked for,
    and each level twenty times over."""
    V = 12
    rng = np.random.default_rng(11)
    keys, values = rng.permutation(V)[None, : V - 1], rng.integers(V, size=(1, V - 1))
    channel = draw_channel(rng, V).numpy()
    _, _, stats = run_noisy(keys, values, channel, in_shared=False, blocks=1, threads=256)
    assert stats.load_sectors <= 1.5 * stats.load_sectors_ideal
    assert stats.store_sectors <= 1.3 * stats.store_sectors_ideal
    touched = 2 * sum(comb(V, size) for size in range(V)) * 8 / 32  # each level written, then read
    assert stats.load_sectors + stats.store_sectors <= 10 * touched


@pytest.mark.emulated
def test_noisy_float32_output():
    rng = np.random.default_rng(0)
    channel = draw_channel(rng, 5).numpy()
    keys, values = rng.integers(5, size=(2, 3, 8))
    expected = reference.bijection_posterior(keys, values, 5, channel=channel)
    for wide in (False, True):
        got, _, _ = run_noisy(keys, values, channel, np.float32, wide=wide)
        assert_agrees(got, expected, subset_sums(5, 8))


@pytest.mark.emulated
def test_sharp_channel_in_extended_range():
    rng = np.random.default_rng(3)
    keys, values = rng.integers(3, size=(2, 2, 30))
    channel = symmetric_channel(5, 1e-30).numpy()
    got, _, _ = run_noisy(keys, values, channel, wide=True)
    expected = reference.bijection_posterior(keys, values, 5, channel=channel)
    assert_agrees(got, expected, subset_sums(5, 30))


@pytest.mark.parametrize("wide", [False, True], ids=["double", "wide"])
@pytest.mark.parametrize("inp", tiers.mark("emulated", [np.float32, np.float64], (0,)))
@pytest.mark.parametrize(
    "in_shared", tiers.mark("emulated", [True, False], (1,)), ids=["shared", "global"]
)
def test_channel_gradient(wide, inp, in_shared):
    """Against the native backward, which gradcheck and enumeration have checked."""
    rng = np.random.default_rng(4)
    V, K, B = 5, 9, 3
    channel = draw_channel(rng, V).requires_grad_()
    keys, values = rng.integers(V, size=(2, B, K))
    weights = [rng.normal(size=shape).astype(inp) for shape in [(B, K, V), (B, K), (B, K)]]
    outputs = ops.bijection_posterior(
        torch.from_numpy(keys), torch.from_numpy(values), V, channel=channel
    )
    loss = sum(
        (torch.from_numpy(w).double() * o).sum() for w, o in zip(weights, outputs, strict=True)
    )
    (expected,) = torch.autograd.grad(loss, channel)

    got, _ = run_gradient(
        keys, values, channel.detach().numpy(), weights, wide=wide, in_shared=in_shared
    )
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-11, atol=1e-11)


@pytest.mark.emulated
def test_gradient_with_many_high_parts():
    """Against autograd through an enumeration of bijections in float64."""
    rng = np.random.default_rng(12)
    V, K, B = 6, 9, 2
    lattice = SubsetLattice(V, low=2, tiles=1)
    channel = draw_channel(rng, V).requires_grad_()
    keys, values = rng.integers(V, size=(2, B, K))
    weights = [rng.normal(size=shape) for shape in [(B, K, V), (B, K), (B, K)]]
    outputs = enumerate_in_log_space(torch.from_numpy(keys), torch.from_numpy(values), channel)
    loss = sum((torch.from_numpy(w) * o).sum() for w, o in zip(weights, outputs, strict=True))
    (expected,) = torch.autograd.grad(loss, channel)
    for wide in (False, True):
        got, _ = run_gradient(
            keys, values, channel.detach().numpy(), weights, wide=wide, lattice=lattice
        )
        scale = channel.detach().numpy()
        bound = subset_gradient(V, K, B) * np.abs(expected.numpy() * scale).max()
        np.testing.assert_allclose(got * scale, expected.numpy() * scale, rtol=0, atol=bound)


EXTREME = ["powers-8", "zeros-7", "flip-V2-1e-300", "flip-V3-4e-308", "revived"]


@pytest.mark.emulated
@pytest.mark.parametrize("name", [*EXTREME, "revived beyond a double"])
def test_extreme_channels(name):
    keys, values, channel = CASES[name]
    got, fault, _ = run_noisy(keys[None], values[None], channel, wide=True, blocks=1)
    assert fault == NO_FAULT
    assert_exact(got, keys, values, channel)
    weights = gradient_weights(keys, channel)
    batch = [weight[None] for weight in weights]
    gradient, _ = run_gradient(keys[None], values[None], channel, batch, wide=True, blocks=1)
    assert_exact_gradient(gradient, keys, values, channel, weights)


FAULTS = {
    "key range": ([[0, 1, 7]], [[0, 1, 2]], 0),
    "value range": ([[0, 1, 2]], [[0, -1, 2]], 1),
    "contradiction": ([[0, 1, 2]], [[0, 0, 2]], 2),
    "changed value": ([[0, 0, 2]], [[0, 1, 2]], 2),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("noisy", [False, True], ids=["noiseless", "noisy"])
def test_faults_are_reported_and_rows_zeroed_as_by_the_native_kernel(name, noisy):
    keys, values, code = FAULTS[name]
    good = np.arange(3)[None]
    keys, values = np.concatenate([good, keys]), np.concatenate([good, values])
    channel = np.eye(3)
    if noisy:
        got, fault, _ = run_noisy(keys, values, channel)
    else:
        got, fault, _ = run_noiseless(keys, values, 3, np.float64)
    *expected, native_fault = torch.ops.bwt.bijection_posterior(
        torch.from_numpy(keys),
        torch.from_numpy(values),
        torch.from_numpy(channel) if noisy else 3,
        torch.float64,
    )
    assert fault == int(native_fault) and fault % 4 == code
    for actual, target in zip(got, expected, strict=True):
        np.testing.assert_allclose(actual, target.numpy(), atol=1e-14)


@pytest.mark.emulated
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_compiles_without_spills_or_local_memory(arch, tmp_path):
    kernels = usage(SOURCE, arch, tmp_path / "kernels.cubin")
    assert len(kernels) == 11
    for name, used in kernels.items():
        assert used["stack"] == used["spill"] == used["local"] == 0, (name, used)
        # Two blocks of 256 threads on a processor.
        assert used["registers"] <= 128, (name, used)
