"""Models: causal, right against NumPy in float64, sized as said."""

import numpy as np
import pytest
import torch
from helpers.small_models import SHAPE, inputs, perturbed
from scipy.special import erf

import bwt
from bwt import models, reference, tasks
from bwt.models.parts import shifted
from bwt.models.transformer import Rotary

VARIANTS = {
    "transformer": ("transformer", {}),
    "rotary": ("transformer", dict(positions="rotary", norm="layer", heads=4)),
    "shift-input": ("transformer", dict(positions="none", token_shift="input", tied=True)),
    "shift-block": (
        "transformer",
        dict(token_shift="block", shift_span=3, logit_scale=8.0),
    ),
    "collapsed": ("transformer", dict(keys="collapsed", positions="rotary")),
    "orthogonal": ("transformer", dict(keys="orthogonal")),
    "attention-only": ("transformer", dict(mlp="none")),
    "mlp-last": ("transformer", dict(mlp="last", norm="layer", layers=3)),
    "mlp-frozen": ("transformer", dict(mlp="frozen")),
    "mamba": ("mamba", dict(state=3)),
    "lstm": ("lstm", dict(layers=2, embed=12)),
    "prefix": ("mlp", {}),
    "position": ("mlp", dict(context="position", norm="layer")),
}


def build(variant, **changes):
    name, options = VARIANTS[variant]
    return perturbed(models.build(name, **{**SHAPE, **changes}, width=16, **options))


@pytest.mark.parametrize("variant", VARIANTS)
def test_causal(variant):
    model, (tokens, features) = build(variant), inputs()
    before = model(tokens, features)
    changed = tokens.clone()
    changed[:, 4] = (tokens[:, 4] + 1) % SHAPE["vocab_size"]
    difference = (model(changed, features) - before).abs().amax((0, 2))  # [T]
    at = 2 + 4  # behind the features
    assert (difference[:at] == 0).all() and difference[at] > 1e-6
    sees_past = variant != "position"
    assert (difference[at + 1 :] > 1e-9).all() == sees_past


@pytest.mark.parametrize("variant", VARIANTS)
def test_positions_select(variant):
    model, (tokens, features) = build(variant), inputs()
    positions = torch.tensor([1, 4, 8])
    want = model(tokens, features)[:, positions]
    torch.testing.assert_close(model(tokens, features, positions), want, atol=1e-12, rtol=0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradient_reaches_every_parameter(variant):
    model, (tokens, features) = build(variant), inputs(batch=32)
    model(tokens, features).square().sum().backward()
    for name, p in model.named_parameters():
        if variant == "mlp-frozen" and "mlp" in name:
            assert p.grad is None, name
        else:
            assert p.grad is not None and p.grad.abs().sum() > 0, name


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.filterwarnings("error::UserWarning")
def test_bf16_autocast(variant):
    """The same model in bf16: every product has operands of 8 bits and a depth of a few."""
    model, (tokens, features) = build(variant).float(), inputs()
    features = features.float()
    exact = model(tokens, features)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(tokens, features)
    assert logits.dtype == torch.bfloat16
    error, eps = (logits - exact).abs().max(), torch.finfo(torch.bfloat16).eps
    assert 0 < error < 16 * eps * exact.abs().max().clamp_min(1)
    logits.float().square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)


def numpy_transformer(state, tokens, features, heads, eps=1e-6):
    """The default transformer, written down again."""
    w = {name: p.numpy() for name, p in state.items()}

    def norm(x, gain):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * gain

    x = w["embed.tokens"][tokens] + w["embed.positions"][: tokens.shape[1]]
    x = np.concatenate([features @ w["embed.features.weight"].T + w["embed.slots"], x], 1)
    for i in range(sum(name.endswith("qkv.weight") for name in w)):
        at = f"blocks.{i}."
        qkv = norm(x, w[at + "norm_attn.weight"]) @ w[at + "attn.qkv.weight"].T
        q, k, v = (
            part.reshape(*part.shape[:2], heads, -1).transpose(0, 2, 1, 3)
            for part in np.split(qkv, 3, -1)
        )
        out = reference.attention(q, k, v).out.transpose(0, 2, 1, 3).reshape(x.shape)
        x = x + out @ w[at + "attn.proj.weight"].T
        up = norm(x, w[at + "norm_mlp.weight"]) @ w[at + "mlp.up.weight"].T + w[at + "mlp.up.bias"]
        gelu = up * 0.5 * (1 + erf(up / np.sqrt(2)))
        x = x + gelu @ w[at + "mlp.down.weight"].T + w[at + "mlp.down.bias"]
    return norm(x, w["head.norm.weight"]) @ w["head.weight"].T


def test_transformer_equals_numpy():
    model, (tokens, features) = build("transformer"), inputs()
    want = numpy_transformer(model.state_dict(), tokens.numpy(), features.numpy(), heads=2)
    with torch.no_grad():
        got = model(tokens, features)
        single = model.float()(tokens, features.float())
    assert np.abs(got.numpy() - want).max() < 1e-12
    assert np.abs(single.numpy() - want).max() < 1e-4


def test_prefix_mlp_sees_the_flattened_prefix():
    prefix, e = build("prefix").prefix, torch.randn(3, 9, 16, dtype=torch.float64)
    for t in range(9):
        visible = e.clone()
        visible[:, t + 1 :] = 0
        want = visible.flatten(1) @ prefix.weight.flatten(0, 1)
        torch.testing.assert_close(prefix(e)[:, t], want, atol=1e-12, rtol=0)


@pytest.mark.parametrize("positions", ["none", "rotary"])
def test_collapsed_keys_make_attention_uniform(positions):
    model = models.build("transformer", **SHAPE, width=16, keys="collapsed", positions=positions)
    tokens, features = inputs()
    with bwt.capture(model, "blocks.*.attn.weights") as trace:
        model(tokens, features.float())
    uniform = torch.ones(9, 9).tril() / torch.arange(1.0, 10)[:, None]
    for weights in trace.values():
        torch.testing.assert_close(weights, uniform.expand_as(weights))


def test_orthogonal_keys_are_a_rotation_that_is_never_trained():
    model = models.build("transformer", **SHAPE, width=16, layers=1, keys="orthogonal")
    projection = model.blocks[0].attn.qkv
    torch.testing.assert_close(projection.fixed_key @ projection.fixed_key.t(), torch.eye(16))
    tokens, features = inputs()
    with bwt.capture(model, "blocks.0.norm_attn", "blocks.0.attn.k") as trace:
        model(tokens, features.float())
    want = (trace["blocks.0.norm_attn"] @ projection.fixed_key.t()).unflatten(-1, (2, 8))
    torch.testing.assert_close(trace["blocks.0.attn.k"], want.transpose(1, 2))
    assert "blocks.0.attn.qkv.fixed_key" in model.state_dict()
    assert all(p.requires_grad for p in model.parameters())


def test_only_what_is_trained_is_counted():
    size = {
        keys: models.build("transformer", **SHAPE, width=16, layers=3, keys=keys).num_parameters
        for keys in ("learned", "orthogonal", "collapsed")
    }
    assert size["learned"] - size["orthogonal"] == 3 * 16 * 16
    assert size["orthogonal"] - size["collapsed"] == 3 * 16 * 16


def test_rotary_scores_depend_on_distance_only():
    q, k = torch.randn(2, 1, 1, 8)
    rotary = Rotary(8)
    q, k = (rotary(x.expand(1, 12, 8)) for x in (q, k))
    scores = q[0] @ k[0].T
    for offset in range(-8, 9):
        diagonal = scores.diagonal(offset)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    assert scores[0].std() > 0.01


def test_rms_norm_and_its_gradient():
    norm = models.parts.RMSNorm(5).double()
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    want = x.detach().numpy()
    want = want / np.sqrt((want**2).mean(-1, keepdims=True) + 1e-6) * norm.weight.detach().numpy()
    assert np.abs(norm(x).detach().numpy() - want).max() < 1e-14
    assert torch.autograd.gradcheck(lambda x, _: norm(x), (x, norm.weight))


def test_shift():
    x, mix = torch.randn(2, 5, 3), torch.randn(2, 3)
    got = shifted(x, mix)
    for t in range(5):
        want = x[:, t] + sum(mix[j - 1] * x[:, t - j] for j in (1, 2) if t >= j)
        torch.testing.assert_close(got[:, t], want)


def test_tied_head_is_the_embedding_of_the_last_tokens():
    model, (tokens, features) = build("shift-input"), inputs()
    assert model.head.weight is None
    tokens = tokens % (SHAPE["vocab_size"] - 1)  # the last one is not read
    before = model(tokens, features)
    with torch.no_grad():
        model.embed.tokens[-1] *= 2  # the last outcome
    change = (model(tokens, features) - before).abs().amax((0, 1))
    assert change[-1] > 1e-6 and (change[:-1] == 0).all()


def test_a_longer_table_of_positions_reads_longer_sequences():
    model, (tokens, features) = build("transformer"), inputs()
    longer = perturbed(models.build("transformer", **SHAPE, width=16, position_table=14))
    assert longer.num_parameters == model.num_parameters + 7 * 16
    shorter = models.build("transformer", **SHAPE, width=16, position_table=6)
    assert shorter.num_parameters == model.num_parameters  # never less than the task has
    state = model.state_dict()
    rows = longer.embed.positions.detach().clone()
    rows[:7] = state["embed.positions"]
    longer.load_state_dict({**state, "embed.positions": rows})
    assert torch.equal(longer(tokens, features), model(tokens, features))
    twice = torch.cat([tokens, tokens], 1)
    assert longer(twice, features).shape == (3, 16, 4)
    with pytest.raises(ValueError, match="has learned 14 token positions and cannot read 21"):
        longer(torch.cat([twice, tokens], 1), features)


@pytest.mark.parametrize("mlp,blocks", [("none", []), ("last", [2]), ("frozen", [0, 1, 2])])
def test_blocks_without_an_mlp_are_those_whose_mlp_adds_nothing(mlp, blocks):
    sizes = dict(layers=3, width=16)
    full = perturbed(models.build("transformer", **SHAPE, **sizes))
    some = models.build("transformer", **SHAPE, **sizes, mlp=mlp).double()
    own = [i for i, block in enumerate(some.blocks) if block.mlp is not None]
    assert own == blocks
    names = set(some.state_dict())
    some.load_state_dict({name: p for name, p in full.state_dict().items() if name in names})
    with torch.no_grad():
        for i in set(range(3)) - set(blocks):
            full.blocks[i].mlp.down.weight.zero_(), full.blocks[i].mlp.down.bias.zero_()
    tokens, features = inputs()
    assert torch.equal(some(tokens, features), full(tokens, features))
    one = sum(p.numel() for name, p in full.blocks[0].named_parameters() if "mlp" in name)
    assert some.num_parameters == full.num_parameters - (3 - len(blocks)) * one


def test_a_gradient_passes_through_frozen_mlps():
    """It is not that of a model whose MLPs are cut off."""
    torch.manual_seed(0)
    frozen, (tokens, features) = build("mlp-frozen"), inputs()
    free = perturbed(models.build("transformer", **SHAPE, width=16))
    free.load_state_dict(frozen.state_dict())
    for model in (frozen, free):
        model(tokens, features).square().sum().backward()
    for (name, p), q in zip(frozen.named_parameters(), free.parameters(), strict=True):
        assert p.grad is None if "mlp" in name else torch.equal(p.grad, q.grad), name


def test_attention_alone_is_matched_by_its_width():
    task = tasks.get("bijection", num_symbols=8)
    found = models.match_parameters("transformer", task, 100_000, heads=1, mlp="none")
    count = models.build_for(task, "transformer", **found).num_parameters
    assert abs(count - 100_000) <= 1000 and "hidden" not in found
    with pytest.raises(ValueError, match="parameters at best, wanted 100,000 within 1%"):
        models.match_parameters("transformer", task, 100_000, heads=64, mlp="none")


def test_the_papers_size():
    """2,677,440 with the authors' table of 38 positions; this task has 37."""
    sizes = dict(layers=6, heads=6, width=192, tied=True)
    model = models.build("transformer", vocab_size=40, num_outcomes=20, seq_len=38, **sizes)
    assert model.num_parameters == 2_677_440


@pytest.mark.parametrize("target", [20_000, 57_216, 1_000_000])
@pytest.mark.parametrize(
    "name,options",
    [
        ("transformer", dict(heads=4)),
        ("transformer", dict(keys="orthogonal")),
        ("transformer", dict(mlp="last")),
        ("mamba", {}),
        ("lstm", dict(layers=2)),
        ("mlp", {}),
        ("mlp", dict(context="position", layers=3)),
    ],
)
def test_match_parameters(name, options, target):
    task = tasks.get("bijection", num_symbols=8)
    found = models.match_parameters(name, task, target, **options)
    count = models.build_for(task, name, **found).num_parameters
    assert abs(count - target) <= 0.01 * target
    assert options.items() <= found.items()


@pytest.mark.parametrize(
    "name,options,complaint",
    [
        ("gru", {}, "no model 'gru'; choose one of transformer"),
        ("transformer", dict(depth=3), "model transformer: no option 'depth'"),
        ("transformer", dict(width=10, heads=4), "width 10 is not a multiple of heads 4"),
        ("transformer", dict(keys="none"), "keys must be one of learned, collapsed, orthogonal"),
        ("transformer", dict(norm="batch"), "norm must be one of rms, layer"),
        ("transformer", dict(positions="rotary", width=6, heads=2), "even width"),
        ("transformer", dict(layers=-1), "layers must be at least 1, got -1"),
        ("transformer", dict(layers=0), "must be at least 1"),
        ("transformer", dict(tied=True), "a tied head needs a token per outcome"),
        ("mamba", dict(state=0), "state must be at least 1, got 0"),
        ("lstm", dict(layers=0), "layers must be at least 1, got 0"),
        ("mlp", dict(context="all"), "context must be one of"),
    ],
)
def test_bad_options(name, options, complaint):
    shape = {**SHAPE, "vocab_size": 3} if options.get("tied") else SHAPE
    with pytest.raises(ValueError, match=complaint):
        models.build(name, **shape, **options)


def test_inputs_that_do_not_fit():
    tokens, features = inputs()
    longer = torch.cat([tokens, tokens], 1)
    with pytest.raises(ValueError, match="has learned 7 token positions and cannot read 14"):
        build("transformer")(longer, features)
    with pytest.raises(ValueError, match="train a transformer with a longer position_table"):
        build("transformer")(longer, features)
    with pytest.raises(ValueError, match="weights for 9 positions"):
        build("prefix").prefix(torch.zeros(1, 10, 16, dtype=torch.float64))
    with pytest.raises(ValueError, match="takes 2 features, got no features"):
        build("transformer")(tokens)
    assert build("rotary")(longer, features).shape == (3, 16, 4)


def test_too_small_to_match():
    with pytest.raises(ValueError, match="cannot be as small as 10 parameters"):
        models.match_parameters("mlp", tasks.get("bijection"), 10)
