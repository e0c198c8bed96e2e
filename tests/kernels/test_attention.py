"""The Triton kernels of attention against NumPy in float64.

Without a GPU they are interpreted, their PTX is executed (of sm_80 all, of sm_90 what short
sequences need), and they are compiled for architectures that are shipped; with one, the value tests
also run on it.
"""

import json
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import tiers, triton_aot
from helpers.attention_triton import (
    BACKWARD,
    FORWARD,
    INCOMING,
    MODULE,
    assert_agrees,
    check,
    compute,
    draw,
    example,
    expect,
    show,
)

pytest.importorskip("triton", reason="Triton is not installed")

# The interpreter computes bf16 wrongly and tf32 as float32; float64 checks its maths to the end.
MODES = {"interpreted": ("fp64", "fp32", "fp16"), "gpu": ("fp32", "tf32", "fp16", "bf16")}


@pytest.fixture
def call(request, call):
    """The common one, for the modes that its backend has."""
    backend = request.node.callspec.params["call"]
    if request.node.callspec.params.get("mode", "fp32") not in MODES[backend]:
        pytest.skip("not a mode of this backend")
    return call


SHAPES = [(1, 2, 1, 1, 16), (2, 3, 1, 7, 20), (3, 3, 13, 16, 32), (1, 2, 39, 39, 64)]
SHAPES += [(1, 3, 20, 30, 16), (1, 2, 93, 100, 20), (1, 1, 160, 160, 32), (1, 1, 2, 256, 128)]
SHAPES += [(1, 1, 1, 300, 64), (1, 2, 93, 300, 20), (1, 1, 270, 270, 16)]


@pytest.mark.parametrize("shape", tiers.mark("slow", SHAPES, default=(1, 2, 4, 8)), ids=show)
@pytest.mark.parametrize("mode", ["fp64", "fp32", "tf32", "fp16", "bf16"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
def test_values(call, mode, shape, causal):
    check(call, mode, shape, causal=causal)


SINGLE = {
    (1, 2, 13, 16, 16): ["short_forward", "short_backward"],
    (1, 2, 39, 39, 16): ["short_forward", "blocks_backward"],
    (1, 1, 40, 270, 16): [
        *("stream_forward", "stream_weights", "stream_offset", "stream_keys", "stream_queries")
    ],
}


@pytest.mark.parametrize("shape", SINGLE, ids=show)
@pytest.mark.parametrize("incoming", [(), *((name,) for name in INCOMING)], ids="".join)
def test_single_incoming_gradients(request, call, shape, incoming):
    is_interpreted = request.node.callspec.params["call"] == "interpreted"
    if is_interpreted:
        call.func("helpers.launched", "take")
    check(call, "fp32", shape, incoming=incoming, scale=-0.7)
    if is_interpreted:
        wanted = [f"attention_{name}" for name in SINGLE[shape]]
        if not incoming:  # the gradients are zero
            wanted = [name for name in wanted if name.endswith(("forward", "weights"))]
        elif incoming == ("grad_weights",) and wanted[-1] == "attention_blocks_backward":
            wanted.insert(1, "attention_stream_offset")
        assert call.func("helpers.launched", "take") == wanted


@pytest.mark.parametrize("shape", [(2, 2, 37, 41, 20), (1, 2, 35, 260, 32)], ids=show)
def test_strided_inputs(call, shape):
    check(call, "fp32", shape, strided=True)


@pytest.mark.parametrize("shape", [(1, 2, 39, 39, 64), (1, 1, 20, 300, 64)], ids=show)
@pytest.mark.parametrize("magnitude", [1e3, 1e5])
def test_huge_scores(call, shape, magnitude):
    got, expected, _ = check(call, "fp32", shape, magnitude=magnitude)
    assert np.abs(expected["lse"]).max() > 3 * magnitude
    assert all(x.isfinite().all() for x in got.values())
    np.testing.assert_allclose(got["weights"].sum(-1), 1, atol=1e-5)
    assert (got["entropy"] >= 0).all()


def test_hidden_gradients_are_not_looked_at(call):
    x, gradients = draw("fp32", (1, 1, 20, 24, 16))
    clean = compute(call, "fp32", x, gradients)
    hidden = torch.ones(20, 24).triu(5).bool()
    gradients["grad_weights"] = gradients["grad_weights"].masked_fill(hidden, float("nan"))
    for name, value in compute(call, "fp32", x, gradients).items():
        torch.testing.assert_close(value, clean[name], rtol=0, atol=0)


def test_weights_alone(call):
    x, gradients = draw("fp16", (1, 2, 21, 39, 32))
    options = {"causal": True, "scale": None, "capture_weights": True, "capture_entropy": False}
    _, _, weights, entropy, *_ = call("attention_forward", *x.values(), **options)
    assert entropy is None and weights.dtype == torch.float16
    np.testing.assert_allclose(weights, expect(x, gradients)["weights"], atol=1e-3)


def test_nothing_captured_and_empty_batches(call):
    x, gradients = draw("fp32", (0, 2, 3, 4, 16))
    options = {"causal": True, "scale": None}
    found = call(
        "attention_forward", *x.values(), capture_weights=False, capture_entropy=False, **options
    )
    assert all(x is None for x in found[2:]) and found[0].shape == (0, 2, 3, 16)
    assert compute(call, "fp32", x, gradients)["grad_k"].shape == (0, 2, 4, 16)


@pytest.mark.parametrize("name", FORWARD + BACKWARD)
def test_a_perturbed_number_is_noticed(call, name):
    """Of a whole result, one number off by a hundredth of its size."""
    got, expected, allowed = check(call, "fp32", (1, 2, 39, 39, 64))
    got[name] = got[name].contiguous()
    got[name].view(-1)[got[name].abs().argmax()] *= 1.01
    with pytest.raises(AssertionError, match=name):
        assert_agrees(got, expected, allowed)


EXECUTED = [("fp16", (1, 1, 64, 64, 64)), ("fp16", (1, 2, 39, 39, 32))]
EXECUTED += [("bf16", (1, 1, 37, 93, 64)), ("tf32", (1, 2, 39, 45, 32))]
EXECUTED += [("fp32", (1, 1, 33, 39, 32)), ("fp16", (3, 3, 7, 9, 16))]
EXECUTED += [("bf16", (1, 3, 20, 30, 20)), ("fp32", (1, 3, 1, 16, 16))]
ONE_HEAD_ONE_QUERY = ("tf32", (2, 1, 1, 19, 64))
EXECUTED += [ONE_HEAD_ONE_QUERY, ("fp16", (1, 1, 40, 160, 32))]
EXECUTED += [("fp16", (1, 1, 40, 304, 32)), ("bf16", (1, 1, 33, 270, 64))]
EXECUTED += [("tf32", (1, 1, 33, 270, 32)), ("fp32", (1, 1, 20, 270, 16))]
# In one tile, and block by block.
EXECUTED_LATER = [("fp16", (1, 2, 7, 9, 32), "sm_90"), ("bf16", (1, 1, 37, 70, 64), "sm_90")]
EXECUTED_LATER += [("tf32", (1, 1, 20, 39, 32), "sm_90"), ("fp32", (1, 1, 33, 39, 16), "sm_90")]
# In one tile, and backwards in blocks; test_attention_captures streams.
DEFAULT = (1, 2)


@pytest.fixture
def emulate(compiler, monkeypatch):
    return triton_aot.emulator(compiler, monkeypatch, MODULE)


def limits(mode, shape, name):
    """Recorded ratios to the ideal: sectors stored, sectors loaded, wavefronts of shared memory."""
    keys, head_size = shape[3:]
    stored, loaded = 1.0, 1.0
    if keys % 16:  # rows of weights start anywhere
        stored, loaded = 1.45, 3.2 if "stream" in name else 1.3
    if head_size % 16:  # so do those of q, k, v
        stored, loaded = 1.6, 2.7
    if "blocks" in name:  # statistics of rows are read by each warp, a few at a time
        loaded = max(loaded, 1.3)
    if mode == "fp32":  # no tensor cores; operands are read in pieces that conflict
        return stored, loaded, 3.2
    return stored, loaded, 1.4 if "stream" in name else 1.05


def test_every_kernel_is_executed_by_default():
    from bwt.kernels import aot

    executed = triton_aot.kernels_of_examples(MODULE, [example(*EXECUTED[i]) for i in DEFAULT])
    known = triton_aot.kernels(aot.specialisations("attention", "sm_80").values())
    assert executed == {name for name in known if "stream_" not in name or "offset" in name}


@pytest.mark.parametrize(
    "mode,shape", tiers.mark("emulated", EXECUTED, DEFAULT, unpack=True), ids=show
)
def test_ptx(compiler, emulate, mode, shape):
    call, stats = emulate
    records = compiler.get(MODULE, "sm_80", **example(mode, shape))
    check(call, mode, shape)
    assert stats.keys() == records.keys()
    for name, found in stats.items():
        uses_mma = any(opcode.startswith("mma") for opcode in found.opcodes)
        assert uses_mma == (mode != "fp32"), name
        stored, loaded, shared = limits(mode, shape, name)
        assert found.store_sectors <= stored * found.store_sectors_ideal, name
        assert found.load_sectors <= loaded * found.load_sectors_ideal, name
        assert found.shared_wavefronts <= shared * found.shared_wavefronts_ideal, name


@pytest.mark.emulated
@pytest.mark.parametrize("mode,shape,arch", EXECUTED_LATER, ids=show)
def test_ptx_of_short_sequences_on_hopper(compiler, monkeypatch, mode, shape, arch):
    call, stats = triton_aot.emulator(compiler, monkeypatch, MODULE, arch)
    records = compiler.get(MODULE, arch, **example(mode, shape))
    check(call, mode, shape)
    assert stats.keys() == records.keys()


PACKED = ("fp16", (3, 3, 7, 9, 16))


@pytest.mark.emulated
def test_ptx_of_heads_that_share_a_tile(tmp_path, monkeypatch):
    """A form that no entry has, and `bwt tune` may choose."""
    from bwt.kernels import aot, attention, configs

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    config = configs.C(4, 1, BT=16, BS=16, PACK=4)
    monkeypatch.setattr(attention, "lookup", lambda *key: (config,))
    names = []

    def run(self, device):
        names.append(self.name)
        triton_aot.execute(aot.build(self.name, self, "sm_80", str(tmp_path)), self)

    monkeypatch.setattr(configs.Launch, "run", run)
    check(lambda name, *args, **options: getattr(attention, name)(*args, **options), *PACKED)
    assert names == ["attention_short_forward", "attention_short_backward"]


def test_ptx_does_not_depend_on_the_order_of_warps(compiler, emulate):
    call, _ = emulate
    mode, shape = EXECUTED[1]
    compiler.get(MODULE, "sm_80", **example(mode, shape))
    x, gradients = draw(mode, shape)
    first, second = (compute(partial(call, seed=seed), mode, x, gradients) for seed in (1, 2))
    assert all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.emulated
def test_a_call_compiles_to_what_is_compiled_ahead_of_time(compiler):
    """One head and one query become constants in both."""
    chosen = example(*ONE_HEAD_ONE_QUERY)
    with ProcessPoolExecutor(1, get_context("spawn")) as other:
        called = other.submit(triton_aot.ptx_of_a_call, MODULE, **chosen).result()
    for name, record in compiler.get(MODULE, "sm_80", **chosen).items():
        assert called[name] == triton_aot.without_lines(Path(record["ptx"]).read_text()), name


ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "gfx942")
# Registers and bytes of shared memory, the most of any NVIDIA architecture.
SHIPPED = {
    ("fp16", (2, 3, 64, 64, 32)): {"short_forward": (160, 8192), "short_backward": (235, 15360)},
    ("bf16", (2, 3, 128, 128, 64)): {
        "short_forward": (120, 24576),
        "stream_offset": (150, 16384),
        "blocks_backward": (255, 20480),
    },
    ("tf32", (2, 3, 64, 64, 32)): {"short_forward": (200, 16384), "short_backward": (255, 30720)},
    ("fp32", (2, 3, 64, 64, 32)): {
        "short_forward": (168, 24576),
        "stream_offset": (80, 8192),
        "blocks_backward": (255, 20480),
    },
    ("fp16", (2, 3, 512, 512, 64)): {
        "stream_forward": (244, 41984),
        "stream_weights": (80, 16392),
        "stream_offset": (150, 16384),
        "stream_keys": (136, 20736),
        "stream_queries": (192, 41984),
    },
}
COMPILED = [(mode, shape, arch) for arch in ARCHITECTURES for mode, shape in SHIPPED]


@pytest.mark.emulated
@pytest.mark.parametrize("mode,shape,arch", COMPILED, ids=show)
def test_compiled_code_stays_within_budget(compiler, mode, shape, arch):
    records = compiler.get(MODULE, arch, **example(mode, shape))
    assert records.keys() == {f"attention_{name}" for name in SHIPPED[mode, shape]}
    for name, (registers, shared) in SHIPPED[mode, shape].items():
        record = records[f"attention_{name}"]
        if arch == "gfx942":  # where small spills are tolerated
            assert record["shared"] <= 65536 and record["tensor_core"] > 0, name
            continue
        assert record["stack"] == record["spills"] == 0, name
        assert record["registers"] <= registers and record["shared"] <= shared, name
        assert (record["tensor_core"] > 0) == (mode != "fp32"), name
        if name in SHORT and mode != "fp32":
            assert record["tensor_core_kinds"] == ["HMMA"], name
        assert record["wide_stores"] > 0 or name == "stream_offset", name


# stream_offset goes before blocks_backward where weights have gradients.
SHORT = ("short_forward", "short_backward", "blocks_backward", "stream_offset")


def rows_of_products(kernel, tiles, head_size):
    """Of all products of a kernel."""
    queries, keys = (tiles[name] * tiles.get("PACK", 1) for name in ("BT", "BS"))
    if kernel in ("short_forward", "stream_offset"):
        return {queries}
    turned = kernel == "short_backward" and 32 < keys >= head_size
    return {keys, head_size if turned else queries}


def test_short_sequences_stay_on_instructions_that_tests_execute():
    """Triton takes wgmma and tcgen05 for 64 rows and a group of four warps."""
    from bwt.kernels.configs import TABLE

    for (_, kernel, mode, head_size, arch), entry in TABLE.items():
        for config in entry if kernel in SHORT and mode != "fp32" else ():
            rows = rows_of_products(kernel, config.tiles, head_size)
            executed = config.warps % 4 or not any(count % 64 == 0 for count in rows)
            assert executed, (kernel, mode, head_size, arch, config)


@pytest.mark.emulated
def test_aot_command(tmp_path):
    pattern = "attention_short_forward.fp16.D16.S16.plain"
    done = triton_aot.run_python(
        *("-m", "bwt.kernels.aot", "--arch", "80", "--op", "attention", "--match", pattern),
        *("--out", str(tmp_path), "--json"),
    )
    assert done.returncode == 0, done.stderr
    [record] = json.loads(done.stdout)
    assert record["name"] == pattern and record["registers"] > 0 and record["fp_fusion"] is True
    assert Path(record["cubin"]).stat().st_size > 0 and Path(record["ptx"]).stat().st_size > 0
    assert json.loads((tmp_path / "resources.json").read_text()) == [record]
    done = triton_aot.run_python("-m", "bwt.kernels.aot", TRITON_INTERPRET="1")
    assert done.returncode == 2 and "TRITON_INTERPRET is set" in done.stderr


def test_every_entry_is_compiled_ahead_of_time_and_a_missing_one_is_named():
    from bwt.kernels import aot
    from bwt.kernels.configs import TABLE, lookup

    for arch in ARCHITECTURES:
        launches = aot.specialisations("attention", arch).values()
        compiled = {(launch.name, repr(launch.config)) for launch in launches}
        for op, kernel, dtype, head_size, _ in TABLE:
            for config in lookup(op, kernel, dtype, head_size, arch) if op == "attention" else ():
                assert (f"{op}_{kernel}", repr(config)) in compiled
    for head_size, arch in ((48, "sm_80"), (64, "sm_70")):
        with pytest.raises(KeyError, match=f"'short_forward', 'fp16', {head_size}, '{arch}'"):
            lookup("attention", "short_forward", "fp16", head_size, arch)
