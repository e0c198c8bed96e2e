"""The logit lens sees an answer where it is made, in whatever coordinates, and nowhere before."""

import math

import pytest
import torch
from helpers.filters import Filter
from helpers.planted import transformer
from torch import nn

from bwt import models, tasks
from bwt.geometry.lens import lens, tuned
from bwt.geometry.subject import Subject
from bwt.records.base import plain
from bwt.records.geometry import Lens, Skipped
from bwt.report.diagnostics import lens as shown

TASK = tasks.get("hmm", num_states=3, num_symbols=3, length=8, stickiness=0.9)


class LogBelief(nn.Module):
    """Reads the belief that a filter's block hands on."""

    def forward(self, x, embed):
        return x[..., :3].clamp_min(1e-30).log()


class Stepwise(Filter):
    """Block i is the exact filter of the last i + 1 observations."""

    def __init__(self, deep):
        super().__init__(TASK, deep=deep)
        self.head = LogBelief()


def draw(model, task=TASK, sequences=256):
    return Subject.draw(task, model, sequences)


def test_each_update_sees_one_observation_more():
    subject = draw(Stepwise(8))
    found = lens(subject, subject)
    raw = [x.raw.mean for x in found.readings]
    for name, stage in (("memory-0", 0), ("memory-1", 1), ("memory-2", 2), ("memory-5", 5)):
        assert raw[stage] == pytest.approx(found.floors[name].mean, rel=1e-4)
    assert raw[8] == pytest.approx(0, abs=1e-6) and found.model.mean == pytest.approx(raw[8])
    # A filter of k observations does not beat memory-k, the next one does.
    firsts = [shown.first_to_beat(found, f"memory-{k}", "raw") for k in (1, 2)]
    assert firsts == [2, 3]
    assert "first to beat memory-1" in shown.in_words(found)


def test_a_basis_that_the_head_does_not_know_is_found_by_the_tuned_lens():
    generator = torch.Generator().manual_seed(0)
    p = torch.randn(200, 6, 4, dtype=torch.float64, generator=generator).log_softmax(-1)
    turn = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64, generator=generator)).Q
    got = tuned(5 + 0.01 * p @ turn, p)
    assert (got - p[100:]).abs().max() < 0.05
    # Of states that have nothing to do with it, only the mean is left, up to overfitting.
    noise = torch.randn(200, 6, 4, generator=generator)
    mean = p[:100].exp().mean((0, 1))
    assert (tuned(noise, p).exp() - mean).abs().mean() < 0.03
    assert (p[100:].exp() - mean).abs().mean() > 0.1


def test_a_model_that_answers_nothing_beats_nothing():
    model = models.build_for(TASK, "transformer", heads=1, width=16)  # a head of zeros
    found = lens(draw(model, sequences=64), draw(model, sequences=64))
    for x in found.readings:
        assert x.raw == found.floors["uniform"]
        assert x.tuned.mean == pytest.approx(x.raw.mean, abs=1e-6)
    assert all(shown.first_to_beat(found, name) is None for name in found.floors)
    assert "No stage beats memory-1" in shown.in_words(found)


def test_the_head_is_applied_as_in_the_model():
    model = transformer(TASK, layers=2, logit_scale=0.5, norm="rms")
    found = lens(draw(model), draw(transformer(TASK, layers=2)))
    assert found.stages[-1] == "blocks.1"
    assert found.readings[-1].raw.mean == pytest.approx(found.model.mean, rel=1e-5)
    # The norm in front of the head is in front of the fitted map, too.
    assert found.readings[-1].tuned.mean == pytest.approx(found.model.mean, rel=0.02)
    assert found.readings[0].raw.mean != pytest.approx(found.model.mean, rel=1e-2)
    assert Lens.from_json(plain(found)) == found


@pytest.mark.parametrize("options", [dict(layers=2, width=12, embed=5), dict(layers=1)])
def test_an_lstm_is_read_where_its_head_fits(options):
    model = models.build_for(TASK, "lstm", **options)
    nn.init.normal_(model.head.weight)
    found = lens(draw(model, sequences=64), draw(model, sequences=64))
    assert (found.readings[0].raw is None) == ("embed" in options)
    assert found.readings[-1].raw.mean == pytest.approx(found.model.mean, rel=1e-5)
    assert len(shown.cards(found)) == 1 and not math.isnan(found.readings[0].tuned.mean)


def test_a_model_without_a_head_is_skipped():
    assert isinstance(lens(draw(Filter(TASK)), draw(Filter(TASK))), Skipped)
