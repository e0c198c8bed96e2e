"""The C++ launch code of bijection_posterior, built by setup.py and run on an emulated device."""

import ctypes
import itertools

import numpy as np
import pytest
import torch
from emulator import cuda_extension, cuda_runtime
from emulator.ptx import PTXError
from helpers.bijections import (
    assert_agrees,
    draw,
    draw_channel,
    enumerate_in_log_space,
    lay_out,
    symmetric_channel,
)
from helpers.nvcc import needs_nvcc
from helpers.subset_lattice import SubsetLattice
from helpers.tolerances import subset_gradient

from bwt import ops
from bwt.ops import _dispatch
from bwt.ops.bijection_posterior import NO_FAULT
from bwt.reference.bijection_posterior import BijectionPosterior

pytestmark = [pytest.mark.emulated, needs_nvcc, cuda_extension.needs_cpu_torch]
op = torch.ops.bwt.bijection_posterior
backward = torch.ops.bwt.bijection_posterior_backward.default
fresh_device = itertools.count(1)


def forward(keys, values, symbols_or_channel, dtype=torch.float64):
    overload = op.default if isinstance(symbols_or_channel, int) else op.noisy
    *outputs, fault = cuda_runtime.call(overload, keys, values, symbols_or_channel, dtype)
    return BijectionPosterior(*outputs), int(fault)


def check_forward(keys, values, symbols_or_channel, dtype=torch.float64):
    got, fault = forward(keys, values, symbols_or_channel, dtype)
    assert fault == NO_FAULT and got.posterior.dtype == dtype
    if isinstance(symbols_or_channel, int):
        assert_agrees(got, keys, values, symbols_or_channel)
    else:
        assert_agrees(got, keys, values, len(symbols_or_channel), symbols_or_channel)
    return working_launch()


def working_launch():
    """The one that did the work: of the kernels for double and for Wide, the other ends at once."""
    first, *others = cuda_runtime.launches
    if not others:
        return first
    assert "channel_range" in first.kernel and len(others) == 2
    idle, launched = sorted(others, key=lambda launch: launch.stats.instructions)
    warps = idle.grid[0] * idle.block[0] // 32
    assert idle.stats.instructions < 40 * warps and idle.stats.store_sectors == 0
    return launched


def draw_noisy(rng, batch, steps, num_symbols):
    return torch.from_numpy(rng.integers(num_symbols, size=(2, batch, steps)))


def test_every_symbol_is_in_a_library_that_the_extension_needs():
    """Those of the interpreter apart, which loads it."""
    cuda_runtime.load()
    library = cuda_extension.extension()
    stubs = {
        path.name: path for path in [*cuda_extension.torch_stubs(), cuda_extension.cudart_stub()]
    }
    names = cuda_extension.needed(library)
    open_libraries = [ctypes.CDLL(str(stubs.get(name, name))) for name in names]
    missing = {
        name
        for name in cuda_extension.symbols(library)
        if not name.startswith("Py") and not any(hasattr(it, name) for it in open_libraries)
    }
    assert not missing, f"{sorted(missing)} in none of {names}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ids", [torch.int32, torch.int64])
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "strided"])
def test_noiseless(dtype, ids, layout):
    rng = np.random.default_rng(0)
    keys, values = (lay_out(x.to(ids), layout) for x in draw(rng, 5, 19, 20))
    check_forward(keys, values, 20, dtype)


@pytest.mark.parametrize(
    "B,V,warps", [(1, 1, 4), (9, 7, 4), (3, 1536, 4), (3, 2048, 3), (3, 3000, 2), (2, 4096, 1)]
)
def test_noiseless_block_fits_into_shared_memory(B, V, warps):
    keys, values = draw(np.random.default_rng(V), B, 3, V)
    launched = check_forward(keys, values, V, torch.float32)
    assert launched.block == (32 * warps, 1, 1) and launched.grid == (-(-B // warps), 1, 1)
    assert launched.shared_bytes <= 48 * 1024


def scratch_and_levels(symbols, *, wide, adjoints=False):
    """Bytes of a block, as NoisyBatch lays them out."""
    real, warps = 16 if wide else 8, 4 if symbols <= 10 else 8
    scratch = symbols * ((symbols + 3) * real + 3 * 8 + (symbols + 3) * 4)
    partial = -(-warps * symbols // 2) * 2 * real
    levels = SubsetLattice(symbols).numbers(warps, adjoints) * real
    return -(-scratch // 16) * 16 + partial, levels


@pytest.fixture(params=["shared", "global"])
def levels(request):
    """Allows a block just enough shared memory for the levels, or one byte too little (and always
    enough for what the idle kernel needs beside them)."""

    def allow(symbols, **kind):
        scratch, bytes = scratch_and_levels(symbols, **kind)
        in_shared = request.param == "shared"
        expected = scratch + bytes if in_shared else scratch
        limit = scratch + bytes - (not in_shared)
        return cuda_runtime.device(shared_bytes_per_block=limit), expected

    return allow


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("wide", [False, True], ids=["double", "wide"])
def test_noisy(levels, wide, dtype):
    rng = np.random.default_rng(1)
    V = 8
    channel = symmetric_channel(V, 1e-30) if wide else draw_channel(rng, V)
    keys, values = draw_noisy(rng, 3, 10, V)
    device, shared_bytes = levels(V, wide=wide)
    with device:
        launched = check_forward(keys, values, channel, dtype)
    assert ("Wide" in launched.kernel) == wide and launched.shared_bytes == shared_bytes


def test_noisy_ids_of_any_layout_and_width():
    rng = np.random.default_rng(2)
    channel = draw_channel(rng, 4)
    for layout, ids in itertools.product(["transposed", "strided"], [torch.int32, torch.int64]):
        keys, values = (lay_out(x.to(ids), layout) for x in draw_noisy(rng, 3, 6, 4))
        check_forward(keys, values, channel)


def test_noisy_levels_larger_than_a_block_has_without_asking():
    rng = np.random.default_rng(3)
    keys, values = draw(rng, 1, 3, 15)
    launched = check_forward(keys, values, draw_channel(rng, 15))
    assert launched.block == (256, 1, 1) and launched.shared_bytes > 48 * 1024


def gradient_of(outputs, weights, channel):
    loss = sum((w.double() * o).sum() for w, o in zip(weights, outputs, strict=True))
    return torch.autograd.grad(loss, channel)[0]


def check_slopes(got, expected, channel, error):
    """In the logarithm of an entry, in which large and small ones weigh alike."""
    got, expected = got * channel, expected * channel
    bound = error * float(expected.abs().max())
    torch.testing.assert_close(got, expected, rtol=0, atol=bound)


def check_gradient(rng, batch, steps, channel, dtype=torch.float64):
    V = len(channel)
    keys, values = draw_noisy(rng, batch, steps, min(3, V))
    shapes = [(batch, steps, V), (batch, steps), (batch, steps)]
    weights = [torch.from_numpy(rng.normal(size=shape)).to(dtype) for shape in shapes]
    later = weights[2].double().flip(-1).cumsum(-1).flip(-1)
    got = cuda_runtime.call(backward, weights[0], weights[1], later, keys, values, channel)
    leaf = channel.clone().requires_grad_()
    expected = gradient_of(enumerate_in_log_space(keys, values, leaf), weights, leaf)
    check_slopes(got, expected, channel, subset_gradient(V, steps, batch))
    return working_launch()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("wide", [False, True], ids=["double", "wide"])
def test_channel_gradient(levels, wide, dtype):
    """Against autograd through an enumeration of bijections in float64."""
    rng = np.random.default_rng(4)
    channel = symmetric_channel(5, 1e-30) if wide else draw_channel(rng, 5)
    device, shared_bytes = levels(5, wide=wide, adjoints=True)
    with device:
        launched = check_gradient(rng, 3, 10, channel, dtype)
    assert ("Wide" in launched.kernel) == wide and launched.shared_bytes == shared_bytes


@pytest.mark.parametrize("in_shared", [True, False], ids=["shared", "global"])
def test_many_sequences_take_turns_on_few_blocks(in_shared):
    rng = np.random.default_rng(5)
    blocks = (8 if in_shared else 4, 1, 1)
    for symbols, check in [(8, forward_turns), (6, check_gradient)]:
        scratch, _ = scratch_and_levels(symbols, wide=True)  # of the idle kernel
        limit = 163 * 1024 if in_shared else scratch
        with cuda_runtime.device(multiprocessors=1, shared_bytes_per_block=limit):
            assert check(rng, 19, 5, draw_channel(rng, symbols)).grid == blocks


def forward_turns(rng, batch, steps, channel):
    return check_forward(*draw_noisy(rng, batch, steps, len(channel)), channel)


def test_numbers_of_symbols_in_turn_keep_their_own_subsets():
    rng = np.random.default_rng(6)
    with cuda_runtime.device(index=next(fresh_device)):
        for symbols in (3, 5, 3, 2, 5):
            keys, values = draw_noisy(rng, 2, 4, symbols)
            check_forward(keys, values, draw_channel(rng, symbols))
        before = cuda_runtime.allocated_bytes()
        check_forward(keys, values, draw_channel(rng, symbols))
        assert cuda_runtime.allocated_bytes() == before


def test_the_host_does_not_wait():
    """Of a channel it knows the size alone; subsets are made by the first call."""
    rng = np.random.default_rng(6)
    keys, values = draw_noisy(rng, 2, 4, 4)
    channel = draw_channel(rng, 4)
    check_forward(keys, values, channel)
    before = cuda_runtime.waits()
    got, _ = forward(keys, values, channel)
    forward(keys, values, 40)
    cuda_runtime.call(backward, *got, keys, values, channel)
    assert cuda_runtime.waits() == before


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_nothing_to_do_launches_nothing(shape):
    ids = torch.zeros(shape, dtype=torch.int64)
    channel = torch.eye(4, dtype=torch.float64)
    for given in (4, channel):
        got, fault = forward(ids, ids, given)
        assert got.posterior.shape == (*shape, 4) and got.log_evidence.shape == shape
        assert fault == NO_FAULT and not cuda_runtime.launches
    none = torch.zeros(shape, dtype=torch.float64)
    gradient = cuda_runtime.call(backward, got.posterior, none, none, ids, ids, channel)
    assert torch.equal(gradient, torch.zeros_like(channel)) and not cuda_runtime.launches


@pytest.mark.parametrize("which", [1, 2])
def test_the_call_after_an_out_of_memory_works(which):
    rng = np.random.default_rng(7)
    keys, values = draw_noisy(rng, 2, 4, 6)
    channel = draw_channel(rng, 6)
    with cuda_runtime.device(index=next(fresh_device), failing_malloc=which):
        before = cuda_runtime.allocated_bytes()
        with pytest.raises(RuntimeError, match="out of memory") as caught:
            forward(keys, values, channel)
        assert str(caught.value).startswith("bijection_posterior: ") and one_line(caught.value)
        assert cuda_runtime.allocated_bytes() == before
        check_forward(keys, values, channel)


def one_line(error):
    return "\n" not in str(error).strip()


@pytest.mark.parametrize("given", [4, symmetric_channel(4, 0.2)], ids=["noiseless", "noisy"])
def test_a_failed_launch_is_said_in_one_line(given):
    keys, values = draw(np.random.default_rng(8), 2, 4, 4)
    with cuda_runtime.device(failing_launch=1):
        with pytest.raises(RuntimeError, match="too many resources") as caught:
            forward(keys, values, given)
        assert str(caught.value).startswith("bijection_posterior: ") and one_line(caught.value)
        check_forward(keys, values, given)


def test_a_block_that_cannot_have_its_shared_memory_is_said_in_one_line():
    keys, values = draw(np.random.default_rng(8), 2, 4, 4)
    with (
        cuda_runtime.device(shared_bytes_per_block=64),
        pytest.raises(RuntimeError, match="invalid argument") as caught,
    ):
        forward(keys, values, symmetric_channel(4, 0.2))
    assert str(caught.value).startswith("bijection_posterior: ") and one_line(caught.value)


def test_a_stray_access_of_a_launch_is_raised(monkeypatch):
    """The emulated device shows a kernel no memory but that of the launch code."""
    keys, values = draw(np.random.default_rng(9), 2, 4, 4)
    complete = cuda_runtime._map
    monkeypatch.setattr(cuda_runtime, "_map", lambda ranges: complete(ranges[:0]))
    with pytest.raises(PTXError, match="out of bounds"):
        forward(keys, values, 4)


@pytest.fixture
def on_cuda(monkeypatch):
    """The public function finds CUDA implementations for CPU tensors."""
    cuda_runtime.load()
    monkeypatch.setitem(_dispatch.UNUSABLE, "cuda", lambda device: None)
    with cuda_runtime.Redirected():
        yield


@pytest.mark.parametrize("noisy", [False, True], ids=["noiseless", "noisy"])
def test_public_op(on_cuda, noisy):
    rng = np.random.default_rng(10)
    channel = draw_channel(rng, 4, torch.float32) if noisy else None
    keys, values = draw(rng, 3, 6, 4)
    got = ops.bijection_posterior(keys, values, 4, channel=channel, backend="cuda")
    assert got.posterior.dtype == torch.float32 and working_launch().stats.store_sectors > 0
    assert_agrees(got, keys, values, 4, channel)


def test_public_op_has_gradients(on_cuda):
    rng = np.random.default_rng(11)
    keys, values = draw_noisy(rng, 2, 7, 4)
    channel = draw_channel(rng, 4).requires_grad_()
    weights = [torch.from_numpy(rng.normal(size=shape)) for shape in [(2, 7, 4), (2, 7), (2, 7)]]
    outputs = ops.bijection_posterior(keys, values, 4, channel=channel, backend="cuda")
    got = gradient_of(outputs, weights, channel)
    assert "channel_gradient" in working_launch().kernel
    expected = gradient_of(enumerate_in_log_space(keys, values, channel), weights, channel)
    check_slopes(got, expected, channel.detach(), subset_gradient(4, 7, 2))


FAULTS = {
    "key": ([0, 1, 7], [0, 1, 2], r"keys\[1, 2\] is 7"),
    "value": ([0, 1, 2], [0, -1, 2], r"values\[1, 1\] is -1"),
    "contradiction": ([0, 1, 2], [0, 0, 2], "sequence 1 contradicts itself at step 1"),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("channel", [None, torch.eye(4)], ids=["noiseless", "noisy"])
def test_public_op_reports_faults(on_cuda, name, channel):
    keys, values, message = FAULTS[name]
    keys, values = torch.tensor([[0, 1, 2], keys]), torch.tensor([[3, 2, 1], values])
    with pytest.raises(ValueError, match=message):
        ops.bijection_posterior(keys, values, 4, channel=channel, backend="cuda")
