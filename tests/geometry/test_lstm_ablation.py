"""What is said of an LSTM whose parts are taken out, on weights that are known."""

import pytest
import torch

from bwt import models, tasks
from bwt.geometry import ablation, causal
from bwt.geometry.intervene import edited
from bwt.geometry.subject import Subject, stages

TASK = tasks.get("hmm", num_states=3, num_symbols=3, length=6)


def build(layers=2):
    torch.manual_seed(0)
    model = models.build_for(TASK, "lstm", layers=layers, width=8, embed=5).double().eval()
    torch.nn.init.normal_(model.head.weight)
    return model


def effects(model):
    rows = ablation.ablate_parts(Subject.draw(TASK, model, 32))
    return {(r.layer, r.part, r.mode): r.kl_added.mean for r in rows}


def test_every_layer_and_its_memory_is_a_part():
    found = effects(build())
    assert list(found) == [
        (i, part, mode) for i in (0, 1) for part in ("layer", "memory") for mode in ablation.MODES
    ]
    assert all(abs(x) > 1e-4 for x in found.values())
    assert stages(build()) == ["embed", "blocks.0", "blocks.1"]


class Replacing(torch.nn.Module):
    residual = False

    def __init__(self):
        super().__init__()
        self.map = torch.nn.Linear(5, 5)

    def forward(self, x):
        return self.map(x).tanh()


class Own(torch.nn.Module):
    """Of layers that take the place of their input, and are none of ours."""

    def __init__(self, task):
        super().__init__()
        self.embed = torch.nn.Embedding(task.vocab_size, 5)
        self.blocks = torch.nn.ModuleList([Replacing()])
        self.head = torch.nn.Linear(5, task.num_outcomes)

    def forward(self, tokens, features=None, positions=None):
        return self.head(self.blocks[0](self.embed(tokens)))


def test_a_layer_of_another_kind_has_no_memory_to_take_out():
    task = tasks.get("bijection", num_symbols=4)
    torch.manual_seed(0)
    rows = ablation.ablate_parts(Subject.draw(task, Own(task).eval(), 8))
    assert [(r.part, r.mode) for r in rows] == [("layer", mode) for mode in ablation.MODES]
    assert all(abs(r.kl_added.mean) > 1e-4 for r in rows)


def test_without_memory_a_layer_sees_its_own_position():
    model = build()
    subject = Subject.draw(TASK, model, 4)
    unit = next(u for u in ablation.units(model) if (u.layer, u.part) == (1, "memory"))
    with edited(model, unit.path, ablation.edit_for(unit, "zero")), torch.no_grad():
        got = model.blocks[1](x := torch.randn(3, 5, 8, dtype=torch.float64))
    alone = [model.blocks[1].forward(x[:, [t]]) for t in range(5)]
    torch.testing.assert_close(got, torch.cat(alone, 1))
    assert subject.predict().isfinite().all()


def test_a_memory_that_carries_nothing_costs_nothing():
    model = build(1)
    with torch.no_grad():
        model.lstm.weight_hh_l0.zero_()  # h is not read
        model.lstm.bias_ih_l0[8:16] = -1e4  # c is forgotten
    found = effects(model)
    assert found[0, "memory", "zero"] == found[0, "memory", "mean"] == 0
    assert abs(found[0, "layer", "zero"]) > 1e-4


def test_the_mean_state_of_equal_sequences_is_their_own():
    model = build()
    batch = Subject.draw(TASK, model, 1).batch
    same = batch._replace(
        tokens=batch.tokens.expand(4, -1), features=batch.features.expand(4, -1, -1)
    )
    subject = Subject(TASK, model, same, None, None)
    before = subject.predict()
    for unit in ablation.units(model):
        with edited(model, unit.path, ablation.edit_for(unit, "mean")):
            torch.testing.assert_close(subject.predict(), before)


def test_states_of_a_layer_can_be_removed_and_exchanged():
    subject = Subject.draw(TASK, build(), 64)
    assert {row.layer for row in causal.removal(subject)} == {0, 1}
    rows = causal.interchange(subject)
    # Behind the last layer only the head is left, which cannot know whose state it reads.
    log_q = subject.predict()[:, [s - 1 for s in rows[1].steps]].roll(1, 0)
    exact = subject.exact[:, [s - 1 for s in rows[1].steps]]
    own = (exact * (exact.log() - log_q)).sum(-1).mean() / torch.log(torch.tensor(2.0))
    assert rows[1].own.mean == pytest.approx(own.item(), rel=1e-6)
