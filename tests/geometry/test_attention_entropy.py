"""The fall of attention's entropy from the first layer to the last."""

import dataclasses

import pytest
import torch
from helpers.planted import transformer

from bwt import tasks
from bwt.geometry.attention import attention, fall
from bwt.geometry.subject import Subject
from bwt.report.diagnostics import attention as shown

TASK = tasks.get("bijection", num_symbols=5, num_pairs=7, replacement=True)


def draw(*sharpness):
    """Layers whose queries are scaled: 0 looks everywhere alike."""
    torch.manual_seed(0)
    model = transformer(TASK, layers=len(sharpness))
    with torch.no_grad():
        for block, factor in zip(model.blocks, sharpness, strict=True):
            block.attn.qkv.weight[:32] *= factor
    return Subject.draw(TASK, model, 64)


def test_a_planted_fall_is_found_and_its_absence_too():
    found = attention(draw(0, 0, 300), draw(0, 0, 0))
    assert found.entropy.mean[:2] == pytest.approx([found.uniform_entropy] * 2, abs=1e-4)
    assert found.fall.mean > 0.9 and 0 < found.fall.se < 0.05
    assert found.untrained_fall.mean == pytest.approx(0, abs=1e-5)
    text = shown.entropy_in_words(found)
    assert "it falls by 9" in text and "of layer 2, has" in text
    assert any(card.name == "attention-entropy" for card in shown.cards(found))
    rising = attention(draw(300, 0))
    assert rising.fall.mean < -1 and "it rises by" in shown.entropy_in_words(rising)


def test_the_mean_over_heads_is_that_of_the_layers():
    found = attention(draw(1, 5))
    means = [sum(layer.entropy.mean) / 2 for layer in found.layers]
    assert found.entropy.mean == pytest.approx(means)
    assert found.fall.mean == pytest.approx(1 - means[1] / means[0])


def test_entropy_of_which_there_is_none_cannot_fall():
    assert fall(torch.zeros(8, 2)) is None


def test_a_file_of_before_has_the_change_without_an_error():
    found = attention(draw(0, 300))
    before = dataclasses.replace(found, entropy=None, fall=None)
    assert "(-9" in shown.entropy_in_words(before)
    assert not any(card.name == "attention-entropy" for card in shown.cards(before))
