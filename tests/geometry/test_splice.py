"""States of another sequence put in: who carries a belief follows it, who recomputes does not."""

import itertools
from dataclasses import replace

import pytest
import torch
from helpers.filters import Filter
from torch.nn import functional

from bwt import models, ops, streams, taps, tasks
from bwt.geometry.splice import Place, exchange_steps, exchanged, places, splice, spliced
from bwt.geometry.subject import Subject
from bwt.records.base import plain
from bwt.records.estimates import Estimate
from bwt.records.geometry import Skipped, Splice
from bwt.report.diagnostics import splice as shown

TASK = tasks.get("hmm", num_states=3, num_symbols=3, length=8, stickiness=0.7)
STEP = 3
MODELS = {
    "transformer": dict(layers=2, heads=2, width=16, token_shift="block"),
    "mamba": dict(layers=2, width=8, state=4),
    "lstm": dict(layers=2, width=12, embed=8),
}


def draw(model, task=TASK, sequences=64):
    return Subject.draw(task, model, sequences)


def donor_of(subject, task=TASK):
    return task.redrawn(subject.batch, generator=streams.generator("donors", 0))


def states_of(model, batch):
    names = ["embed", *(f"blocks.{i}" for i in range(len(model.blocks)))]
    with torch.no_grad(), taps.capture(model, *names) as trace:
        model(batch.tokens, batch.features)
    return dict(trace)


def build(name, task=TASK, **options):
    torch.manual_seed(1)
    model = models.build_for(task, name, **{**MODELS[name], **options}).double().eval()
    torch.nn.init.normal_(model.head.weight)
    return model


def shares(found, place):
    (row,) = [x for x in found.places if (x.kind, x.layer) == place]
    return [x and x.mean for x in row.follows]


def test_a_model_that_carries_its_belief_follows_at_all_lags():
    found = splice(draw(Filter(TASK, deep=TASK.length)))
    assert found.steps == [3, 4] and len(found.one) == 5
    assert shares(found, Place("blocks")) == pytest.approx([1] * 5, abs=1e-6)
    # One block alone is overruled by the next, which has the own belief of the step before.
    assert shares(found, Place("residual", 7)) == pytest.approx([1, 0, 0, 0, 0], abs=1e-6)
    assert found.ceiling.mean == pytest.approx([0] * 5, abs=1e-6)
    assert found.plain.mean == pytest.approx(found.apart.mean, rel=1e-4)
    assert found.apart.mean[0] > 0.1


@pytest.mark.parametrize("updates", [2, 8])
def test_a_model_that_recomputes_from_a_window_does_not_follow(updates):
    found = splice(draw(Filter(TASK, updates=updates)))
    for place in (Place("blocks"), Place("residual", 0)):
        follows = shares(found, place)
        assert follows[0] == pytest.approx(1)
        assert all(x is None or abs(x) < 1e-9 for x in follows[1:])
    if updates == 8:  # of the donor it sees the one observation, if it is put in
        one = [x.mean for x in found.one]
        assert shares(found, Place("input")) == pytest.approx(one, abs=1e-4)
        assert 0 < one[1] < 0.9


def test_the_spliced_posterior_is_the_donors_belief_continued():
    subject = draw(torch.nn.Identity(), sequences=8)
    donor = donor_of(subject)
    position = int(subject.positions[STEP])
    got = TASK.posterior(spliced(TASK, subject.batch, donor, position))
    observed, _, transition, emission = TASK.parameters(subject.batch)
    belief = TASK.posterior(donor)[:, STEP]
    moved = (belief[:, None] @ transition)[:, 0]
    rest = ops.hmm_filter(observed[:, STEP + 1 :], moved, transition, emission.contiguous())
    torch.testing.assert_close(got[:, STEP + 1 :], rest.filtered)
    torch.testing.assert_close(got[:, : STEP + 1], TASK.posterior(donor)[:, : STEP + 1])
    # And by summing over all paths through the states.
    T, E = transition[0].double(), emission[0].double()
    shown = [*donor.tokens[0, : STEP + 1].tolist(), *observed[0, STEP + 1 : STEP + 3].tolist()]
    mass = torch.zeros(3, dtype=torch.float64)
    for path in itertools.product(range(3), repeat=len(shown)):
        weight = torch.prod(torch.stack([E[z, y] for z, y in zip(path, shown, strict=True)]))
        weight = weight * torch.prod(torch.stack([T[a, b] for a, b in itertools.pairwise(path)]))
        mass[path[-1]] += weight
    assert torch.allclose(got[0, STEP + 2].double(), mass / mass.sum(), atol=1e-5)


@pytest.mark.parametrize("header", ["rows", "tokens"])
def test_a_donor_has_the_same_hmm_and_other_observations(header):
    task = tasks.get("hmm", num_states=3, num_symbols=4, length=30, header=header, floor=0.05)
    batch = task.sample(64, generator=torch.Generator().manual_seed(0))
    donor = task.redrawn(batch, generator=torch.Generator().manual_seed(1))
    own, other = task.parameters(batch), task.parameters(donor)
    for a, b in zip(own[1:], other[1:], strict=True):
        assert torch.equal(a, b)
    assert 0.1 < (own[0] != other[0]).double().mean() < 0.9
    assert donor.tokens.shape == batch.tokens.shape and donor.posterior is None
    # Drawn from these parameters: a filter that believes them is calibrated.
    exact = task.posterior(donor)
    hit = exact.gather(-1, donor.targets[..., None]).mean()
    assert hit.item() == pytest.approx(exact.square().sum(-1).mean().item(), abs=0.03)


@pytest.mark.parametrize("name", MODELS)
def test_states_of_the_same_sequence_change_nothing(name):
    subject = draw(build(name), sequences=6)
    before = subject.predict()
    states = states_of(subject.model, subject.batch)
    found = places(subject.model)
    assert len(found) == {"transformer": 6, "mamba": 9, "lstm": 6}[name]
    for place in found:
        with exchanged(subject.model, place, states, int(subject.positions[STEP])):
            torch.testing.assert_close(subject.predict(), before)
    assert not any(m._forward_hooks for m in subject.model.modules())


@pytest.mark.parametrize("name", MODELS)
def test_with_all_memories_the_model_has_read_the_donors_prefix(name):
    subject = draw(build(name), sequences=6)
    donor, position = donor_of(subject), int(subject.positions[STEP])
    states = states_of(subject.model, donor)
    joined = spliced(TASK, subject.batch, donor, position)
    want = Subject(TASK, subject.model, joined, subject.exact, subject.entropy).predict()
    with exchanged(subject.model, Place("memory"), states, position):
        got = subject.predict()
    torch.testing.assert_close(got[:, STEP + 1 :], want[:, STEP + 1 :])
    torch.testing.assert_close(got[:, : STEP + 1], subject.predict()[:, : STEP + 1])
    assert (got - subject.predict())[:, STEP + 1].abs().max() > 1e-3


def test_the_state_of_a_scan_fades_as_the_recurrence_says():
    model = build("mamba", layers=1)
    subject = draw(model, sequences=4)
    donor, position = donor_of(subject), int(subject.positions[STEP])
    mixer, states = model.blocks[0].mixer, states_of(model, donor)

    def look(batch):
        names = [f"blocks.0.mixer.{x}" for x in ("state", "delta", "C", "gate")]
        with torch.no_grad(), taps.capture(model, *names) as trace:
            out = model(batch.tokens, batch.features)
        return [trace[name] for name in names], out

    (own, delta, C, gate), _ = look(subject.batch)
    (other, *_), _ = look(donor)
    with taps.capture(model, "blocks.0") as plain, torch.no_grad():
        model(subject.batch.tokens, subject.batch.features)
    swap = exchanged(model, Place("state", 0), states, position)
    with swap, taps.capture(model, "blocks.0") as patched, torch.no_grad():
        model(subject.batch.tokens, subject.batch.features)
    difference = (other - own)[:, position]
    for s in range(position + 1, subject.task.seq_len):
        difference = difference * (delta[:, s, :, None] * -mixer.log_rate.exp()).exp()
        y = (difference @ C[:, s, :, None])[..., 0] * gate[:, s]
        got = (patched["blocks.0"] - plain["blocks.0"])[:, s]
        torch.testing.assert_close(got, functional.linear(y, mixer.down.weight))


def test_a_window_of_one_position_is_no_memory_of_mamba():
    model = build("mamba", kernel=1)
    subject = draw(model, sequences=4)
    states, position = states_of(model, donor_of(subject)), int(subject.positions[STEP])
    with exchanged(model, Place("state"), states, position):
        state = subject.predict()
    with exchanged(model, Place("memory"), states, position):
        memory = subject.predict()
    torch.testing.assert_close(state, memory)


def test_a_task_without_joined_sequences_says_so_and_a_model_that_knows_nothing_has_no_way_to_go():
    task = tasks.get("bijection", num_symbols=4)
    subject = Subject.draw(task, models.build_for(task, "lstm"), 16)
    assert isinstance(splice(subject), Skipped)
    untrained = models.build_for(TASK, "lstm")  # its head is zero
    found = splice(draw(untrained))
    assert all(x is None for place in found.places for x in place.follows)
    assert found.plain.mean == found.ceiling.mean


def test_probability_tokens_with_impossible_continuations_are_left_out():
    task = tasks.get("hmm", num_states=3, num_symbols=3, length=6, header="tokens")
    model = models.build_for(task, "transformer", heads=1, width=16)
    torch.nn.init.normal_(model.head.weight)
    found = splice(draw(model, task))
    document = plain(found)
    assert Splice.from_json(document) == found
    assert all(x > 0 for x in found.apart.mean)


def test_steps_leave_room_for_what_comes_after():
    for count in range(2, 40):
        steps, lags = exchange_steps(count)
        assert 2 <= lags <= 7 and steps[0] >= 0 and steps[-1] + lags <= count
    assert exchange_steps(20) == ([5, 9, 13], 7)


def test_chunks_are_the_whole(monkeypatch):
    subject = draw(build("lstm"), sequences=10)
    whole = splice(subject)
    monkeypatch.setattr("bwt.geometry.splice.CHUNK", 4)
    for a, b in zip(splice(subject).places, whole.places, strict=True):
        assert a.spliced.mean == pytest.approx(b.spliced.mean)


def test_the_report_tells_carrying_from_computing_again():
    deep = shown.in_words(splice(draw(Filter(TASK, deep=TASK.length))))
    flat = shown.in_words(splice(draw(Filter(TASK, updates=8))))
    assert "it is carried along" in deep and "computed again" in flat
    silent = shown.in_words(splice(draw(models.build_for(TASK, "lstm"))))
    assert "too little on the sequence" in silent
    mamba = splice(draw(build("mamba")))
    assert mamba.recurrent and len(shown.cards(mamba)) == 2


def test_the_share_of_the_past_that_is_used_is_found():
    whole = splice(draw(Filter(TASK, deep=TASK.length)))
    last = splice(draw(Filter(TASK, updates=1)))  # of the last observation alone
    assert shown.past_used(whole) == pytest.approx(1, rel=1e-3)
    assert shown.past_used(last) == pytest.approx(0, abs=1e-6)
    two = shown.past_used(splice(draw(Filter(TASK, updates=2))))
    assert 0.2 < two < 0.95
    assert "it takes 100 %" in shown.in_words(whole)


def test_nothing_is_said_of_outputs_that_nothing_reads():
    """Of the only layer of an LSTM: to exchange them changes no later step, in any model."""

    def with_shares(layers):
        found = splice(draw(build("lstm", layers=layers)))
        rows = [replace(x, follows=[Estimate(0.5, 0.1)] * len(found.one)) for x in found.places]
        return replace(found, places=rows)

    subject = draw(build("lstm", layers=1), sequences=4)
    states, position = states_of(subject.model, donor_of(subject)), int(subject.positions[STEP])
    with exchanged(subject.model, Place("blocks"), states, position):
        after = subject.predict()[:, STEP + 1 :]
    assert torch.equal(after, subject.predict()[:, STEP + 1 :])
    number = shown.SHOWN.numbers["carried_blocks"]
    one, two = with_shares(1), with_shares(2)
    assert number(one) is None and number(two) == 0.5
    assert "outputs of all blocks" not in shown.in_words(one)
    assert "outputs of all blocks" in shown.in_words(two)
