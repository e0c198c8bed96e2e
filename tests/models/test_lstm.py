"""The stack of an LSTM run layer by layer is the stack."""

import copy

import torch
from helpers.small_models import SHAPE, inputs, perturbed

import bwt
from bwt import models


def build():
    return perturbed(models.build("lstm", **SHAPE, layers=3, width=10, embed=6)).eval()


def test_layer_by_layer_is_the_same_to_the_bit():
    model = build()

    def step():
        model.zero_grad()
        logits = model(*inputs_)
        logits.square().sum().backward()
        return [logits, *(p.grad.clone() for p in model.parameters())]

    inputs_ = inputs()
    whole = step()
    with bwt.capture(model, "blocks.*", "hidden") as trace:
        layers = step()
    assert all(torch.equal(a, b) for a, b in zip(whole, layers, strict=True))
    assert torch.equal(trace["blocks.2"], trace["hidden"])
    assert trace["blocks.0"].shape == (3, 9, 10)


def test_weights_have_the_names_they_always_had():
    names = [
        f"lstm.{x}_{y}_l{i}" for i in range(3) for x in ("weight", "bias") for y in ("ih", "hh")
    ]
    state = build().state_dict()
    assert [name for name in state if name.startswith(("lstm", "blocks"))] == names
    assert len(list(build().parameters())) == len(state)


def test_a_copy_runs_on_its_own_weights():
    model = build()
    other = copy.deepcopy(model)
    with torch.no_grad():
        model.lstm.weight_hh_l1.zero_()
    tokens, features = inputs()
    with bwt.capture(other, "blocks.1"):
        layers = other(tokens, features)
    assert torch.equal(layers, other(tokens, features))
    assert not torch.equal(layers, model(tokens, features))


def test_a_state_can_be_handed_on():
    layer = build().blocks[0]
    x = torch.randn(2, 7, 6, dtype=torch.float64)
    first, state = layer.run(x[:, :4], layer.rest(2, x))
    rest, _ = layer.run(x[:, 4:], state)
    torch.testing.assert_close(torch.cat((first, rest), 1), layer(x))
