"""Slopes of learning curves."""

import math

import pytest

from bwt.records.curves import in_words, per_doubling, slope


def test_the_exponent_of_a_power_law_is_found():
    steps = [10 * 2**k for k in range(8)]
    found = slope(steps, [3 * s**-0.7 for s in steps])
    assert found.mean == pytest.approx(-0.7) and found.se == pytest.approx(0, abs=1e-9)
    assert per_doubling(-1) == 0.5 and per_doubling(0) == 0


def test_only_the_end_counts():
    steps = [10 * 2**k for k in range(9)]
    curve = [max(3 / s, 3 / 320) for s in steps]  # level from step 320 on
    assert slope(steps, curve).mean == pytest.approx(0, abs=1e-12)
    assert "falls by 0%" in in_words(slope(steps, curve))


def test_noise_has_an_error_that_covers_it():
    steps = [1000, 1400, 2000, 2800, 4000]
    noise = [1.05, 0.95, 1.06, 0.94, 1.02]
    found = slope(steps, [e * s**-0.5 for s, e in zip(steps, noise, strict=True)])
    assert 0 < abs(found.mean + 0.5) < 3 * found.se


def test_where_there_is_no_slope():
    assert slope([], []) is None and slope([5], [1.0]) is None
    assert slope([5, 10], [1.0, 0.0]) is None and slope([5, 10], [1.0, math.nan]) is None
    assert slope([5, 10], [1.0, 0.5]).se is None and in_words(None) == ""
    assert "rises by 100%" in in_words(slope([5, 10], [1.0, 2.0]))
