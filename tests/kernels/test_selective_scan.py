"""The Triton kernels of selective_scan, interpreted (and on a GPU, if there is one), as compiled
code within budgets, and as executed sm_80 PTX, against NumPy in float64."""

import numpy as np
import pytest
import torch
from helpers import tiers
from helpers.scan_inputs import (
    HALVES,
    assert_close,
    assert_gradients,
    assert_values,
    draw,
    draw_states,
    to_arrays,
)
from helpers.tolerances import scan_error

from bwt import reference

pytest.importorskip("triton", reason="Triton is not installed")

from helpers.triton_aot import (  # noqa: E402
    assert_within_budget,
    emulator,
    kernels,
    kernels_of_examples,
)

MODULE = "bwt.kernels.selective_scan"
DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp64": torch.float64,
}
CHUNK = 16
ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "gfx942")


def incoming(tensors):
    rng = np.random.default_rng(1)
    return torch.from_numpy(rng.normal(size=tensors[0].shape)).to(tensors[0].dtype)


def compute(call, tensors, softplus=True, grad_y=None, states=None):
    """y, and the gradients of u, delta, A, B, C, D; or, with an initial state and a gradient of the
    last one, both [B, E, N], y, the last state and the gradients with that of the initial one."""
    initial, grad_last = (x if x is None else x.mT.contiguous() for x in states or (None, None))
    y, saved, last = call(
        "selective_scan_forward",
        *(*tensors, initial),
        softplus=softplus,
        every=CHUNK,
        last=states is not None,
    )
    grad_y = incoming(tensors) if grad_y is None else grad_y
    arguments = (grad_y, grad_last, *tensors, initial, saved)
    options = {"softplus": softplus, "every": CHUNK}
    *gradients, grad_initial = call("selective_scan_backward", *arguments, **options)
    if states is None:
        return y, tuple(gradients)
    return y, last.mT, (*gradients, grad_initial.mT)


def check(call, tensors, softplus=True):
    y, gradients = compute(call, tensors, softplus)
    assert_values(tensors, y, softplus)
    assert_gradients(tensors, incoming(tensors), gradients, softplus)
    return y, gradients


def check_handed_on(call, tensors, softplus=True):
    initial, grad_last = states = draw_states(tensors)
    y, last, gradients = compute(call, tensors, softplus, states=states)
    assert_values(tensors, y, softplus, initial, last)
    assert_gradients(tensors, incoming(tensors), gradients, softplus, initial, grad_last)


def shape_id(shape):
    return "B{}-L{}-E{}-N{}".format(*shape)


FEW = [(2, 18, 3, 3), (1, 20, 5, 16)]
VALUES = [*FEW, (1, 1, 1, 1), (1, 33, 17, 4), (2, 7, 3, 5), (1, 18, 2, 33), (1, 3, 3, 64)]


@pytest.mark.parametrize("shape", VALUES, ids=shape_id)
def test_values(call, shape):
    check(call, draw(*shape, torch.float32))


@pytest.mark.parametrize("shape", FEW, ids=shape_id)
def test_values_in_double(call, shape):
    check(call, draw(*shape, torch.float64))


@pytest.mark.parametrize("wide", [True, False], ids=["float32 parameters", "halves"])
@pytest.mark.parametrize("shape", [(2, 18, 3, 3), (1, 20, 33, 4)], ids=shape_id)
@pytest.mark.parametrize("dtype", HALVES)
def test_halves(call, dtype, shape, wide):
    """Computed in float32 and rounded once; of one block of channels, and of several."""
    tensors = draw(*shape, dtype)
    if wide:
        tensors[2], tensors[5] = tensors[2].float(), tensors[5].float()
    check(call, tensors)


@pytest.mark.parametrize("shape", [*FEW, (1, 33, 17, 4)], ids=shape_id)
def test_from_a_state_to_the_last(call, shape):
    check_handed_on(call, draw(*shape, torch.float32))


@pytest.mark.parametrize("dtype,models", [(torch.float64, None), (torch.bfloat16, 2)])
def test_from_a_state_to_the_last_of_models_and_halves(call, dtype, models):
    check_handed_on(call, draw(2, 18, 3, 3, dtype, models=models))


@pytest.mark.parametrize("models,batch", [(1, 2), (2, 4), (3, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_models_have_their_own_parameters(call, dtype, models, batch):
    check(call, draw(batch, 18, 3, 3, dtype, models=models))


def test_parameters_of_models_in_one_buffer(call):
    """As views of rows that hold all that a model has: they are not copied."""
    tensors = draw(4, 18, 3, 3, torch.float32, models=2)
    buffer = torch.full((2, 20), torch.nan)
    views = [*tensors[:2], buffer[:, 3:12].view(2, 3, 3), *tensors[3:5], buffer[:, 13:16]]
    views[2].copy_(tensors[2]), views[5].copy_(tensors[5])
    torch.testing.assert_close(compute(call, views), compute(call, tensors), rtol=0, atol=0)


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("shape", FEW, ids=shape_id)
def test_plain_steps(call, shape, skip):
    check(call, draw(*shape, torch.float32, softplus=False, skip=skip), softplus=False)


@pytest.mark.parametrize("every", [0, 1, 5, 16])
def test_saved_states(call, every):
    tensors = draw(2, 37, 5, 3, torch.float32)
    options = {"softplus": True, "every": every, "last": False}
    _, states, _ = call("selective_scan_forward", *tensors, None, **options)
    expected = reference.selective_scan_states(*to_arrays(tensors[:4]), delta_softplus=True)
    expected = expected[:, every - 1 :: every] if every else expected[:, :0]
    bound = scan_error(torch.float32, 37, 1)
    assert_close("states", states, expected.transpose(0, 1, 3, 2), bound)


def test_small_steps_keep_their_relative_precision(call):
    u, delta, A, B, C, _ = draw(1, 3, 4, 3, torch.float32)
    tensors = [u * 0 + 1, delta * 0 - 15, A, B, C, None]
    options = {"softplus": True, "every": 0, "last": False}
    y, _, _ = call("selective_scan_forward", *tensors, None, **options)
    expected = reference.selective_scan(*to_arrays(tensors), delta_softplus=True)
    np.testing.assert_allclose(y.double().numpy(), expected, rtol=1e-4, atol=1e-12)


def test_factors_that_vanish(call):
    u, delta, A, B, C, D = draw(2, 20, 5, 3, torch.float32, softplus=False)
    A[:, 2], delta[0, 5] = -5000.0, 30.0
    check(call, [u, delta, A, B, C, D], softplus=False)


def test_strided_inputs(call):
    tensors = draw(*FEW[0], torch.float32)
    strided = [torch.stack((x, x), -1)[..., 0] for x in tensors]
    grad_y = torch.stack((incoming(tensors),) * 2, -1)[..., 0]
    plain, other = compute(call, tensors), compute(call, strided, grad_y=grad_y)
    torch.testing.assert_close(plain, other, rtol=0, atol=0)


def test_rows_in_one_buffer_are_not_copied(call):
    """As parts of a fused projection, with NaN between them."""
    tensors = draw(*FEW[0], torch.float32)
    sizes = [x.shape[-1] for x in (*tensors[:2], *tensors[3:5])]
    buffer = torch.full((*tensors[0].shape[:2], sum(sizes) + 3), torch.nan)
    u, delta, B, C, _ = buffer.split([*sizes, 3], -1)
    views = [u, delta, tensors[2], B, C, tensors[5]]
    for view, x in zip((u, delta, B, C), (*tensors[:2], *tensors[3:5]), strict=True):
        view.copy_(x)
    torch.testing.assert_close(compute(call, views), compute(call, tensors), rtol=0, atol=0)


@pytest.mark.parametrize("B,L", [(0, 3), (2, 0)])
def test_empty(call, B, L):
    tensors = draw(B, L, 3, 4, torch.float32)
    y, gradients = compute(call, tensors)
    assert y.shape == (B, L, 3)
    for x, gradient in zip(tensors, gradients, strict=True):
        assert gradient.shape == x.shape and (gradient == 0).all()


def test_a_perturbed_number_is_noticed(call):
    """Of a whole result, one number off by a hundredth of its size."""
    tensors = draw(*FEW[0], torch.float32)
    y, gradients = check(call, tensors)
    for result in (y, *gradients):
        place = result.abs().argmax()
        before = result.view(-1)[place].clone()
        result.view(-1)[place] *= 1.01
        with pytest.raises(AssertionError):
            assert_values(tensors, y, True)
            assert_gradients(tensors, incoming(tensors), gradients, True)
        result.view(-1)[place] = before
    assert_gradients(tensors, incoming(tensors), gradients, True)


EXECUTED = [
    ("fp32", (1, 18, 5, 16), {}),
    ("fp32", (2, 18, 9, 3), {"softplus": False, "skip": False}),
    ("fp32", (1, 5, 3, 40), {}),
    ("fp64", (1, 17, 1, 16), {}),
    ("bf16", (2, 17, 3, 16), {"models": 2}),
    ("fp32", (2, 17, 9, 5), {"handed_on": True}),
]
ONCE = (1, 32, 64, 16)
# Registers and bytes of shared memory, the most of any NVIDIA architecture.
BUDGETS = {
    ("fp32", 4): {"forward": (192, 4096), "backward": (255, 4096)},
    ("fp32", 16): {"forward": (192, 4096), "backward": (255, 4096)},
    ("fp64", 16): {"forward": (192, 4096), "backward": (255, 8192)},
    ("bf16", 16): {"forward": (192, 4096), "backward": (255, 4096)},
}
COMPILED = [("fp32", 16, arch) for arch in ARCHITECTURES]
COMPILED += [("fp32", 4, "sm_90"), ("fp64", 16, "sm_80"), ("fp64", 16, "gfx942")]
COMPILED += [("bf16", 16, "sm_80"), ("bf16", 16, "gfx942")]


def example(mode, shape, **options):
    names = ("batch", "steps", "channels", "states")
    return {"mode": mode, **dict(zip(names, shape, strict=True)), **options}


def test_every_kernel_is_executed_by_default():
    from bwt.kernels import aot

    mode, shape, options = EXECUTED[0]
    executed = kernels_of_examples(MODULE, [example(mode, shape, **options)])
    assert executed == kernels(aot.specialisations("selective_scan", "sm_80").values())


@pytest.mark.parametrize(
    "mode,shape,options", tiers.mark("emulated", EXECUTED, (0,), unpack=True), ids=str
)
def test_ptx(compiler, monkeypatch, mode, shape, options):
    run, stats = emulator(compiler, monkeypatch, MODULE)
    records = compiler.get(MODULE, "sm_80", **example(mode, shape, **options))
    softplus = options.get("softplus", True)
    drawn = {"skip": options.get("skip", True), "models": options.get("models"), "dense": True}
    tensors = draw(*shape, DTYPES[mode], softplus=softplus, **drawn)
    (check_handed_on if options.get("handed_on") else check)(run, tensors, softplus)
    assert stats.keys() == records.keys()
    for name, record in records.items():
        assert record["stack"] == record["spills"] == 0, name


@pytest.mark.emulated
def test_each_input_is_read_once_in_a_pass(compiler, monkeypatch):
    """Counted in sectors of 32 bytes, for a whole block of channels."""
    B, L, E, N = ONCE
    run, stats = emulator(compiler, monkeypatch, MODULE)
    compiler.get(MODULE, "sm_80", **example("fp32", ONCE))
    check(run, draw(*ONCE, torch.float32, dense=True))
    rows, states = B * L * E, B * N * E
    # Of D there are fewer numbers than threads, and four warps load them.
    forward = 2 * rows + 2 * B * L * N + E * N + 4 * E
    backward = forward + rows + states  # grad_y, and the state saved after 16 steps
    for name, numbers in (("forward", forward), ("backward", backward)):
        counted = stats[f"selective_scan_{name}"]
        assert counted.load_sectors * 32 <= 1.01 * 4 * numbers
        assert counted.store_sectors == counted.store_sectors_ideal


@pytest.mark.emulated
@pytest.mark.parametrize("mode,states,arch", COMPILED)
def test_compiled_code_stays_within_budget(compiler, mode, states, arch):
    records = compiler.get(MODULE, arch, **example(mode, (64, 4096, 512, states)))
    assert_within_budget(records, BUDGETS[mode, states], "selective_scan", arch)


def test_every_entry_is_compiled_ahead_of_time():
    from bwt.kernels import aot
    from bwt.kernels.configs import TABLE, lookup

    for arch in ARCHITECTURES:
        compiled = {
            (launch.name, name.split(".")[1], launch.arguments["NP"], repr(launch.config))
            for name, launch in aot.specialisations("selective_scan", arch).items()
        }
        for op, kernel, dtype, size, _ in TABLE:
            if op == "selective_scan":
                [config] = lookup(op, kernel, dtype, size, arch)
                assert (f"selective_scan_{kernel}", dtype, size, repr(config)) in compiled
