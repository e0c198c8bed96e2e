"""Models of equal structure as one: vmap of functional_call over parameters [M, ...] that are views
of one buffer, with gradients from outside. Each equals the model run by itself."""

import warnings

import pytest
import torch
from helpers.op_calls import OpCalls
from helpers.small_models import SHAPE, inputs, perturbed
from helpers.tolerances import reordered_sums
from torch.func import functional_call, vmap

from bwt import models

M, LAYERS, WIDTH = 3, 2, 16
KINDS = {
    "learned positions": ("transformer", {}),
    "rotary positions": ("transformer", {"positions": "rotary"}),
    "no positions": ("transformer", {"positions": "none"}),
    "shift of the input": ("transformer", {"token_shift": "input"}),
    "shift of each block": ("transformer", {"token_shift": "block", "shift_span": 2}),
    "tied head": ("transformer", {"tied": True}),
    "norm without gain": ("transformer", {"norm": "layer"}),
    "collapsed keys": ("transformer", {"keys": "collapsed"}),
    "orthogonal keys": ("transformer", {"keys": "orthogonal"}),
    "mamba": ("mamba", {"state": 5}),
    "mlp of the prefix": ("mlp", {"context": "prefix"}),
    "mlp of a position": ("mlp", {"context": "position"}),
}


def build(kind, options, dtype):
    options = {**SHAPE, "layers": LAYERS, "width": WIDTH, **options}
    return [perturbed(models.build(kind, **options)).to(dtype) for _ in range(M)]


def stack(members):
    """Parameters as views of one buffer [M, N] that needs gradients, buffers as they are."""
    flat = torch.stack([torch.nn.utils.parameters_to_vector(m.parameters()) for m in members])
    flat = flat.detach().requires_grad_()
    named, begin = {}, 0
    for name, parameter in members[0].named_parameters():
        end = begin + parameter.numel()
        named[name] = flat[:, begin:end].unflatten(1, parameter.shape)
        begin = end
    for name, _ in members[0].named_buffers():
        named[name] = torch.stack([m.get_buffer(name) for m in members])
    return flat, named


def draw(dtype):
    """Tokens [M, B, L] and features [M, B, F, W], and positions that all models share."""
    drawn = [inputs() for _ in range(M)]
    tokens, features = (torch.stack(x) for x in zip(*drawn, strict=True))
    return tokens, features.to(dtype), torch.tensor([3, 5, 8])


def run_stacked(template, named, tokens, features, positions):
    def one(named, tokens, features):
        return functional_call(template, named, (tokens, features, positions))

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns where it loops over the models instead
        return vmap(one)(named, tokens, features)


def assert_near(found, expected, bound):
    scale = max(1.0, expected.abs().max().item())
    torch.testing.assert_close(found, expected, rtol=0, atol=bound * scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", KINDS)
def test_equals_the_models_run_one_by_one(name, dtype):
    kind, options = KINDS[name]
    members, (tokens, features, positions) = build(kind, options, dtype), draw(dtype)
    flat, named = stack(members)
    found = run_stacked(members[0], named, tokens, features, positions)
    expected = torch.stack(
        [m(t, f, positions) for m, t, f in zip(members, tokens, features, strict=True)]
    )
    exact = torch.float32 if name == "rotary positions" else dtype  # turned in float32
    bound = reordered_sums(exact, 4 * WIDTH)
    assert_near(found, expected, bound)
    weights = torch.randn_like(found)
    found.backward(weights)
    expected.backward(weights)
    for m, member in enumerate(members):
        own = [torch.zeros_like(p) if p.grad is None else p.grad for p in member.parameters()]
        assert_near(flat.grad[m], torch.cat([g.flatten() for g in own]), bound)


@pytest.mark.parametrize("kind,kernel", [("transformer", "attention"), ("mamba", "selective_scan")])
def test_a_kernel_is_called_once_for_all_models(kind, kernel):
    members, arguments = build(kind, {}, torch.float32), draw(torch.float32)
    _, named = stack(members)
    with OpCalls() as calls:
        found = run_stacked(members[0], named, *arguments)
        found.sum().backward()
    batch = M * arguments[0].shape[1]
    for op in (kernel, f"{kernel}_backward"):
        assert [size for name, size in calls.seen if name == op] == [batch] * LAYERS


def test_a_model_in_the_wrong_place_is_noticed():
    members, (tokens, features, positions) = build("mamba", {}, torch.float64), draw(torch.float64)
    _, named = stack(members)
    found = run_stacked(members[0], named, tokens, features, positions)
    other = members[1](tokens[0], features[0], positions)
    with pytest.raises(AssertionError):
        assert_near(found[0], other, reordered_sums(torch.float64, 4 * WIDTH))


def test_an_lstm_cannot_be_stacked():
    """torch has no rule for it: it raises, and does not loop."""
    members, arguments = build("lstm", {}, torch.float32), draw(torch.float32)
    with pytest.raises(RuntimeError, match="Batching rule not implemented for aten::lstm"):
        run_stacked(members[0], stack(members)[1], *arguments)
