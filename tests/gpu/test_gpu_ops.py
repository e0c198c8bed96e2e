"""The public ops on a GPU against the NumPy reference; the same tests on a CPU, where they run
today."""

import pytest
import torch
from helpers import gpu_bodies, hmm_triton

pytest.importorskip("triton", reason="Triton is not installed")

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
LAYOUTS = list(gpu_bodies.LAYOUTS)
# A tile and more than one, streamed; what takes the emulated GPU minutes is for a real one.
SHAPES = [(1, 3, 7, 9, 20), (1, 1, 1, 1, 16)]
LARGE = pytest.mark.real_gpu
SHAPES += [pytest.param(shape, marks=LARGE) for shape in [(2, 3, 39, 39, 32), (1, 2, 37, 93, 20)]]
SHAPES += [pytest.param((1, 2, 300, 300, 64), marks=LARGE)]


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_attention(device, mode, shape, layout):
    if device == "cpu" and mode != "fp32":
        pytest.skip("16 bits are for a GPU")
    gpu_bodies.attention(device, mode, shape, layout)


def test_attention_that_is_not_causal(device):
    gpu_bodies.attention(device, "fp32", SHAPES[0], "dense", causal=False)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", ["fp32", "fp64"])
@pytest.mark.parametrize(
    "case",
    [
        hmm_triton.Case("rows", 5, 7, 5, 6),
        hmm_triton.Case("rows", 3, 9, 13, 40, hmm_triton.SHARED),
        hmm_triton.Case("dot", 3, 5, 20, 7, hmm_triton.SHARED),
    ],
    ids=lambda case: case.name,
)
def test_hmm_filter(device, mode, case, layout):
    gpu_bodies.hmm_filter(device, mode, case, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_hmm_smooth(device, layout):
    gpu_bodies.hmm_smooth(device, hmm_triton.Case("rows", 4, 9, 5, 6), layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_bijection_posterior(device, layout, noise):
    gpu_bodies.bijection_posterior(device, layout, noise)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "shape",
    [pytest.param((2, 93, 20, 16), marks=LARGE), (2, 18, 7, 3), (1, 1, 1, 1)],
    ids=str,
)
def test_selective_scan(device, shape, layout, dtype):
    gpu_bodies.selective_scan(device, shape, layout, dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("models", [None, 2])
def test_selective_scan_of_halves(device, layout, dtype, models):
    gpu_bodies.selective_scan(device, (2, 18, 7, 3), layout, dtype, models)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_selective_scan_from_a_state_to_the_last(device, layout, dtype):
    gpu_bodies.handed_on_scan(device, layout, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_stacked_scan(device, dtype):
    gpu_bodies.stacked_scan(device, dtype)


def test_stacked_attention(device):
    gpu_bodies.stacked_attention(device)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", ["gelu", "rms_norm"])
def test_pointwise(device, op, layout):
    getattr(gpu_bodies, op)(device, layout)


def test_empty_batches(device):
    gpu_bodies.empty_batches(device)


@pytest.mark.parametrize("name", gpu_bodies.OPERATORS)
def test_opcheck(device, name):
    gpu_bodies.opcheck(device, name)


def test_odd_is_odd_and_equal():
    for shape in ((3,), (4, 5), (2, 3, 4, 5)):
        x = torch.randn(shape)
        view = gpu_bodies.odd(x, "cpu")
        assert torch.equal(view, x) and view.storage_offset() > 0
        assert view.stride(-1) != 1 and not view.is_contiguous()
