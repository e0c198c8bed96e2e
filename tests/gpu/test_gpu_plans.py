"""Calls that find the launches of an earlier one: right whatever differs, and cheap to the host."""

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from helpers import attention_triton, gpu_bodies, hmm_triton

triton = pytest.importorskip("triton", reason="Triton is not installed")

from bwt.kernels import configs, plans  # noqa: E402

from bwt import ops  # noqa: E402

pytestmark = pytest.mark.gpu
SHAPE = (1, 1, 2, 3, 16)  # B, H, T, S, D
STREAMED = (1, 1, 2, 130, 16)  # more keys than a tile of the gradient holds
ROOT = Path(__file__).resolve().parents[2]
COUNTED = (str(ROOT / "bwt"), str(ROOT / "kernels"), "/torch/", "/triton/")


def dense(x):
    return x.cuda()


def offset(x):
    """Not at an address that 16 divides."""
    return torch.zeros(x.numel() + 1, dtype=x.dtype, device="cuda")[1:].view(x.shape).copy_(x)


def fused(x):
    """As a slice of a projection, heads after positions."""
    B, H, T, D = x.shape
    wide = torch.zeros((B, T, H, 3 * D), dtype=x.dtype, device="cuda")
    return wide.transpose(1, 2)[..., D : 2 * D].copy_(x)


def odd(x):
    return gpu_bodies.odd(x, "cuda")


@pytest.fixture
def launched(monkeypatch):
    """The kernels that Triton's own way was taken for."""
    names, run = [], configs.Launch.run

    def noted(self, device):
        names.append(self.name)
        return run(self, device)

    monkeypatch.setattr(configs.Launch, "run", noted)
    return names


def attend(mode="fp32", shape=SHAPE, place=dense, incoming=attention_triton.INCOMING):
    """One call and its gradient against the NumPy reference."""
    x, gradients = attention_triton.draw(mode, shape, incoming)
    qkv = [place(value).detach().requires_grad_() for value in x.values()]
    got = ops.attention(*qkv, capture=gpu_bodies.ALL)
    outputs = [getattr(got, name) for name in ("out", "weights", "entropy", "lse")]
    pairs = [(o, g) for o, g in zip(outputs, gradients.values(), strict=True) if g is not None]
    found = torch.autograd.grad(
        [o for o, _ in pairs], qkv, [g.to("cuda", o.dtype) for o, g in pairs]
    )
    values = gpu_bodies.to_cpu([got.out, got.lse, got.weights, got.entropy, *found])
    names = (*attention_triton.FORWARD, *attention_triton.BACKWARD)
    expected = attention_triton.expect(x, gradients)
    allowed = attention_triton.bounds(mode, x, gradients, expected)
    attention_triton.assert_agrees(dict(zip(names, values, strict=True)), expected, allowed)


OTHERS = {
    "offset": {"place": offset},
    "fused": {"place": fused},
    "odd": {"place": odd},
    "longer": {"shape": (2, 1, 3, 3, 16)},
    "bf16": {"mode": "bf16"},
    "fewer gradients": {"incoming": ("grad_out",)},
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_what_differs_has_launches_of_its_own(launched, change):
    attend()
    assert launched
    launched.clear()
    attend()
    assert not launched
    attend(**change)
    assert launched
    launched.clear()
    attend(**change)
    attend()
    assert not launched


def test_launches_with_scratch_are_repeated(launched):
    attend(shape=STREAMED)
    assert "attention_stream_offset" in launched
    launched.clear()
    attend(shape=STREAMED)
    assert not launched


def test_one_tensor_in_three_places_is_three():
    q, k, v = torch.randn(3, 1, 1, 3, 16).cuda()
    expected = ops.attention(q, k, v).out.cpu()
    plans.forget()
    ops.attention(q, q, q)
    assert torch.equal(ops.attention(q, k, v).out.cpu(), expected)


def test_numbers_that_are_only_marked_as_negative():
    q = torch.randn(1, 1, 2, 16, dtype=torch.complex64).cuda()
    negated = q.conj().imag
    assert negated.is_neg()
    expected = ops.attention(*[-q.imag] * 3).out
    assert torch.equal(ops.attention(*[negated] * 3).out.cpu(), expected.cpu())


def test_the_precision_of_products_may_change_between_calls(launched):
    before = torch.get_float32_matmul_precision()
    try:
        for precision in ("highest", "high", "highest"):
            torch.set_float32_matmul_precision(precision)
            attend("tf32" if precision == "high" else "fp32")
    finally:
        torch.set_float32_matmul_precision(before)
    assert len(launched) == 4  # two ways of two kernels


def test_the_backend_may_change_between_calls(launched, monkeypatch):
    q = torch.randn(1, 1, 2, 16, device="cuda")
    monkeypatch.setenv("BWT_BACKEND", "triton")
    exact = ops.attention(q, q, q).out
    monkeypatch.setenv("BWT_BACKEND", "torch")
    plain = ops.attention(q, q, q).out
    monkeypatch.setenv("BWT_BACKEND", "native")
    with pytest.raises(RuntimeError, match="serves CPU tensors"):
        ops.attention(q, q, q)
    torch.testing.assert_close(exact, plain)
    assert len(launched) == 1


def test_arguments_are_checked_after_good_ones():
    q = torch.randn(1, 1, 2, 16, device="cuda")
    ops.attention(q, q, q)
    with pytest.raises(ValueError, match="causal must be True or False"):
        ops.attention(q, q, q, causal=1)
    with pytest.raises(ValueError, match="capture takes any of"):
        ops.attention(q, q, q, capture="weights")
    with pytest.raises(ValueError, match="agree in dtype"):
        ops.attention(q, q, q.double())


def test_second_derivatives_after_first_ones():
    """Of the same signature: the kernels know first ones only."""
    attend()
    q, k, v = (torch.randn(1, 1, 2, 16).double() for _ in range(3))

    def norm(q, k, v):
        out = ops.attention(q, k, v).out
        (slope,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), (q, k, v))

    expected = norm(*(x.requires_grad_() for x in (q, k, v)))
    found = norm(*(x.detach().float().cuda().requires_grad_() for x in (q, k, v)))
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu().double(), two, rtol=1e-4, atol=1e-5)


def test_who_asked_triton_is_told_of_every_launch():
    q = torch.randn(1, 1, 2, 16, device="cuda")
    ops.attention(q, q, q)
    told = []
    hooks = triton.knobs.runtime.launch_enter_hook

    def note(metadata):
        told.append(metadata.get()["name"])

    hooks.add(note)
    try:
        ops.attention(q, q, q)
    finally:
        hooks.remove(note)
    ops.attention(q, q, q)
    assert told == ["attention_short_forward_kernel"]


def test_hmm_filter(launched):
    case = hmm_triton.Case("rows", 2, 3, 3, 4)
    gpu_bodies.hmm_filter("cuda", "fp32", case, "dense")
    assert launched
    launched.clear()
    gpu_bodies.hmm_filter("cuda", "fp32", case, "dense")
    gpu_bodies.hmm_filter("cuda", "fp32", case, "odd")  # contiguous when it is launched
    assert not launched


@pytest.mark.parametrize("layout", gpu_bodies.LAYOUTS)
def test_selective_scan(launched, layout):
    gpu_bodies.selective_scan("cuda", (1, 2, 3, 4), layout, torch.float32)
    launched.clear()
    gpu_bodies.selective_scan("cuda", (1, 2, 3, 4), layout, torch.float32)
    assert not launched


def calls_of(function, *arguments) -> int:
    """Functions called on the way, but those of the emulated GPU."""
    seen = Counter()

    def note(frame, event, _):
        if event in ("call", "c_call") and any(x in frame.f_code.co_filename for x in COUNTED):
            seen[event] += 1

    sys.setprofile(note)
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
    return seen.total()


def test_few_functions_are_called():
    """What host time is made of, whatever the machine: 46 and 54 of them, where a way through the
    dispatcher and Triton's binder takes 236 and 149."""
    q, k, v = (torch.randn(1, 1, 2, 16, device="cuda", requires_grad=True) for _ in range(3))
    got = ops.attention(q, k, v)
    gradient = torch.ones_like(got.out)
    torch.autograd.grad(got.out, (q, k, v), gradient)
    assert calls_of(ops.attention, q, k, v) <= 60
    node = ops.attention(q, k, v).out.grad_fn
    with torch.no_grad():
        assert calls_of(node.apply, gradient, *[None] * 8) <= 60
