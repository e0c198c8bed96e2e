"""bwt.capture: what is inside, without a trace left behind."""

import numpy as np
import pytest
import torch

import bwt
from bwt import models, ops, reference, taps


@pytest.fixture
def model():
    shape = dict(vocab_size=7, num_outcomes=4, seq_len=6)
    model = models.build("transformer", **shape, layers=2, heads=2, width=16)
    torch.nn.init.normal_(model.head.weight)
    return model


TOKENS = torch.arange(12).view(2, 6) % 7


def leftovers(model):
    attached = {"listeners", "changes", "_doors"}
    hooked = [m for m in model.modules() if m._forward_hooks or m._forward_pre_hooks]
    return hooked + [m for m in model.modules() if attached & m.__dict__.keys()]


def test_weights_are_those_of_the_queries_and_keys(model):
    with bwt.capture(model, "blocks.*.attn.*") as trace:
        model(TOKENS)
    for i in range(2):
        got = {k: trace[f"blocks.{i}.attn.{k}"].detach() for k in ("q", "k", "v", "weights", "out")}
        arrays = (got[k].double().numpy() for k in "qkv")
        want = reference.attention(*arrays, capture=("weights", "entropy"))
        assert np.abs(got["weights"].numpy() - want.weights).max() < 1e-6
        assert np.abs(got["out"].numpy() - want.out).max() < 1e-5
        entropy = trace[f"blocks.{i}.attn.entropy"].detach()
        assert np.abs(entropy.numpy() - want.entropy).max() < 1e-5
    assert leftovers(model) == []


def test_residual_stream_adds_up(model):
    with bwt.capture(model, "embed", "blocks.*", "blocks.*.mid", "blocks.*.*", "logits") as trace:
        logits = model(TOKENS)
    x = trace["embed"]
    for i in range(2):
        assert torch.equal(trace[f"blocks.{i}.mid"], x + trace[f"blocks.{i}.attn"])
        x = trace[f"blocks.{i}.mid"] + trace[f"blocks.{i}.mlp"]
        assert torch.equal(trace[f"blocks.{i}"], x)
    assert trace["logits"] is logits


@pytest.mark.parametrize("name", models.MODELS)
@pytest.mark.parametrize("positions", [None, torch.tensor([1, 5])])
def test_capturing_everything_changes_no_bit(name, positions):
    model = models.build(name, vocab_size=7, num_outcomes=4, seq_len=6)
    torch.nn.init.normal_(model.head.weight)

    def step():
        model.zero_grad()
        logits = model(TOKENS, None, positions)
        logits.square().sum().backward()
        return [logits, *(p.grad.clone() for p in model.parameters())]

    plain = step()
    with bwt.capture(model, "**") as trace:
        captured = step()
    assert all(torch.equal(a, b) for a, b in zip(plain, captured, strict=True))
    # Not every module is called: the tables of an embedding are only read.
    assert "logits" in trace and set(trace) <= set(taps.names(model))
    assert leftovers(model) == []


def test_only_what_is_asked_for_is_computed(model, monkeypatch):
    asked = []

    def spy(*arguments, capture, **options):
        asked.append(tuple(capture))
        return attention(*arguments, capture=capture, **options)

    attention = ops.attention
    monkeypatch.setattr(ops, "attention", spy)
    model(TOKENS)
    with bwt.capture(model, "blocks.1.attn.weights") as trace:
        model(TOKENS)
    assert asked == [(), (), (), ("weights",)] and list(trace) == ["blocks.1.attn.weights"]


def test_gradients_flow_through_captured_values(model):
    with bwt.capture(model, "blocks.0.attn.entropy") as trace:
        model(TOKENS)
    trace["blocks.0.attn.entropy"].sum().backward()
    assert model.embed.tokens.grad.abs().sum() > 0


def test_a_pattern_without_a_match_says_what_there_is(model):
    complaint = r"'blocks\.9\.\*' matches nothing; .* blocks\.0\.attn"
    with pytest.raises(ValueError, match=complaint), bwt.capture(model, "blocks.*", "blocks.9.*"):
        pass
    assert leftovers(model) == []


def test_star_stands_for_one_part(model):
    with bwt.capture(model, "blocks.*") as trace:
        model(TOKENS)
    assert list(trace) == ["blocks.0", "blocks.1"]


def test_an_error_inside_removes_everything(model):
    with pytest.raises(KeyError), bwt.capture(model, "**"):
        raise KeyError
    assert leftovers(model) == []


def test_captures_may_be_nested(model):
    with bwt.capture(model, "blocks.0.attn.q") as outer:
        with bwt.capture(model, "blocks.0.attn.q", "blocks.0.mid") as inner:
            model(TOKENS)
        first = outer.pop("blocks.0.attn.q")
        assert first is inner["blocks.0.attn.q"]
        model(TOKENS)
        assert "blocks.0.attn.q" in outer
    assert leftovers(model) == []


def test_a_compiled_model_is_captured_too(model):
    want = model(TOKENS)
    model.compile(backend="eager")
    compiled = model._compiled_call_impl
    torch.testing.assert_close(model(TOKENS), want)
    with bwt.capture(model, "blocks.0.attn.weights", "blocks.1") as trace:
        assert torch.equal(model(TOKENS), want)
    assert set(trace) == {"blocks.0.attn.weights", "blocks.1"}
    assert model._compiled_call_impl is compiled
