"""What lies between the products of a transformer on a CPU: in few passes, whoever looks, and for
many models at once."""

import pytest
import torch
from helpers.small_models import SHAPE, inputs, perturbed
from torch.func import functional_call, vmap
from torch.utils._python_dispatch import TorchDispatchMode

import bwt
from bwt import models, ops

MODELS = 3
WATCHED = (
    *("blocks.0", "blocks.0.norm_attn", "blocks.0.attn", "blocks.0.mid", "blocks.0.norm_mlp"),
    *("blocks.0.mlp", "blocks.0.mlp.up", "blocks.0.mlp.down", "blocks.1", "head", "head.norm"),
)


def build(dtype=torch.float32, **options):
    model = models.build("transformer", **SHAPE, width=16, layers=2, **options)
    return perturbed(model).to(dtype)


class Calls(TorchDispatchMode):
    """What torch itself is asked for: names, with the shapes of the tensors."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        shapes = [tuple(x.shape) for x in args if isinstance(x, torch.Tensor)]
        self.calls.append((function.overloadpacket.__name__, *shapes))
        return function(*args, **(kwargs or {}))

    def count(self, name):
        return sum(call[0] == name for call in self.calls)


def results(model, tokens, features):
    model.zero_grad()
    logits = model(tokens, features)
    logits.square().sum().backward()
    return [logits.detach(), *(p.grad.clone() for p in model.parameters())]


def test_passes_between_products():
    """No bias and no residual has one of its own, forward or backward."""
    model, (tokens, features) = build(), inputs()
    with Calls() as seen:
        results(model, tokens, features.float())
    # Two norms in each block but the first one, and that of the head, read a sum.
    assert seen.count("add_rms_norm") == seen.count("add_rms_norm_backward") == 4
    assert seen.count("gelu") == seen.count("gelu_backward") == 2
    assert seen.count("rms_norm") == 1
    assert not {"addmm", "add_bias"} & {call[0] for call in seen.calls}
    # Of the embedding: positions, features; the gradient of what the first norm and block share.
    assert seen.count("add") + seen.count("add_") <= 3


@pytest.mark.parametrize("name", WATCHED)
def test_looking_at_one_part_changes_no_bit(name):
    model, (tokens, features) = build(), inputs()
    plain = results(model, tokens, features.float())
    with bwt.capture(model, name) as trace:
        watched = results(model, tokens, features.float())
    assert all(map(torch.equal, plain, watched)) and list(trace) == [name]


@pytest.mark.parametrize("name", ["blocks.0.mlp", "blocks.0.mlp.up", "blocks.1.norm_mlp", "head"])
def test_hooks_of_any_kind_are_called(name):
    model, (tokens, features) = build(), inputs()
    part, seen = dict(model.named_modules())[name], []
    removals = [
        part.register_forward_hook(lambda *_: seen.append("forward")).remove,
        part.register_forward_pre_hook(lambda *_: seen.append("before")).remove,
        part.register_full_backward_hook(lambda *_: seen.append("backward")).remove,
    ]
    for kind, remove in zip(("forward", "before", "backward"), removals, strict=True):
        seen.clear()
        results(model, tokens, features.float())
        assert kind in seen
        remove()


def stacked(dtype, **options):
    """The parameters of several models [M, ...], as strided views of one buffer [M, N]."""
    singles = [build(dtype, **options) for _ in range(MODELS)]
    rows = [torch.cat([p.detach().flatten() for p in one.parameters()]) for one in singles]
    buffer, parameters, begin = torch.stack(rows).requires_grad_(), {}, 0
    for name, p in singles[0].named_parameters():
        view = buffer[:, begin : begin + p.numel()]
        parameters[name] = view.unflatten(1, p.shape)
        begin += p.numel()
    return singles, buffer, parameters


VARIANTS = {
    "rms": {},
    "layer": dict(norm="layer", positions="rotary"),
    "shift": dict(token_shift="block", tied=True, logit_scale=8.0),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_many_models_at_once_equal_each_alone(variant):
    singles, buffer, parameters = stacked(torch.float64, **VARIANTS[variant])
    tokens, features = (
        torch.stack(x) for x in zip(*(inputs() for _ in range(MODELS)), strict=True)
    )

    def forward(parameters, tokens, features):
        return functional_call(singles[0], parameters, (tokens, features))

    logits = vmap(forward)(parameters, tokens, features)
    (grad,) = torch.autograd.grad(logits.square().sum(), buffer)
    for i, one in enumerate(singles):
        wanted = results(one, tokens[i], features[i])
        torch.testing.assert_close(logits[i], wanted[0], rtol=1e-10, atol=1e-10)
        flat = torch.cat([g.flatten() for g in wanted[1:]])
        torch.testing.assert_close(grad[i], flat, rtol=1e-9, atol=1e-10)


def test_many_models_at_once_are_one_product_and_one_pass_each():
    singles, buffer, parameters = stacked(torch.float32)
    tokens, features = inputs(batch=5)
    tokens, features = (x.expand(MODELS, *x.shape) for x in (tokens, features.float()))

    def forward(parameters, tokens, features):
        return functional_call(singles[0], parameters, (tokens, features))

    with Calls() as seen:
        vmap(forward)(parameters, tokens, features).square().sum().backward()
    products = [call for call in seen.calls if call[0] in ("bmm", "mm", "addmm")]
    # Features, four in each block, the head; the features themselves need no gradient.
    assert len(products) == 3 * (1 + 2 * 4 + 1) - 1
    rows = {5 * 2, 5 * 9}  # of the header, and of everything
    for name, left, right in products:
        assert name == "bmm" and left[0] == right[0] == MODELS
        assert rows & {*left[1:], *right[1:]}
    assert seen.count("add_rms_norm") == seen.count("add_rms_norm_backward") == 4
    assert seen.count("gelu") == seen.count("gelu_backward") == 2


def test_the_forms_for_other_devices_agree(monkeypatch):
    """Those that GPUs, autocast and torch.compile get."""
    model, (tokens, features) = build(torch.float64), inputs()
    fused = results(model, tokens, features)
    monkeypatch.setattr(models.parts, "in_passes", lambda x: False)
    monkeypatch.setattr(ops, "add_rms_norm", None)
    for got, want in zip(fused, results(model, tokens, features), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


def test_bf16_throughout():
    """Parameters and activations, without autocast; logits are float32, as the head needs it."""
    model, (tokens, features) = build(), inputs()
    exact = model(tokens, features.float())
    logits = model.to(torch.bfloat16)(tokens, features.bfloat16())
    assert logits.dtype == torch.float32
    error, eps = (logits - exact).abs().max(), torch.finfo(torch.bfloat16).eps
    assert 0 < error < 16 * eps * exact.abs().max().clamp_min(1)
    logits.float().square().sum().backward()
    assert all(
        p.grad.dtype == torch.bfloat16 and p.grad.isfinite().all() for p in model.parameters()
    )
