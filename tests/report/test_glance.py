"""The picture of one sequence: exact, model, and where the best head looks."""

import math
import re
import shutil
from dataclasses import replace

import pytest
from helpers import ROOT

from bwt.records.geometry import Skipped
from bwt.report import glance, reading, report
from bwt.report.diagnostics.attention import best_head


@pytest.fixture
def pairs(examined):
    return reading.read(examined / "pairs").geometry


def test_rings_are_where_the_question_was_answered():
    labels, asked = ["7", "3", "7", "5", "7"], [0, 2, 4, 6, 8]
    assert glance.answered_before(labels, asked) == {2: [1], 4: [1, 5]}
    assert glance.answered_before(["1", "2"], [0, 2]) == {}


def test_the_picture_has_three_panels_of_one_sequence(pairs):
    [card] = glance.cards(pairs)
    example = pairs.examples.sequences[0]
    shown = re.findall(r'data-name="([^"]+)"', card.picture)
    assert shown == ["Exact posterior", "What the model says", "Where it looks"]
    _, _, layer, head = best_head(pairs.attention)
    assert f">head {head} of layer {layer}<" in card.picture
    repeats = len(example.labels) - len(set(example.labels))
    earlier = [example.labels[:step].count(name) for step, name in enumerate(example.labels)]
    assert card.picture.count("<circle") == sum(earlier) > 0 and "ring" in card.reading
    assert card.picture.count('class="small again"') == 3 * repeats


def test_the_bits_are_those_of_the_sequence(pairs):
    [card] = glance.cards(pairs)
    example = pairs.examples.sequences[0]
    bits = [
        sum(p * math.log2(p / q) for p, q in zip(exact, model, strict=True) if p > 0)
        for exact, model in zip(example.exact, example.model, strict=True)
    ]
    [said] = re.findall(r">(\S+) bits away<", card.picture)
    assert float(said) == pytest.approx(sum(bits) / len(bits), rel=0.01)


def test_in_an_hmm_what_was_seen_before_is_no_answer(examined):
    [card] = glance.cards(reading.read(examined / "hmm").geometry)
    assert "<circle" not in card.picture and "ring" not in card.reading


def test_what_was_not_recorded_is_not_drawn(pairs):
    old = replace(pairs.examples.sequences[0], tokens=None, asked=None, attention=None)
    assert glance.cards(None) == []
    for changed in (
        replace(pairs, examples=None),
        replace(pairs, examples=replace(pairs.examples, sequences=[old], checkpoints=None)),
        replace(pairs, attention=Skipped("it has none")),
    ):
        assert glance.cards(changed) == []


def test_the_picture_of_the_front_page_is_what_its_run_shows(tmp_path):
    """Of a run without its weights: make demo gives them again."""
    run = tmp_path / "demo"
    shutil.copytree(ROOT / "results/demo", run, ignore=shutil.ignore_patterns("figures"))
    report([run])
    name = "figures/glance.svg"
    assert (run / name).read_text() == (ROOT / "results/demo" / name).read_text()
    assert "parameters (" not in (run / "report.html").read_text()
