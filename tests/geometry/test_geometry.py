"""Diagnostics find what is planted in a model, and do not find what is not there."""

import copy
import dataclasses
import itertools
import math
import re

import pytest
import scipy.linalg
import torch
from helpers.planted import TASK, Believing, Knowing, Planted, transformer

from bwt import models, taps, tasks
from bwt.geometry import ablation, causal, key_edits
from bwt.geometry.attention import attention
from bwt.geometry.clusters import clusters
from bwt.geometry.intervene import edited
from bwt.geometry.keys import keys
from bwt.geometry.lengths import lengths
from bwt.geometry.manifold import manifold
from bwt.geometry.probes import history, probes
from bwt.geometry.subject import Subject, stages
from bwt.records.base import RecordError
from bwt.records.estimates import Estimate
from bwt.report.diagnostics.clusters import in_words as words_of_clusters
from bwt.report.diagnostics.keys import SHOWN as KEYS
from bwt.report.diagnostics.keys import dearest
from bwt.report.diagnostics.keys import in_words as words_of_keys
from bwt.report.diagnostics.probes import in_words as words_of_probes

REPEATING = tasks.get("bijection", num_symbols=5, num_pairs=7, replacement=True)


def draw(model, task=TASK, sequences=64):
    return Subject.draw(task, model, sequences)


def leftovers(model):
    attached = {"listeners", "changes"}
    return [m for m in model.modules() if m._forward_hooks or attached & m.__dict__.keys()]


def plant_keys(model, weight):
    """Tokens become orthogonal rows of mean 0, which the norm leaves alone; keys weight @ token."""
    width = model.embed.tokens.shape[1]
    rows = torch.tensor(scipy.linalg.hadamard(width), dtype=torch.float32)[1:]
    with torch.no_grad():
        model.embed.tokens.copy_(rows[: len(model.embed.tokens)])
        model.blocks[0].attn.qkv.weight[width : 2 * width].copy_(weight)
    return model


def key_tokens(subject, untrained):
    return keys(subject, untrained).groups["key tokens"]


def test_orthogonal_keys_are_found_orthogonal_and_equal_ones_equal():
    random = draw(transformer(heads=1))
    orthogonal = draw(plant_keys(transformer(heads=1), torch.eye(32)))
    alike = torch.zeros(32, 32)
    alike[0] = torch.randn(32)  # all keys on one line
    found = key_tokens(orthogonal, random)
    assert found.trained.plain[0].mean[0] < 1e-6
    assert found.untrained.plain[0].mean[0] > 0.05
    same = key_tokens(draw(plant_keys(transformer(heads=1), alike)), random)
    assert same.trained.plain[0].mean[0] == pytest.approx(1, abs=1e-6)


def test_a_common_part_of_all_keys_does_not_count_when_centred():
    model = plant_keys(transformer(heads=1, positions="learned"), torch.eye(32))
    with torch.no_grad():
        model.embed.positions[:] = 20 * torch.tensor(scipy.linalg.hadamard(32)[-1])
    found = key_tokens(draw(model), draw(transformer(heads=1))).trained
    assert found.plain[0].mean[0] > 0.9
    # n orthogonal vectors less their mean have cosine 1 / (n - 1)
    assert found.centred[0].mean[0] == pytest.approx(1 / (TASK.num_pairs - 1), rel=1e-3)


def test_repeated_keys_are_one_address():
    found = key_tokens(
        draw(plant_keys(transformer(REPEATING, heads=1), torch.eye(32)), REPEATING),
        draw(transformer(REPEATING, heads=1), REPEATING),
    )
    assert found.trained.plain[0].mean[0] < 1e-6


def test_value_tokens_are_told_apart_by_the_keys_of_their_pairs():
    """Keys of attention that are the token before: orthogonal at value tokens of different keys,
    and equal where the key is the same, whatever the value."""
    model = plant_keys(transformer(REPEATING, heads=1, token_shift="block"), torch.eye(32))
    with torch.no_grad():
        model.embed.tokens[REPEATING.num_symbols :] = 0  # a value token is nothing by itself
        model.blocks[0].mix.fill_(1)
    found = keys(draw(model, REPEATING), draw(transformer(REPEATING, heads=1), REPEATING))
    name, group = next(iter(found.groups.items()))
    assert name == "value tokens" and group.needed and group.addresses == 6
    assert group.trained.plain[0].mean[0] < 1e-6
    subject = draw(model, REPEATING)
    k = subject.look("blocks.0.attn.k")["blocks.0.attn.k"][:, 0, 1::2]
    apart = REPEATING.different_addresses(subject.batch, REPEATING.addresses[0])
    cosine = torch.nn.functional.cosine_similarity(k[:, :, None], k[:, None], dim=-1)
    torch.testing.assert_close(cosine[~apart], torch.ones_like(cosine[~apart]))


def test_keys_that_are_all_alike_have_no_cosine_and_the_words_say_so():
    collapsed = draw(transformer(REPEATING, keys="collapsed", layers=2), REPEATING)
    found = keys(collapsed, collapsed)
    for group in found.groups.values():
        assert all(math.isnan(x) for layer in group.trained.centred for x in layer.mean)
    assert "none can be told apart" in words_of_keys(found)
    line = draw(plant_keys(transformer(heads=1), torch.zeros(32, 32)))
    assert "none can be told apart" in words_of_keys(keys(line, draw(transformer(heads=1))))


def test_words_say_whether_keys_mean_anything_and_which_layer():
    def told(task):
        return words_of_keys(
            keys(draw(transformer(task, layers=2), task), draw(models[task], task))
        )

    models = {task: transformer(task, layers=2) for task in (TASK, REPEATING)}
    assert "Keys mean nothing in this task: none appears twice" in told(TASK)
    text = told(REPEATING)
    assert text.startswith("Keys matter in this task") and "at value tokens" in text
    assert {"layer 0", "layer 1"} == set(re.findall(r"layer \d", text))


def test_a_sequence_of_one_address_is_skipped():
    task = tasks.get("bijection", num_symbols=4, num_pairs=1)
    assert "no two addresses" in keys(*[draw(transformer(task), task)] * 2).reason


ALL_TASKS = [
    TASK,
    REPEATING,
    tasks.get("hmm", num_states=3, num_symbols=4, length=5),
    tasks.get("hmm", num_states=3, num_symbols=2, length=4, header="tokens"),
    tasks.get("recall", num_pairs=4, num_keys=6, num_values=6, num_queries=2, filler=3),
]


@pytest.mark.parametrize("task", ALL_TASKS, ids=lambda t: f"{t.name}-{t.seq_len}")
def test_addresses_of_every_task(task):
    batch = draw(torch.nn.Identity(), task, 16).batch
    assert len({group.name for group in task.addresses}) == len(task.addresses)
    for group in task.addresses:
        assert group.at.min() >= 0 and group.at.max() < task.seq_len and group.why
        apart = task.different_addresses(batch, group)
        assert apart.shape == (16, len(group.at), len(group.at)) and apart.any()
        assert not apart.diagonal(dim1=1, dim2=2).any()
        # Keys that do not repeat are all different.
        distinct = apart.sum() == 16 * len(group.at) * (len(group.at) - 1)
        assert distinct == (task is not REPEATING)


def test_stored_values_are_two_behind_their_keys():
    task = ALL_TASKS[4]
    tokens = draw(torch.nn.Identity(), task, 8).batch.tokens
    values, separators, stored = task.addresses
    assert (tokens[:, values.at] >= 5 + task.num_keys).all()
    assert (tokens[:, separators.at] == 4).all()
    assert ((tokens[:, stored.at] >= 5) & (tokens[:, stored.at] < 5 + task.num_keys)).all()
    assert all(torch.equal(group.named_by, stored.at) for group in task.addresses)


@pytest.mark.parametrize("task", ALL_TASKS, ids=lambda t: f"{t.name}-{t.seq_len}")
def test_every_visible_position_has_one_role(task):
    subject = draw(torch.nn.Identity(), task, 16)
    masks = task.roles(subject.batch)
    visible = torch.arange(task.seq_len) <= subject.positions[:, None]
    assert torch.equal(sum(m.int() for m in masks.values()), visible.int().expand(16, -1, -1))
    assert set(masks) <= set(task.meanings)


def test_roles_of_a_bijection_by_the_definition():
    subject = draw(torch.nn.Identity(), REPEATING, 8)
    masks = REPEATING.roles(subject.batch)
    for b, p, t in itertools.product(range(8), range(7), range(13)):
        asked, key = subject.batch.tokens[b, 2 * p], subject.batch.tokens[b, t - t % 2]
        role = "self" if t == 2 * p else "matching" if asked == key else "irrelevant"
        role = "evidence" if role == "irrelevant" and t % 2 else role
        assert [n for n, m in masks.items() if m[b, p, t]] == ([role] if t <= 2 * p else [])


@pytest.mark.parametrize("task", ALL_TASKS[2:4], ids=["rows", "tokens"])
def test_matching_positions_of_an_hmm_show_the_emission_of_the_symbol(task):
    subject = draw(torch.nn.Identity(), task, 8)
    observed, _, _, emission = task.parameters(subject.batch)
    masks = task.roles(subject.batch)
    for b, p in itertools.product(range(8), range(task.length)):
        want = emission[b, :, observed[b, p]]
        at = masks["matching"][b, p].nonzero()[:, 0]
        if task.header == "rows":
            assert torch.equal(subject.batch.features[b, at[0]], want) and len(at) == 1
        else:
            assert torch.allclose(subject.batch.tokens[b, at] / 100, want)
        at = subject.positions[p]
        before = [at - 1] if task.header == "rows" else [at - 2, at - 1]
        previous = masks["previous"][b, p].nonzero()[:, 0].tolist()
        assert previous == ([int(t) for t in before] if p else before[1:])
        older = masks["previous"] | masks["older"] | masks["self"]
        assert older[b, p].sum() == (p + 1 if task.header == "rows" else 2 * (p + 1))


def test_matching_positions_of_recall_hold_the_pair():
    task = ALL_TASKS[4]
    subject = draw(torch.nn.Identity(), task, 8)
    masks = task.roles(subject.batch)
    for b, p in itertools.product(range(8), range(2)):
        at = masks["matching"][b, p].nonzero()[:, 0]
        value = subject.batch.tokens[b, at[3]] - 5 - task.num_keys
        assert len(at) == 4 and value == subject.batch.targets[b, p]


def test_attention_that_looks_everywhere_alike_is_the_uniform_one():
    model = transformer(REPEATING)
    with torch.no_grad():
        model.blocks[0].attn.qkv.weight[:32] = 0
    found = attention(draw(model, REPEATING))
    layer = found.layers[0]
    assert layer.entropy.mean == pytest.approx([found.uniform_entropy] * 2, abs=1e-5)
    for name, mass in layer.mass.items():
        assert mass.mean == pytest.approx([found.uniform_mass[name]] * 2, abs=1e-6)
    assert sum(found.uniform_mass.values()) == pytest.approx(1)


def test_attention_to_the_same_key_is_found():
    """Query and key are the token itself: attention goes to itself and to earlier appearances."""
    model = plant_keys(transformer(REPEATING, heads=1), 4 * torch.eye(32))
    with torch.no_grad():
        model.blocks[0].attn.qkv.weight[:32] = torch.eye(32)
    layer = attention(draw(model, REPEATING)).layers[0]
    mass = {name: m.mean[0] for name, m in layer.mass.items()}
    assert mass["self"] + mass["matching"] > 0.999 and mass["matching"] > 0.1
    assert layer.entropy.mean[0] < 1
    aligned = layer.alignment_by_step
    # The key itself has cosine 1, its value 0, other tokens 0.
    assert aligned["self"] == pytest.approx([1] * 7, abs=1e-5)
    assert aligned["matching"][1:] == pytest.approx([0.5] * 6, abs=1e-5)
    assert aligned["evidence"][1:] == pytest.approx([0] * 6, abs=1e-5)


def test_probes_read_what_is_planted_and_nothing_before_it_is_there():
    found = probes(draw(Planted(), sequences=200), draw(Planted(), sequences=200))
    assert found.stages == ["embed", "blocks.0"]
    row = found.targets["eliminated"].stages[-1]
    assert row.within.mean > 0.999 and row.accuracy.mean == 1
    # It is a sum of what was shown, and the control without a model says so.
    assert found.targets["eliminated"].history.within.mean > 0.999
    entropy = found.targets["entropy"]
    assert not entropy.varies_within and entropy.stages[0].within is None

    model = transformer()  # an embedding of tokens knows nothing about those before
    found = probes(draw(model, sequences=200), draw(transformer(), sequences=200))
    assert found.stages == ["embed", "blocks.0.mid", "blocks.0"]
    embed, mid, last = found.targets["eliminated"].stages
    assert embed.within.mean < 0.02 < 0.1 < mid.within.mean
    assert last.untrained_within != last.within
    again = probes(draw(model, sequences=200), draw(model, sequences=200))
    last = again.targets["eliminated"].stages[-1]
    assert last.untrained_within == last.within and last.untrained_r2 == last.r2


def test_what_a_count_of_the_inputs_cannot_give_is_told_from_what_it_can():
    """The value of a repeated key is in no sum of tokens; the states of a planted model have it."""
    task = tasks.get("bijection", num_symbols=6, num_pairs=9, replacement=True, noise=0.05)
    found = probes(draw(Knowing(task), task, 300), draw(Knowing(task), task, 300))
    planted = found.targets["posterior"]
    assert planted.stages[-1].within.mean > 0.99 and planted.history.within.mean < 0.3
    said = words_of_probes(found, "posterior")
    assert "off a count of what was shown" in said and "a sum of the inputs" not in said
    eliminated = probes(draw(Planted(), sequences=200), draw(Planted(), sequences=200))
    assert "a sum of the inputs is enough" in words_of_probes(eliminated, "eliminated")


def test_the_history_has_the_token_itself_those_before_it_and_the_header():
    task = tasks.get("hmm", num_states=2, num_symbols=3, length=4)
    batch = task.sample(2, generator=torch.Generator().manual_seed(0))
    shown = history(batch, task.vocab_size)
    tokens = batch.tokens[0].tolist()
    for time, token in enumerate(tokens):
        here, before, header = shown[0, time].split([3, 3, batch.features[0].numel()])
        assert here.argmax() == token and here.sum() == 1
        assert before.tolist() == [tokens[:time].count(symbol) for symbol in range(3)]
        assert torch.equal(header.float(), batch.features[0].flatten())


def test_manifold_says_when_position_and_entropy_cannot_be_told_apart():
    found = manifold(draw(Planted()), draw(Planted()))
    cloud = found.clouds["residual 0"]
    assert not found.entropy_varies_within_position
    assert cloud.first.r2.mean > 0.9 and cloud.first.r2_within is None
    assert cloud.fitted.r2_within is None
    assert len(found.points["residual 0"].x) == 64 * TASK.num_pairs


def test_manifold_within_position_where_entropy_varies():
    found = manifold(*(draw(transformer(REPEATING), REPEATING) for _ in range(2)))
    assert found.entropy_varies_within_position
    assert list(found.clouds) == ["attention 0", "residual 0"]
    assert 0 <= found.clouds["residual 0"].fitted.r2_within.mean <= 1


def test_a_head_that_is_not_used_costs_nothing():
    model = transformer()
    with torch.no_grad():
        model.blocks[0].attn.proj.weight[:, 16:] = 0  # of head 1
    rows = ablation.ablate_parts(draw(model))
    effect = {(r.part, r.head, r.mode): r.kl_added for r in rows}
    for mode in ablation.MODES:
        assert effect["head", 1, mode] == Estimate(0, 0)
        assert effect["head", 0, mode].mean != 0
        attn, head = (effect[p, h, mode].mean for p, h in (("attn", None), ("head", 0)))
        assert head == pytest.approx(attn, rel=1e-4)


def test_ablations_are_those_of_a_model_without_the_part():
    model = transformer(layers=2, positions="learned")
    subject = draw(model)
    paths = {(u.layer, u.part, u.head): u for u in ablation.units(model)}
    without = {}
    for name in ("attn.proj.weight", "mlp.down.weight", "mlp.down.bias"):
        part = copy.deepcopy(model)
        with torch.no_grad():
            part.blocks[1].get_parameter(name).zero_()
            if name.startswith("mlp"):
                part.blocks[1].mlp.down.weight.zero_(), part.blocks[1].mlp.down.bias.zero_()
        without[name.split(".")[0]] = part
    for part, other in without.items():
        unit = paths[1, part, None]
        with edited(model, unit.path, ablation.edit_for(unit, "zero")):
            torch.testing.assert_close(subject.predict(), subject.of(other).predict())
    shorter = copy.deepcopy(model)
    del shorter.blocks[0]
    unit = paths[0, "block", None]
    with edited(model, unit.path, ablation.edit_for(unit, "zero")):
        torch.testing.assert_close(subject.predict(), subject.of(shorter).predict())
    assert leftovers(model) == []


def test_the_mean_of_equal_sequences_changes_nothing():
    model = transformer()
    subject = draw(model)
    tokens = subject.batch.tokens[:1].expand(8, -1)
    same = Subject(TASK, model, subject.batch._replace(tokens=tokens), *([None] * 2))
    plain = same.predict()
    for unit in ablation.units(model):
        with edited(model, unit.path, ablation.edit_for(unit, "mean")):
            torch.testing.assert_close(same.predict(), plain, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mlp,layers", [("none", set()), ("last", {1}), ("frozen", {0, 1})])
def test_an_mlp_is_taken_out_where_there_is_one(mlp, layers):
    model = transformer(layers=2, mlp=mlp)
    assert {u.layer for u in ablation.units(model) if u.part == "mlp"} == layers
    assert {u.layer for u in ablation.units(model) if u.part == "attn"} == {0, 1}
    subject = draw(model)
    trace = subject.look("blocks.*.mid", "blocks.*")
    for i in (0, 1):
        same = torch.equal(trace[f"blocks.{i}.mid"], trace[f"blocks.{i}"])
        assert same == (i not in layers)
    rows = ablation.ablate_parts(subject)
    assert len(rows) == len(ablation.MODES) * len(list(ablation.units(model)))


def test_an_edit_of_nothing_is_refused_and_an_error_restores_the_model():
    model = transformer()
    complaint = r"no module 'blocks\.7'; there are .*blocks\.0"
    with (
        pytest.raises(ValueError, match=complaint),
        edited(model, "blocks.7", lambda module, x, y: y),
    ):
        pass
    with pytest.raises(KeyError), edited(model, "blocks.0", lambda module, x, y: y):
        raise KeyError
    assert leftovers(model) == []


def sharp(**options):
    """Attention that depends on its keys, in both layers."""
    model = transformer(REPEATING, layers=2, **options)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight[:64] *= 2
    return model


def predicted(subject, edit, layer):
    with taps.patch(subject.model, {f"blocks.{layer}.attn.k": key_edits.EDITS[edit]}):
        return subject.predict()


@pytest.mark.parametrize("edit,factor", [("halved", 0.5), ("alike", 0.0)])
def test_keys_nearer_to_their_mean_are_queries_that_ask_less(edit, factor):
    subject = draw(sharp(positions="rotary"), REPEATING)
    weaker = copy.deepcopy(subject.model)
    with torch.no_grad():
        weaker.blocks[1].attn.qkv.weight[:32] *= factor
    want = subject.of(weaker).predict()
    torch.testing.assert_close(predicted(subject, edit, 1), want, atol=1e-4, rtol=1e-4)
    assert (want - subject.predict()).abs().max() > 0.05


@pytest.mark.parametrize("positions", ["none", "rotary", "learned"])
def test_changed_keys_cost_bits_unless_softmax_is_blind_to_the_change(positions):
    subject = draw(sharp(positions=positions), REPEATING)
    # The posterior is what the intact model says, so that every change is for the worse.
    subject = dataclasses.replace(subject, exact=subject.predict().exp())
    ticks = []
    rows = key_edits.edit_keys(subject, lambda: ticks.append(1))
    found = {(row.edit, row.layer): row.kl_added.mean for row in rows}
    assert set(found) == set(itertools.product(key_edits.EDITS, (0, 1, None)))
    assert len(ticks) == len(key_edits.EDITS) * len(key_edits.places(subject))
    for (edit, _), bits in found.items():
        assert abs(bits) < 1e-6 if edit == "shifted" else bits > 1e-3
    assert found["alike", 1] > found["halved", 1]
    assert leftovers(subject.model) == []


def test_a_head_is_worth_what_depends_on_its_keys():
    """All attention but that of head 1 of layer 0 is alike already."""
    subject = draw(sharp(), REPEATING)
    with torch.no_grad():
        for layer, block in enumerate(subject.model.blocks):
            block.attn.qkv.weight[: 16 if layer == 0 else 32] = 0  # queries
    subject = dataclasses.replace(subject, exact=subject.predict().exp())
    worth = key_edits.worth_of_heads(subject)
    assert worth.shape == (2, 2) and worth[0, 1] > 1e-3
    found = keys(subject, subject, worth)
    worth[0, 1] = 0
    assert worth.max() < 1e-6
    assert dearest(found) == (0, 1)
    cosine = found.groups["value tokens"].trained.centred[0].mean[1]
    assert KEYS.numbers["lookup_head_cosine"](found) == cosine
    assert "In head 1 of layer 0, whose keys matter most" in words_of_keys(found)
    # Where no head is worth anything, none is named.
    none = dataclasses.replace(found, worth=[[0.0, 0.0], [0.0, 0.0]])
    assert dearest(none) is None and KEYS.numbers["lookup_head_cosine"](none) is None
    assert "matter most" not in words_of_keys(none)
    with pytest.raises(RecordError, match="other heads"):
        dataclasses.replace(found, worth=[[0.0, 0.0]])


def test_changed_keys_cost_nothing_where_nothing_is_asked():
    model = sharp()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight[:32] = 0
    for row in key_edits.edit_keys(draw(model, REPEATING)):
        assert abs(row.kl_added.mean) < 1e-6 and abs(row.entropy_mae_added.mean) < 1e-6


def test_permuted_keys_are_the_same_keys_in_another_order():
    k = torch.randn(3, 2, 7, 4)
    found = key_edits.permuted(k)
    for b in range(3):
        orders = [(found[b, h, :, None] == k[b, h]).all(-1).nonzero()[:, 1] for h in range(2)]
        assert torch.equal(*orders) and sorted(orders[0].tolist()) == list(range(7))
    assert not torch.equal(found, k)


def test_a_model_without_attention_has_no_keys_to_change():
    assert key_edits.edit_keys(draw(Planted())) == []


def test_removal_hurts_where_the_state_is_used_and_only_there():
    used = {r.target: r for r in causal.removal(draw(Planted(), sequences=200))}
    added = used["eliminated"].kl_added
    assert added.encoded.mean > 1
    assert used["eliminated"].r2_left.encoded.mean < 1e-6
    blind = causal.removal(draw(Planted(blind=True), sequences=200))
    for row in blind:
        assert all(e == Estimate(0, 0) for e in vars(row.kl_added).values())


def test_what_is_removed_is_replaced_by_the_mean_and_the_rest_stays():
    states, y = torch.randn(2, 20, 5, 8, dtype=torch.float64)
    mean = states.mean(0)
    bases = causal._bases(states, y[..., :3], True, torch.Generator().manual_seed(0))
    for basis in itertools.chain(*bases.values()):
        assert basis.shape == (8, 3)
        torch.testing.assert_close(basis.t() @ basis, torch.eye(3, dtype=torch.float64))
        found = causal.without(states, basis, mean)
        torch.testing.assert_close(found @ basis, (mean @ basis).expand(20, -1, -1))
        rest = torch.eye(8, dtype=torch.float64) - basis @ basis.t()
        torch.testing.assert_close(found @ rest, states @ rest)


def test_interchange_moves_the_belief():
    (row,) = causal.interchange(draw(Planted()))
    assert row.other.mean < 1e-6 and row.plain.mean < 1e-6
    assert row.own.mean > 1 and row.tvd_between.mean > 0.1
    (row,) = causal.interchange(draw(Planted(blind=True)))
    assert row.own.mean == pytest.approx(row.plain.mean)


def test_clusters_of_ties_are_not_made_up():
    assert "ties" in clusters(draw(Planted()), draw(Planted())).reason


HMM = tasks.get("hmm")


@pytest.mark.parametrize("kind", ["log", "probabilities"])
def test_exact_beliefs_reach_the_ceiling_however_they_are_written(kind):
    found = clusters(*[draw(Believing(HMM, kind), HMM)] * 2)
    assert found.ceiling.rand > 0.8 and found.ceiling.clusters == HMM.num_states
    assert found.predicted.rand == pytest.approx(found.ceiling.rand, abs=0.05)
    assert found.predicted.outcomes == found.ceiling.outcomes == 5
    # Which states as they are do not say of themselves.
    assert (found.trained.rand > 0.8) == (kind == "probabilities")
    assert "100 % of what is possible" in words_of_clusters(found)
    # Agreement comes with right predictions: a filter that forgets has it, too.
    forgets = [found.limited[f"memory-{k}"].rand for k in (1, 2, 5)]
    assert 0.2 < forgets[0] < forgets[1] < forgets[2] + 0.02 and forgets[1] > 0.7
    assert "memory-0" not in found.limited and "memory-2 0." in words_of_clusters(found)


def test_random_states_do_not_agree_with_any_hypothesis():
    found = clusters(*[draw(Believing(HMM, kind), HMM) for kind in ("random", "nothing")])
    assert abs(found.predicted.rand) < 0.05 and abs(found.trained.rand) < 0.05
    assert found.ceiling.rand > 0.8
    # A head of zeros, as before training: one prediction for all.
    nothing = found.predicted_untrained
    assert (nothing.clusters, nothing.rand, nothing.silhouette) == (1, 0, 0)


@pytest.mark.parametrize("name", models.MODELS)
def test_clusters_of_every_kind_of_model(name):
    task = tasks.get("hmm", num_states=3, num_symbols=3, length=4)
    model = models.build_for(task, name, width=16)
    torch.nn.init.normal_(model.head.weight, std=0.3)
    found = clusters(draw(model, task), draw(models.build_for(task, name, width=16), task))
    assert found.predicted.outcomes == 3 and abs(found.predicted.rand) < 0.5
    assert found.predicted_untrained.clusters == 1 and found.untrained.clusters > 1
    assert len(found.predicted.plane) == found.points == len(found.entropy)


def test_longer_sequences_or_the_reason_why_not():
    task = tasks.get("hmm", num_states=2, num_symbols=2, length=4)
    found = lengths(task, transformer(task), 16, seed=0)
    assert (found.trained, found.tested) == (4, 10) and len(found.kl.mean) == 10
    learned = lengths(task, transformer(task, positions="learned"), 16, seed=0)
    assert "learned 4 token positions" in learned.reason
    assert "distinct keys" in lengths(TASK, transformer(), 16, seed=0).reason


def test_a_look_is_the_same_in_pieces(monkeypatch):
    subject = draw(transformer(), sequences=10)
    names = ("blocks.*.attn.*", *stages(subject.model))
    whole = subject.look(*names)
    monkeypatch.setattr("bwt.geometry.subject.CHUNK", 4)
    for name, value in subject.look(*names).items():
        torch.testing.assert_close(value, whole[name])
    assert whole["blocks.0.attn.k"].shape == (10, 2, TASK.seq_len, 16)
    assert whole["blocks.0.attn.weights"].shape == (10, 2, TASK.num_pairs, TASK.seq_len)
    assert whole["blocks.0"].shape == (10, TASK.num_pairs, 32)
    assert leftovers(subject.model) == []
