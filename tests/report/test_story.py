"""The page as a story: its chapters, what they find, and what they are held against."""

import json
import re
from dataclasses import replace

import pytest

from bwt.cli import main
from bwt.report import charts, overview, reading, story
from bwt.report.cards import table

SHORT = ["--steps", "8", "--evaluations", "3", "--eval-sequences", "32", "--batch-size", "4"]
SMALL = ["--preset", "quick", "--layers", "2", "--width", "16", "--heads", "2", *SHORT, "--json"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("story")
    for name, flags in {
        "pairs": ["bijection", "--num-symbols", "4", "--num-pairs", "6", "--replacement"],
        "hmm": ["hmm", "--length", "4"],
    }.items():
        assert main(["train", *flags, "--out", str(root / name), *SMALL]) == 0
        for command in ("geometry", "ablate"):
            assert main([command, str(root / name), "--sequences", "32", "--json"]) == 0
    return root


@pytest.mark.parametrize("name", ["pairs", "hmm"])
def test_chapters_come_in_the_order_of_the_paper_each_with_its_control(runs, name):
    run = reading.read(runs / name)
    parts = story.chapters(run)
    assert [part.name for part in parts] == list(story.CHAPTERS)
    for part in parts:
        assert part.finding.endswith(".") and part.control.endswith(".")
        assert "nan" not in (part.finding + part.control).split()
    assert parts[0].cards[0].name == "examples"  # the best picture comes first


def test_without_geometry_there_is_belief_and_training(runs):
    run = replace(reading.read(runs / "hmm"), geometry=None)
    assert [part.name for part in story.chapters(run)] == ["belief", "training"]


def test_what_does_not_beat_its_floor_is_not_praised(runs):
    run = reading.read(runs / "hmm")
    assert not run.evaluation.beats_floor()
    assert "does not get below the floor" in overview.training_finding(run)


def test_every_place_of_the_contents_is_there(runs, tmp_path):
    out = tmp_path / "page.html"
    paths = [str(runs / name) for name in ("pairs", "hmm", "pairs", "hmm")]
    assert main(["report", *paths, "--out", str(out)]) == 0
    text = out.read_text()
    links = re.findall(r'href="#([^"]+)"', text)
    places = re.findall(r'\bid=["\']([^"\']+)', text)
    assert len(links) > 4 * len(story.CHAPTERS) and set(links) <= set(places)
    assert len(places) == len(set(places))
    # Of many runs only the first is unfolded.
    assert re.findall(r'<details class="run" id="run(\d)" open>', text) == ["0"]


def test_training_is_said_to_have_had_the_threads_it_had(runs):
    path = runs / "hmm" / "environment.json"
    machine = json.loads(path.read_text())["machine"]
    device = reading.read(runs / "hmm").device
    assert device.startswith(f"{machine['torch_threads']} CPU thread")


def test_a_table_that_stacks_names_its_cells():
    text = table(["a", "b<"], [["1", "2"]], stacks=True)
    assert '<td data-label="b&lt;">2</td>' in text and "<th>a</th>" in text
    assert "data-label" not in table(["a"], [["1"]])


def test_maps_have_ticks_a_boundary_and_a_bar():
    matrix = [[1.0] * 9] * 4
    text = charts.heat_maps([[("m", matrix)]], "t", "position", "step", first=(0, 1), boundary=5)
    ticks = re.findall(r'class="tick">([^<]*)<', text)
    assert ticks == ["m", "0", "4", "8", "1", "4", "0", "largest of each map"]
    (line,) = re.findall(r'd="M([\d.]+) [\d.]+v[\d.]+" class="marker"', text)
    assert float(line) == pytest.approx(46 + 120 * 5 / 9, abs=0.1)


def test_groups_have_a_legend():
    text = charts.scatter([0, 1, 2], [0, 1, 2], [0, 2, 8], "t", "x", "y", "v", groups=True)
    assert ">0</text>" in text and ">2, 8</text>" in text
