"""What the CUDA implementations return is what their fakes promise: torch.compile relies on it."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from bwt.ops import _library

pytestmark = pytest.mark.gpu


def randn(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=dtype, device="cuda")


def attention(weights, entropy, dtype=torch.float32, asked=()):
    B, H, T, S, D = 2, 3, 5, 7, 8
    q, k, v = (randn(B, n, H, D, dtype=dtype).transpose(1, 2) for n in (T, S, S))
    return torch.ops.bwt.attention.default, (q, k, v, True, 0.3, weights, entropy, *asked)


def attention_backward(**present):
    op, arguments = attention(True, True)
    out, lse, weights, entropy, *_ = op(*arguments)
    incoming = [
        torch.randn_like(x) if name in present else None
        for name, x in dict(out=out, weights=weights, entropy=entropy, lse=lse).items()
    ]
    saved = (*arguments[:3], out, lse, weights, entropy)
    return torch.ops.bwt.attention_backward.default, (*incoming, *saved, True, 0.3)


def attention_asked_backward():
    """Of chosen heads and queries."""
    op, arguments = attention(True, True, asked=(True, True, 2, [2, 0], [4, 1, 0]))
    out, lse, weights, entropy, received, max_logit, argmax, *top_k = op(*arguments)
    incoming = [torch.randn_like(x) for x in (out, weights, entropy, lse)]
    asked = [torch.randn_like(x) for x in (received, max_logit, top_k[0])]
    first = (*incoming, *arguments[:3], out, lse, None, entropy, True, 0.3)
    others = (*asked, argmax, *top_k, [2, 0], [4, 1, 0])
    return torch.ops.bwt.attention_backward.default, (*first, *others)


def rows(*shape):
    return randn(*shape).softmax(-1)


def hmm_filter(batch=3, steps=4, states=3, symbols=5, own=True):
    first = (batch,) if own else ()
    observations = torch.randint(-1, symbols, (batch, steps), device="cuda")
    parameters = (rows(*first, states), rows(*first, states, states), rows(*first, states, symbols))
    return torch.ops.bwt.hmm_filter.default, (observations, *parameters, None)


def hmm_filter_backward(**sizes):
    op, arguments = hmm_filter(**sizes)
    outputs = op(*arguments)
    incoming = (torch.randn_like(outputs[0]), None, torch.randn_like(outputs[2]))
    return torch.ops.bwt.hmm_filter_backward.default, (*incoming, *arguments, *outputs)


def without_gradients(call, incoming):
    op, arguments = call
    return op, (*[None] * incoming, *arguments[incoming:])


def selective_scan(
    batch=2,
    steps=18,
    channels=5,
    states=4,
    every=16,
    models=(),
    dtype=torch.float32,
    handed_on=False,
):
    # As slices of one projection: no argument is contiguous.
    wide = randn(batch, steps, 2 * channels + 2 * states).to(dtype)
    u, delta, B, C = wide.split((channels, channels, states, states), -1)
    A, D = -randn(*models, states, channels).abs().mT, randn(*models, channels)
    initial = randn(batch, channels, states).mT if handed_on else None
    arguments = (u, delta, A, B, C, D, initial, True, every, handed_on)
    return torch.ops.bwt.selective_scan.default, arguments


def selective_scan_backward(**sizes):
    op, arguments = selective_scan(**sizes)
    y, states, last = op(*arguments)
    saved = (*arguments[:7], states, True, 16)
    incoming = torch.randn_like(y), torch.randn_like(last) if last.numel() else None
    return torch.ops.bwt.selective_scan_backward.default, (*incoming, *saved)


def bijection_posterior():
    keys = torch.arange(4, device="cuda").expand(2, 4)
    return torch.ops.bwt.bijection_posterior.default, (keys, keys, 5, torch.float32)


def bijection_posterior_noisy():
    keys = torch.arange(4, device="cuda").expand(2, 4)
    channel = rows(5, 5).double().t().contiguous().t()
    return torch.ops.bwt.bijection_posterior.noisy, (keys, keys, channel, torch.float32)


def bijection_posterior_backward():
    op, (keys, values, channel, dtype) = bijection_posterior_noisy()
    posterior, entropy, evidence, _ = op(keys, values, channel, dtype)
    gradients = (torch.ones_like(posterior), torch.ones_like(entropy), evidence.double())
    return torch.ops.bwt.bijection_posterior_backward.default, (*gradients, keys, values, channel)


CALLS = {
    "attention": lambda: attention(False, False),
    "attention-weights": lambda: attention(True, False),
    "attention-entropy-bf16": lambda: attention(False, True, torch.bfloat16),
    "attention-asked": lambda: attention(False, False, asked=(True, True, 3)),
    "attention-asked-bf16": lambda: attention(
        True, True, torch.bfloat16, asked=(True, True, 3, [1], [4, 0])
    ),
    "attention-asked-backward": lambda: attention_asked_backward(),
    "attention-backward": lambda: attention_backward(out=1, weights=1, entropy=1, lse=1),
    "attention-backward-nothing": lambda: attention_backward(),
    "hmm-own": lambda: hmm_filter(),
    "hmm-shared": lambda: hmm_filter(own=False),
    "hmm-empty": lambda: hmm_filter(batch=0),
    "hmm-backward-few-symbols": lambda: hmm_filter_backward(),
    "hmm-backward-many-symbols": lambda: hmm_filter_backward(symbols=40),
    "hmm-backward-many-symbols-shared": lambda: hmm_filter_backward(symbols=40, own=False),
    "hmm-backward-many-states": lambda: hmm_filter_backward(states=18, own=False),
    "hmm-backward-nothing": lambda: without_gradients(hmm_filter_backward(), 3),
    "scan": lambda: selective_scan(),
    "scan-no-states": lambda: selective_scan(every=0),
    "scan-backward": lambda: selective_scan_backward(),
    "scan-backward-empty": lambda: selective_scan_backward(batch=0),
    "scan-handed-on": lambda: selective_scan(handed_on=True, dtype=torch.bfloat16),
    "scan-handed-on-backward": lambda: selective_scan_backward(handed_on=True),
    "scan-handed-on-empty": lambda: selective_scan(handed_on=True, steps=0),
    "scan-handed-on-empty-backward": lambda: selective_scan_backward(handed_on=True, steps=0),
    "scan-models": lambda: selective_scan(models=(2,)),
    "scan-models-backward": lambda: selective_scan_backward(models=(2,)),
    "scan-models-backward-empty": lambda: selective_scan_backward(batch=0, models=(2,)),
    "scan-bf16": lambda: selective_scan(dtype=torch.bfloat16),
    "scan-bf16-backward": lambda: selective_scan_backward(dtype=torch.bfloat16, models=(2,)),
    "bijection": bijection_posterior,
    "bijection-noisy": bijection_posterior_noisy,
    "bijection-backward": bijection_posterior_backward,
}


def layout(x: torch.Tensor):
    # The strides of what has no elements, or of an axis of one, mean nothing.
    strides = [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]
    return x.shape, x.dtype, x.device, strides if x.numel() else []


@pytest.mark.parametrize("name", CALLS)
def test_results_are_laid_out_as_the_fake_says(name):
    if name.startswith("bijection") and _library.cuda_fault:
        pytest.skip(_library.cuda_fault)
    op, arguments = CALLS[name]()
    real = op(*arguments)
    with FakeTensorMode() as mode:
        faked = [mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in arguments]
        fake = op(*faked)
    if isinstance(real, torch.Tensor):
        real, fake = (real,), (fake,)
    for number, (got, promised) in enumerate(zip(real, fake, strict=True)):
        assert layout(got) == layout(promised), f"result {number}"
