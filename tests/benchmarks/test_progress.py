"""Whoever waits for a benchmark is told what it does."""

import importlib
import io
import time

import pytest

pytestmark = pytest.mark.usefixtures("benchmark_scripts")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def module():
    return importlib.import_module("progress")


def at(module, file, times):
    clock = iter(times)
    progress = module.Progress(file=file, now=lambda: next(clock))
    progress.at("case 1 of 3, a")
    return progress


def test_a_file_gets_a_line_after_ten_seconds_of_silence(module):
    file = io.StringIO()
    progress = at(module, file, [0, 0, 1, 9.9, 10.5, 12, 21])
    for text in ("one", "two", "three", "four", "five"):
        progress.say(text)
    assert file.getvalue().splitlines() == [
        "case 1 of 3, a: three (10 s)",
        "case 1 of 3, a: five (21 s)",
    ]


def test_what_is_told_ends_the_silence(module, capsys):
    file = io.StringIO()
    progress = at(module, file, [0, 0, 9, 12, 19.5])
    progress.tell("a row")
    progress.say("timing")
    progress.say("timing")
    assert capsys.readouterr().out == "a row\n"
    assert file.getvalue().splitlines() == ["case 1 of 3, a: timing (20 s)"]


def test_a_terminal_has_one_line_that_is_removed_before_a_row(module, capsys):
    file = Terminal()
    progress = at(module, file, [0, 0, 0.1, 1, 2, 3])
    progress.say("too early")
    progress.say("timing")
    progress.tell("a row")
    assert file.getvalue() == "\r\x1b[Kcase 1 of 3, a: timing (1 s)\r\x1b[K"
    assert capsys.readouterr().out == "a row\n"


def test_a_line_fits_on_the_terminal(module, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    terminal, file = Terminal(), io.StringIO()
    for where in (terminal, file):
        at(module, where, [0, 0, 20]).say("a long story")
    assert terminal.getvalue() == "\r\x1b[K" + "case 1 of 3, a: a long story"[:19]
    assert file.getvalue() == "case 1 of 3, a: a long story (20 s)\n"


def test_quiet_tells_nothing(module, capsys):
    module.Progress(quiet=True).tell("a row")
    assert capsys.readouterr().out == ""


def test_what_takes_long_goes_on_saying_so(module, monkeypatch):
    monkeypatch.setattr(module, "REDRAWN", 0.02)
    file = Terminal()
    progress = module.Progress(file=file)
    progress.at("a")
    with progress.busy("compiling"):
        time.sleep(0.3)
    said = file.getvalue().count("a: compiling")
    assert said > 2
    time.sleep(0.1)
    assert file.getvalue().count("a: compiling") == said
