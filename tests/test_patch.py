"""bwt.patch: a model that goes on with other values, and nothing left of it afterwards."""

import pytest
import torch
from test_capture import TOKENS, leftovers

import bwt
from bwt import models, taps


def build(name="transformer", **options):
    shape = dict(vocab_size=7, num_outcomes=4, seq_len=6)
    model = models.build(name, **shape, **{"layers": 2, "width": 16, **options})
    torch.nn.init.normal_(model.head.weight)
    return model.double()


@pytest.fixture
def model():
    return build()


@pytest.mark.parametrize("tap", ["q", "k", "v", "weights", "out"])
def test_the_model_goes_on_with_the_changed_value_and_a_capture_sees_it(model, tap):
    name, plain = f"blocks.0.attn.{tap}", model(TOKENS)
    with bwt.capture(model, "blocks.0.attn.*") as before:
        model(TOKENS)
    with bwt.patch(model, {name: lambda x: 2 * x}), bwt.capture(model, "blocks.0.attn.*") as after:
        changed = model(TOKENS)
    assert torch.equal(after[name], 2 * before[name])
    assert (changed - plain).abs().max() > 1e-4
    assert leftovers(model) == [] and torch.equal(model(TOKENS), plain)


@pytest.mark.parametrize("name", ["embed", "blocks.0", "blocks.0.mlp", "blocks.0.attn", "logits"])
def test_what_modules_return_is_changed_and_seen_from_inside_and_outside(model, name):
    with bwt.capture(model, name) as before:
        model(TOKENS)
    with (
        bwt.capture(model, name) as outer,
        bwt.patch(model, {name: torch.zeros_like}),
        bwt.capture(model, name) as inner,
    ):
        model(TOKENS)
    assert before[name].abs().max() > 0 and not outer[name].any()
    assert inner[name] is outer[name]


def test_captures_see_what_follows(model):
    with (
        bwt.patch(model, {"blocks.0": lambda x: x + 1}),
        bwt.capture(model, "blocks.*", "blocks.1.attn.q", "blocks.1.mid") as trace,
    ):
        model(TOKENS)
    follows = model.blocks[1]
    with bwt.capture(follows, "attn.q", "mid") as alone:
        want = follows(trace["blocks.0"])
    assert torch.equal(trace["blocks.1"], want)
    assert torch.equal(trace["blocks.1.attn.q"], alone["attn.q"])


def test_changed_weights_are_what_attention_averages_with(model):
    def first_only(weights):
        return torch.zeros_like(weights).index_fill(-1, torch.tensor(0), 1.0)

    with (
        bwt.patch(model, {"blocks.*.attn.weights": first_only}),
        bwt.capture(model, "blocks.1.attn.*") as trace,
    ):
        model(TOKENS)
    first = trace["blocks.1.attn.v"][:, :, :1].expand_as(trace["blocks.1.attn.out"])
    assert torch.equal(trace["blocks.1.attn.out"], first)
    assert not trace["blocks.1.attn.entropy"].any()


def test_weights_that_stay_the_same_change_nothing(model):
    plain = model(TOKENS)
    with bwt.capture(model, "blocks.0.attn.entropy") as fused:
        model(TOKENS)
    with (
        bwt.patch(model, {"blocks.*.attn.weights": lambda x: x}),
        bwt.capture(model, "blocks.0.attn.entropy") as summed,
    ):
        torch.testing.assert_close(model(TOKENS), plain)
    torch.testing.assert_close(fused, summed)


def test_gradients_flow_through_what_a_function_does(model):
    """Against differences: the derivative of the logits by a factor on the keys."""

    def total(factor):
        with bwt.patch(model, {"blocks.0.attn.k": lambda k: factor * k}):
            return model(TOKENS)[..., 0].sum()

    factor = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    total(factor).backward()
    step = 1e-6
    slope = (total(1.3 + step) - total(1.3 - step)) / (2 * step)
    torch.testing.assert_close(factor.grad, slope.detach(), rtol=1e-6, atol=1e-8)
    assert factor.grad.abs() > 1e-6 and model.embed.tokens.grad.abs().max() > 0


def test_patches_nest_and_the_outer_comes_first(model):
    for name in ("blocks.0.mid", "blocks.0"):
        with bwt.capture(model, name) as plain:
            model(TOKENS)
        with bwt.patch(model, {name: lambda x: 2 * x}):
            with bwt.patch(model, {name: lambda x: x + 1}), bwt.capture(model, name) as both:
                model(TOKENS)
            with bwt.capture(model, name) as one:
                model(TOKENS)
        assert torch.equal(both[name], 2 * plain[name] + 1)
        assert torch.equal(one[name], 2 * plain[name])
    assert leftovers(model) == []


def test_an_error_inside_restores_the_model(model):
    plain = model(TOKENS)
    with pytest.raises(KeyError), bwt.patch(model, {"blocks.0": torch.zeros_like}):
        raise KeyError
    assert leftovers(model) == [] and torch.equal(model(TOKENS), plain)


def test_a_patch_reaches_a_compiled_model(model):
    with bwt.patch(model, {"blocks.1.mid": lambda x: 4 * x}):
        want = model(TOKENS)
    model.compile(backend="eager")
    compiled = model._compiled_call_impl
    with bwt.patch(model, {"blocks.1.mid": lambda x: 4 * x}):
        torch.testing.assert_close(model(TOKENS), want)
    assert model._compiled_call_impl is compiled and leftovers(model) == []


@pytest.mark.parametrize("name", ["mamba", "lstm", "mlp"])
def test_every_value_of_the_other_models_can_be_changed_or_is_refused(name):
    model = build(name)
    plain = model(TOKENS)
    with bwt.capture(model, "**") as trace:
        model(TOKENS)
    tensors = [name for name, value in trace.items() if isinstance(value, torch.Tensor)]
    for path in tensors:
        if path.endswith(("state", "delta")):
            with pytest.raises(ValueError, match="nothing that could be changed"):
                bwt.patch(model, {path: torch.zeros_like}).__enter__()
            continue
        with bwt.patch(model, {path: torch.zeros_like}):
            assert not torch.equal(model(TOKENS), plain), path
    assert leftovers(model) == [] and len(tensors) > 5


@pytest.mark.parametrize(
    "name,nearest",
    [
        ("blocks.0.attn.wieghts", r"nearest are .*blocks\.0\.attn\.weights"),
        ("blocks.0.attn.entropy", r"could be changed; nearest are .*blocks\.0\.attn"),
        ("blocks.0.attn.hook_patern", r"nearest are .*blocks\.0\.attn\.hook_pattern"),
        ("blocks.0.attn.hook_attn_scores", r"nearest are .*blocks\.0\.attn\.hook_"),
        ("blocks", r"matches nothing"),
        ("", r"this model has: .*blocks\.0\.attn\.k,"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(model, name, nearest):
    with pytest.raises(ValueError, match=nearest):
        bwt.patch(model, {"blocks.0": torch.zeros_like, name: torch.zeros_like}).__enter__()
    assert leftovers(model) == []


@pytest.mark.parametrize("made", [None, torch.zeros(2, 6)])
def test_a_function_that_returns_no_such_tensor_is_named(model, made):
    with (
        pytest.raises(ValueError, match=r"'blocks\.0' must return a tensor \[2, 6, 16\], got"),
        bwt.patch(model, {"blocks.0": lambda x: made}),
    ):
        model(TOKENS)
    assert leftovers(model) == []


def test_a_patch_that_never_happens_is_said():
    """A layer that is looked into makes an LSTM run layer by layer, and not as a whole."""
    model = build("lstm")
    with (
        pytest.raises(ValueError, match="never came by lstm"),
        bwt.capture(model, "blocks.0"),
        bwt.patch(model, {"lstm": lambda x: x}),
    ):
        model(TOKENS)


def test_names_of_transformer_lens_are_ours_with_their_axes(model):
    pairs = {"pattern": "weights", "q": "q", "k": "k", "v": "v", "z": "out"}
    with bwt.capture(model, "**") as ours, bwt.capture(model, "**hook_**") as theirs:
        model(TOKENS)
    for i in range(2):
        for hook, tap in pairs.items():
            want = ours[f"blocks.{i}.attn.{tap}"]
            want = want if hook == "pattern" else want.transpose(1, 2)
            assert torch.equal(theirs[f"blocks.{i}.attn.hook_{hook}"], want)
        before = ours["embed"] if i == 0 else ours["blocks.0"]
        assert torch.equal(theirs[f"blocks.{i}.hook_resid_pre"], before)
        assert torch.equal(theirs[f"blocks.{i}.hook_resid_mid"], ours[f"blocks.{i}.mid"])
        assert torch.equal(theirs[f"blocks.{i}.hook_resid_post"], ours[f"blocks.{i}"])
        assert torch.equal(theirs[f"blocks.{i}.hook_attn_out"], ours[f"blocks.{i}.attn"])
        assert torch.equal(theirs[f"blocks.{i}.hook_mlp_out"], ours[f"blocks.{i}.mlp"])
        post = torch.nn.functional.gelu(theirs[f"blocks.{i}.mlp.hook_pre"], approximate="tanh")
        down = model.blocks[i].mlp.down(theirs[f"blocks.{i}.mlp.hook_post"])
        assert torch.equal(down, ours[f"blocks.{i}.mlp"])
        torch.testing.assert_close(theirs[f"blocks.{i}.mlp.hook_post"], post, rtol=0, atol=1e-2)
    assert torch.equal(theirs["hook_embed"], model.embed.tokens[TOKENS])
    assert not any("hook_" in name for name in [*ours, *taps.names(model)])


def test_a_patch_by_a_name_of_transformer_lens_has_their_axes(model):
    def first_head_off(z):  # [batch, position, head, channel]
        return torch.cat((torch.zeros_like(z[:, :, :1]), z[:, :, 1:]), 2)

    with (
        bwt.patch(model, {"blocks.0.attn.hook_z": first_head_off}),
        bwt.capture(model, "blocks.0.attn.out") as trace,
    ):
        model(TOKENS)
    out = trace["blocks.0.attn.out"]
    assert not out[:, 0].any() and out[:, 1].any()


def test_only_the_rotated_have_counterparts_with_rotary_positions():
    model = build(positions="rotary")
    with bwt.capture(model, "blocks.0.attn.q", "blocks.0.attn.hook_rot_q") as trace:
        model(TOKENS)
    q = trace["blocks.0.attn.q"].transpose(1, 2)
    assert torch.equal(trace["blocks.0.attn.hook_rot_q"], q)
    with pytest.raises(ValueError, match=r"nearest are .*blocks\.0\.attn\.hook_rot_q"):
        bwt.capture(model, "blocks.0.attn.hook_q").__enter__()


def test_an_lstm_has_no_residual_stream():
    with pytest.raises(ValueError, match="'blocks.0.hook_resid_post' matches nothing"):
        bwt.capture(build("lstm"), "blocks.0.hook_resid_post").__enter__()
