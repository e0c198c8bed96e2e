"""Attention before precision is found where it was planted, and nowhere else."""

import math
from dataclasses import replace

import pytest
import torch
from helpers.planted import TASK, Keyed, Maps, Planted, Staged

from bwt.geometry import stats
from bwt.geometry.dissociation import dissociation, no_worse_than
from bwt.geometry.examine import course_of_rate
from bwt.geometry.key_edits import worth_of_heads
from bwt.geometry.settling import compared
from bwt.geometry.subject import Subject
from bwt.records.base import RecordError
from bwt.records.geometry import PLATEAU, Dissociation
from bwt.report.diagnostics.dissociation import SHOWN, in_words
from bwt.runs.config import TrainConfig

STEPS = [0, *(round(10 * 400 ** (i / 11)) for i in range(12))]
LEFT = [n / TASK.num_symbols for n in range(TASK.num_symbols, 1, -1)]  # share still possible


def power(step, slope):
    return (1 + step / 20) ** -slope


def error_of(kl):
    """The share of uniform guesses with which the mean KL is such a part of theirs."""

    def bits(error):
        return -sum(math.log2(1 - error + error * left) for left in LEFT)

    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if bits(middle) > kl * bits(1) else (middle, high)
    return low


def examine(maps, kl, steps=STEPS, decay=None):
    """Of maps and KL (as a share of that before training) by step."""
    checkpoints = {step: Staged(maps(step), error=error_of(kl(step))) for step in steps}
    subject = Subject.draw(TASK, checkpoints[steps[-1]], 64)
    worth = worth_of_heads(subject)
    return dissociation(subject, steps, checkpoints.get, lambda: None, decay, worth)


def from_the_limit(maps):
    """How far maps are from where they never quite arrive, as a share of the whole way."""
    tokens = TASK.sample(64, generator=torch.Generator().manual_seed(5)).tokens
    limit, start = Maps(0.0)(tokens), Maps(1.0)(tokens)
    away = [stats.jensen_shannon(x, limit)[:, :, ::2].mean().item() for x in (maps(tokens), start)]
    return away[0] / away[1]


@pytest.mark.parametrize("slope", [1.1, 1.5, 2.5])
@pytest.mark.parametrize("noise", [0.0, 0.05, 0.2])
def test_attention_in_proportion_to_kl_is_no_dissociation(slope, noise):
    """The former measure saw a factor of 36 in this. With noise: both end at a level, as at a
    constant rate."""

    def maps(step):
        return Maps(power(step, slope / 2), noise if step else 0.0, seed=step)

    found = examine(maps, lambda step: min(1.0, from_the_limit(maps(step))))
    kl = [row.kl.mean for row in found.checkpoints]
    assert kl[0] / kl[-1] > 20
    assert found.slopes.low < 1 < found.slopes.high < 2
    assert found.slopes.ratio == pytest.approx(1, abs=0.25)
    assert "no dissociation" in in_words(found)


def test_proportion_holds_whatever_the_shape_of_the_curves():
    def maps(step):  # a plateau, a sudden fall, and a slow one
        fall = 1 / (1 + (step / 100) ** 3) if step < 250 else 0.0602 * (step / 250) ** -0.6
        return Maps(fall)

    found = examine(maps, lambda step: from_the_limit(maps(step)))
    assert found.slopes.low < 1 < found.slopes.high and "no dissociation" in in_words(found)


@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_attention_that_is_done_early_is_a_dissociation(noise):
    def maps(step):
        return Maps(1.0 if step < 20 else 0.0, noise if step else 0.0, seed=step)

    found = examine(maps, lambda step: power(step, 1.5))
    assert found.slopes.low > 1.1 and found.slopes.ratio > 1.5
    assert "settles before precision, a dissociation" in in_words(found)
    assert SHOWN.numbers["dissociation_ratio"](found) == found.slopes.ratio
    assert found.slopes.kl_factor > 50
    late = [row.attention.mean for row in found.checkpoints if row.step >= 20 and row.attention]
    # What is left is their noise, and the references say how much that is.
    assert sum(late) / len(late) == pytest.approx(found.floor, rel=0.5, abs=1e-9)


def test_attention_that_is_done_before_learning_begins_is_a_dissociation():
    def maps(step):
        return Maps(0.0 if step else 1.0, 0.03 if step else 0.0, seed=step)

    found = examine(maps, lambda step: power(max(step - 40, 0), 1.7))
    assert found.slopes.steps[0] > 40
    assert "settles before precision, a dissociation" in in_words(found)


def test_attention_twice_as_fast_or_slow_is_said_so():
    fast = examine(lambda step: Maps(power(step, 1.5)), lambda step: power(step, 1.5))
    assert fast.slopes.low > 1.4
    assert "a dissociation" in in_words(fast)
    slow = examine(lambda step: Maps(power(step, 0.3)), lambda step: power(step, 1.8))
    assert slow.slopes.high < 0.8
    assert "more slowly than precision, the reverse of a dissociation" in in_words(slow)


def test_a_head_that_nothing_depends_on_has_no_say():
    """The head that is used goes as KL does, the other stays behind: all alike, that was read as
    attention that settles more slowly."""

    def checkpoint(step, used):
        maps = (Keyed(power(step, way)) for way in (0.75, 0.05))
        return Staged(*maps, error=error_of(power(step, 1.5)), used=used)

    def found(used):
        checkpoints = {step: checkpoint(step, used) for step in STEPS}
        subject = Subject.draw(TASK, checkpoints[STEPS[-1]], 64)
        worth = worth_of_heads(subject)
        return dissociation(subject, STEPS, checkpoints.get, lambda: None, worth=worth)

    first, second, neither = found(0), found(1), found(None)
    assert torch.tensor(first.shares).sum(1).tolist() == pytest.approx([1, 0])
    assert first.slopes.ratio == pytest.approx(1, abs=0.25) and "no dissociation" in in_words(first)
    assert first.slopes_alike.high < 1 and "with all alike the ratio is" in in_words(first)
    assert second.slopes.high < 0.8 and "the reverse of a dissociation" in in_words(second)
    # Where nothing depends on any of them, all count alike.
    assert neither.shares is None and neither.slopes == neither.slopes_alike == first.slopes_alike


def test_more_checkpoints_of_one_curve_make_no_surer():
    def width(count):
        steps = [0, *sorted({round(10 * 400 ** (i / count)) for i in range(count + 1)})]

        def bumpy(step):  # KL runs ahead of attention and falls back, twice
            return power(step, 1.5) * math.exp(0.5 * math.sin(2 * math.log(1 + step)))

        found = examine(lambda step: Maps(power(step, 0.75)), bumpy, steps)
        return found.slopes.high - found.slopes.low

    assert width(44) > 0.8 * width(11)


def test_noise_that_hides_the_distance_is_no_reverse():
    """Attention falls as KL does, to where its own noise covers it; KL has none."""
    found = examine(
        lambda step: Maps(power(step, 0.8), 0.5 if step else 0.0, seed=step),
        lambda step: power(step, 1.6),
    )
    text = in_words(found)
    assert "reverse" not in text and "the ratio is a lower bound" in text


def test_what_was_not_learned_has_no_verdict():
    found = examine(lambda step: Maps(power(step, 1.5)), lambda step: 1.0)
    assert found.slopes is None and "Too little was learned" in in_words(found)
    assert [number(found) for number in SHOWN.numbers.values()] == [None] * 4
    # A fall that is too short for slopes.
    found = examine(lambda step: Maps(power(step, 1.5)), lambda step: power(step, 0.45))
    assert found.slopes is None and "too small a fall" in in_words(found)


@pytest.mark.parametrize("steps", [[0, 4000], [0, 10, 4000], [0, 10, 100, 1000, 4000]])
def test_few_checkpoints_have_no_verdict(steps):
    found = examine(lambda step: Maps(power(step, 1)), lambda step: power(step, 1.5), steps)
    assert found.slopes is None and "Too few checkpoints" in in_words(found)
    assert found.references == steps[1:][-2:]


def test_references_are_no_rows_of_their_own():
    found = examine(lambda step: Maps(power(step, 1)), lambda step: power(step, 1.5))
    assert found.references == STEPS[-2:]
    for row in found.checkpoints:
        held_out = row.step in found.references
        assert (row.attention is None) == held_out == (row.distance is None)
    assert not {*found.slopes.steps} & {0, *found.references}


def test_a_record_names_only_checkpoints_it_has():
    found = examine(lambda step: Maps(power(step, 1)), lambda step: power(step, 1.5))
    assert Dissociation.from_json(found.to_json()) == found
    with pytest.raises(RecordError, match="references that are not among its checkpoints"):
        replace(found, references=[7])
    with pytest.raises(RecordError, match="slopes of steps that are not among"):
        replace(found, slopes=replace(found.slopes, steps=[7]))


def test_a_falling_rate_is_said():
    for decay, said in (("linear", True), ("none", False), (None, False)):
        found = examine(
            lambda step: Maps(power(step, 1)), lambda step: power(step, 1.5), decay=decay
        )
        assert ("annealed (linear)" in in_words(found)) == said
    held = in_words(replace(found, decay=PLATEAU))
    assert "held until a plateau" in held and "annealed" not in held


def test_a_rate_that_is_held_until_a_plateau_is_not_called_annealed():
    def course(**fields):
        return course_of_rate(TrainConfig("bijection", **fields))

    assert course(decay="linear") == "linear" and course(decay="none") == "none"
    assert course(decay="linear", until="plateau") == PLATEAU
    assert course(decay="none", until="solved") == PLATEAU


def test_a_model_without_attention_has_no_ratio():
    subject = Subject.draw(TASK, Planted(), 32)
    found = dissociation(subject, STEPS, lambda step: Planted(blind=step < 50), lambda: None)
    assert found.slopes is None and "No attention" in in_words(found)
    assert found.checkpoints[0].distance == pytest.approx(0, abs=1e-9)


def test_checkpoints_are_chosen_by_kl_alone():
    #                 0  waits  begins            twice the references not any more
    assert compared([1.0, 0.95, 0.5, 0.92, 0.8, 0.3, 0.1, 0.05, 0.02, 0.03]) == [4, 5, 6]
    assert compared([1.0, 1.0, 1.0, 1.0, 1.0]) == []


def test_to_come_down_to_a_guess_is_not_to_learn():
    guess = torch.tensor([1.0, 3.0])
    kl = torch.tensor([[8.0, 2.0, 0.5], [16.0, 2.0, 0.7]])
    capped = no_worse_than(guess, kl)
    assert capped.mean(0).tolist() == pytest.approx([2.0, 2.0, 0.6])
    assert torch.equal(capped[:, 1:], kl[:, 1:])
