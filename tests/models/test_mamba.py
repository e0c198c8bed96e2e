"""Mamba against NumPy in float64, its convolution, and what can be read inside it."""

import numpy as np
import pytest
import torch
from helpers.small_models import SHAPE, inputs, perturbed
from torch.nn import functional

import bwt
from bwt import models, reference, tasks
from bwt.models.mamba import STEP_RANGE, CausalConvolution, Options


def build(**options):
    return perturbed(models.build("mamba", **SHAPE, **{"width": 16, "state": 5, **options}))


def numpy_mamba(state, tokens, features, sizes, eps=1e-6):
    """The default model, written down again; also the states of its last block."""
    w = {name: p.numpy() for name, p in state.items()}

    def norm(x, gain):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * gain

    def silu(x):
        return x / (1 + np.exp(-x))

    x = w["embed.tokens"][tokens]
    x = np.concatenate([features @ w["embed.features.weight"].T + w["embed.slots"], x], 1)
    for i in range(sum(name.endswith("log_rate") for name in w)):
        p = {k.split("mixer.")[1]: v for k, v in w.items() if k.startswith(f"blocks.{i}.mixer.")}
        u, gate = np.split(norm(x, w[f"blocks.{i}.norm.weight"]) @ p["up.weight"].T, 2, -1)
        mixed = np.zeros_like(u) + p["conv.bias"]
        for t in range(u.shape[1]):
            for j in range(min(t + 1, len(p["conv.mix"]))):
                mixed[:, t] += p["conv.mix"][j] * u[:, t - j]
        u = silu(mixed)
        step, B, C = np.split(u @ p["select.weight"].T, np.cumsum(sizes)[:-1], -1)
        delta, A = step @ p["step.weight"].T + p["step.bias"], -np.exp(p["log_rate"])
        states = reference.selective_scan_states(u, delta, A, B, delta_softplus=True)
        y = (states * C[:, :, None]).sum(-1) + p["skip"] * u
        x = x + (y * silu(gate)) @ p["down.weight"].T
    return norm(x, w["head.norm.weight"]) @ w["head.weight"].T, states


def test_equals_numpy_and_shows_its_states():
    model, (tokens, features) = build(), inputs()
    sizes = model.blocks[0].mixer.sizes
    want, states = numpy_mamba(model.state_dict(), tokens.numpy(), features.numpy(), sizes)
    with torch.no_grad(), bwt.capture(model, "blocks.*.mixer.state") as trace:
        got = model(tokens, features)
    assert np.abs(got.numpy() - want).max() < 1e-12
    assert trace["blocks.1.mixer.state"].shape == (3, 9, 32, 5)
    assert np.abs(trace["blocks.1.mixer.state"].numpy() - states).max() < 1e-12
    with torch.no_grad():
        single = model.float()(tokens, features.float())
    assert np.abs(single.numpy() - want).max() < 1e-4


def test_captured_parts_give_the_states():
    model, (tokens, features) = build(), inputs()
    with bwt.capture(model, "blocks.0.mixer.*") as trace:
        model(tokens, features)
    part = {k.rsplit(".", 1)[1]: v.detach() for k, v in trace.items() if "mixer." in k}
    mixer = model.blocks[0].mixer
    u = functional.silu(part["conv"])
    A = -mixer.log_rate.detach().exp()
    want = reference.selective_scan_states(*(x.numpy() for x in (u, part["delta"], A, part["B"])))
    assert np.abs(part["state"].numpy() - want).max() < 1e-12
    assert part["gate"].shape == u.shape and part["C"].shape == part["B"].shape


@pytest.mark.parametrize("time", [1, 3, 4, 9])
def test_convolution_and_its_gradient(time):
    conv = CausalConvolution(5, 4).double()
    torch.nn.init.normal_(conv.bias)
    x = torch.randn(2, time, 5, dtype=torch.float64, requires_grad=True)
    past = functional.pad(x.transpose(1, 2), (3, 0))
    weight = conv.mix.t().flip(1).unsqueeze(1)
    want = functional.conv1d(past, weight, conv.bias, groups=5).transpose(1, 2)
    torch.testing.assert_close(conv(x), want)
    assert torch.autograd.gradcheck(lambda x, *_: conv(x), (x, conv.mix, conv.bias))


def test_a_compiled_model_is_the_same():
    model, (tokens, features) = build(), inputs()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(tokens, features), model(tokens, features))


def test_step_sizes_at_the_start():
    model = models.build("mamba", **SHAPE, width=64)
    for block in model.blocks:
        steps = functional.softplus(block.mixer.step.bias)
        low, high = STEP_RANGE
        assert 0.9 * low <= steps.min() < 3 * low and high / 3 < steps.max() <= 1.1 * high


def test_reads_further_than_it_was_built_for():
    tokens, features = inputs()
    assert build()(torch.cat([tokens] * 3, 1), features).shape == (3, 23, 4)


def test_the_papers_size_is_matched():
    """The transformer for HMMs of the paper has 7.4 million parameters."""
    task = tasks.get("hmm")
    sizes = dict(layers=9, heads=8, width=256)
    target = models.build_for(task, "transformer", **sizes).num_parameters
    found = models.match_parameters("mamba", task, target, layers=9)
    with torch.device("meta"):
        count = models.build_for(task, "mamba", **found).num_parameters
    assert abs(count - target) <= 0.01 * target
    assert Options(**found).channels == 2 * found["width"] and Options(**found).state == 16
