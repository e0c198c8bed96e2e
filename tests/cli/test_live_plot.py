"""The curve of `bwt train --live-plot`."""

import io
import math
import os
import re
import sys

import pytest
from helpers import ROOT, screen
from helpers.small_runs import SMALL

from bwt import curve, train
from bwt.cli import live_plot, main
from bwt.cli.live_plot import LivePlot
from bwt.records.metrics import MetricsRow

COMMAND = [sys.executable, "-P", "-m", "bwt", "train", "bijection", "--preset", "quick"]
TINY = "--num-symbols 4 --steps 60 --batch-size 4 --eval-sequences 64 --evaluations 4 --width 16"
TINY += " --layers 1 --heads 2 --threads 1"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def shown(monkeypatch):
    """A function that gives a view on a terminal of this size."""

    def make(columns=80, rows=24, total=100, **settings):
        size = os.terminal_size((columns, rows))
        monkeypatch.setattr(live_plot.shutil, "get_terminal_size", lambda: size)
        return LivePlot(total, 0, quiet=False, file=Terminal(), **settings)

    return make


def test_a_power_law_is_drawn_where_it_is():
    """Every column's dot is in the row of its value: ten rows to a decade."""
    values = [10 ** (-i / 10) for i in range(21)]
    picture = curve.draw(values, {}, None, height=21)
    assert [line.index(".", curve.LABEL + 2) - curve.LABEL - 2 for line in picture] == [*range(21)]
    assert [line[: curve.LABEL].strip() for line in picture[::10]] == ["1", "0.1", "0.01"]


@pytest.mark.parametrize("nothing", [0.0, -1.0, math.nan, math.inf, None])
def test_what_has_no_logarithm_is_left_out(nothing):
    assert curve.draw([1.0, nothing], {1: nothing}, nothing, height=3) == curve.draw(
        [1.0, None], {}, None, height=3
    )
    assert curve.draw([nothing], {}, None, height=3) == [" " * curve.LABEL + " |"] * 3


@pytest.fixture
def in_a_terminal(tmp_path):
    """A function that trains there, with these words more; gives the lines of its screen."""

    def train(*words):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
        for name in ("COLUMNS", "LINES"):
            environment.pop(name, None)
        command = [*COMMAND, "--out", "run", *TINY.split(), *words]
        code, text = screen.run(command, cwd=tmp_path, env=environment, columns=90)
        assert code == 0
        return screen.lines(text.replace("\r\n", "\n"))

    return train


def test_the_curve_of_a_training(in_a_terminal):
    """The picture is redrawn in place, beneath the lines of the evaluations; the last one stays."""
    seen = in_a_terminal("--live-plot")
    whole = "\n".join(seen)
    assert whole.count("bits from exact Bayes:  o evaluated  . training loss") == 1
    assert re.search(r"- best floor \(\w+, 0\.\d+\)$", whole, re.M)
    assert "tokens/s" not in whole  # of the moment, and gone with it
    bottom = next(i for i, line in enumerate(seen) if line.endswith("60") and " 0 " in line)
    picture = seen[bottom - 1 - live_plot.TALLEST : bottom - 1]
    assert all(line[curve.LABEL + 1] == "|" for line in picture)
    assert sum(line.count("o") for line in picture) == 4
    assert sum(line.count("-") for line in picture) > 60  # the floor
    assert sum(line.count(".", curve.LABEL + 2) for line in picture) > 20
    evaluations = [i for i, line in enumerate(seen) if re.match(r"step +\d+ .* kl ", line)]
    assert len(evaluations) == 4 and evaluations[-1] < bottom - live_plot.TALLEST


def test_no_curve_that_nobody_asked_for(in_a_terminal):
    seen = in_a_terminal()
    assert not [line for line in seen if "best floor (" in line or "tokens/s" in line]
    assert sum(bool(re.match(r"step +\d+ .* kl ", line)) for line in seen) == 4


def test_elsewhere_a_line_now_and_then(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(live_plot, "SECONDS", 0.0)
    words = [
        "train",
        "bijection",
        "--preset",
        "quick",
        "--live-plot",
        "--out",
        str(tmp_path / "run"),
    ]
    assert main([*words, *TINY.split()]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text and "\r" not in text
    assert re.search(r"^step 30 of 60  excess -?\d.\d+ bits  .* steps/s  .* left$", text, re.M)


def test_the_picture_is_taken_away_before_something_is_said(shown):
    x = shown()
    said = x.above(lambda text: x.file.write(text + "\n"))
    x.see(10, 1.0)
    x.draw(10, "a", 1)
    x.see(20, 0.1)
    x.draw(20, "b", 1)
    said("hello")
    x.draw(30, "c", 1)
    seen = screen.lines(x.file.getvalue())
    assert seen[0] == "hello" and sum("tokens/s" in line for line in seen) == 1
    assert "step 30 of 100" in seen[-1] and len(seen) == 1 + live_plot.TALLEST + 4


@pytest.mark.parametrize("columns,rows", [(30, 24), (80, 8)])
def test_a_small_terminal_has_the_last_line_only(shown, columns, rows):
    x = shown(columns, rows)
    for step in (10, 20):
        x.see(step, 1.0)
        x.draw(step, "excess", 1)
    (line,) = screen.lines(x.file.getvalue())
    assert line.startswith("step 20 of 100") and len(line) < columns
    x.end()
    assert screen.lines(x.file.getvalue()) == [""]


def test_no_line_is_wider_than_the_terminal(shown):
    x = shown(columns=60, total=10**9)
    for step in range(0, 10**9 + 1, 10**8):
        x.see(step, 1 / (1 + step))
    x.draw(10**9, "x" * 100, 10**6)
    assert max(map(len, screen.lines(x.file.getvalue()))) < 60


def test_a_run_that_goes_on_shows_where_it_was(shown):
    rows = [MetricsRow(40, excess=0.5, evaluation={"kl": 0.4}), MetricsRow(60, excess=None)]
    picture = "\n".join(shown(rows=24, total=100).picture())
    assert "o" not in picture.replace("floor", "").partition("+")[0]
    x = LivePlot(100, 60, rows, quiet=False, file=Terminal())
    assert "o" in "\n".join(x.picture()[: live_plot.TALLEST])


def test_nothing_is_drawn_by_a_process_that_does_not_speak(tmp_path, capsys):
    train.train(SMALL, tmp_path / "run", monitor=live_plot.live_plot)
    assert capsys.readouterr().out == ""


def test_what_does_not_go_with_it(capsys, tmp_path):
    assert main(["train", "bijection", "--live-plot", "--json"]) == 2
    assert "leave out one" in capsys.readouterr().err
