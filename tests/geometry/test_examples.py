"""The few sequences that a report steps through."""

import dataclasses

import pytest
import torch
from helpers.planted import transformer

from bwt import taps, tasks
from bwt.geometry.examples import examples, spread
from bwt.geometry.subject import Subject
from bwt.records.base import RecordError
from bwt.records.geometry import Examples

TASKS = {
    "bijection": tasks.get("bijection", num_symbols=4, num_pairs=6, replacement=True),
    "hmm": tasks.get("hmm", num_states=3, num_symbols=2, length=4, missing=0.3),
    "tokens": tasks.get("hmm", num_states=2, num_symbols=2, length=3, header="tokens"),
    "recall": tasks.get("recall", num_pairs=3, num_queries=2),
}


def of(name):
    task = TASKS[name]
    return Subject.draw(task, transformer(task), 16)


@pytest.mark.parametrize("name", TASKS)
def test_examples_hold_what_each_head_looks_at_in_each_sequence(name):
    subject = of(name)
    found = examples(subject)
    assert Examples.from_json(found.to_json()) == found
    for i, example in enumerate(found.sequences):
        with torch.no_grad(), taps.capture(subject.model, "blocks.*.attn.weights") as trace:
            subject.model(
                subject.batch.tokens[i : i + 1],
                None if subject.batch.features is None else subject.batch.features[i : i + 1],
            )
        assert len(example.tokens) == subject.task.seq_len
        assert example.asked == subject.task.positions.tolist()
        for layer, heads in enumerate(example.attention):
            weights = trace[f"blocks.{layer}.attn.weights"][0]
            for head, rows in enumerate(heads):
                for at, row in zip(example.asked, rows, strict=True):
                    want = weights[head, at, : at + 1]
                    assert torch.allclose(torch.tensor(row) / 1000, want, atol=6e-4)


def test_positions_are_spelled_as_they_are_read():
    bijection, hmm = (of(name) for name in ("bijection", "hmm"))
    spelled = bijection.task.spelled(bijection.batch)[0]
    assert spelled[0] == f"x{bijection.batch.tokens[0, 0]}"
    assert spelled[1] == f"y{bijection.batch.targets[0, 0]}"  # without noise the value is shown
    spelled = hmm.task.spelled(hmm.batch)
    assert spelled[0][:6] == ["T0", "T1", "T2", "E0", "E1", "π"]
    observed = hmm.task.shown(hmm.batch)
    assert (observed < 0).any() and [row[6:] for row in spelled] == [
        ["?" if x < 0 else str(x) for x in row] for row in observed.tolist()
    ]


def test_checkpoints_are_those_of_the_models_they_came_from():
    subject, other = of("hmm"), transformer(TASKS["hmm"], heads=1)
    found = examples(subject, [0, 7], {0: other, 7: subject.model}.get)
    before, last = found.checkpoints
    assert (before.step, last.step) == (0, 7)
    exact = torch.tensor([x.model for x in found.sequences])
    assert torch.allclose(torch.tensor(last.model) / 1000, exact.float(), atol=6e-4)
    assert before.model != last.model


def test_spread_keeps_the_ends():
    assert spread([0, 1, 2], 5) == [0, 1, 2]
    steps = spread(list(range(40)), 12)
    assert len(steps) == 12 and steps[0] == 0 and steps[-1] == 39 and steps == sorted(set(steps))


def test_what_does_not_fit_together_is_refused():
    found = examples(of("hmm"), [3], lambda step: of("hmm").model)
    example = found.sequences[0]
    for change in (
        dict(asked=None),
        dict(tokens=None),
        dict(asked=[99] * len(example.asked)),
        dict(attention=[]),
        dict(attention=[*example.attention[:1], example.attention[0][:1]]),
        dict(attention=[[[row[1:] for row in head] for head in x] for x in example.attention]),
    ):
        with pytest.raises(RecordError):
            dataclasses.replace(example, **change)
    with pytest.raises(RecordError, match="another shape at step 3"):
        dataclasses.replace(found, sequences=found.sequences[:2])
