"""The page as a story: its chapters, what they find, and what they are held against."""

import json
import re
from dataclasses import replace

import pytest

from bwt.cli import main
from bwt.report import charts, overview, page, reading, story
from bwt.report.cards import table
from bwt.report.compare import overlays


@pytest.mark.parametrize("name", ["pairs", "hmm"])
def test_chapters_come_in_the_order_of_the_paper_each_with_its_control(examined, name):
    run = reading.read(examined / name)
    parts = story.chapters(run)
    assert [part.name for part in parts] == list(story.CHAPTERS)
    for part in parts:
        assert part.finding.endswith(".") and part.control.endswith(".")
        assert "nan" not in (part.finding + part.control).split()
    assert parts[0].cards[0].name == "examples"  # the best picture comes first


def test_without_geometry_there_is_belief_and_training(examined):
    run = replace(reading.read(examined / "hmm"), geometry=None)
    assert [part.name for part in story.chapters(run)] == ["belief", "training"]


def test_what_does_not_beat_its_floor_is_not_praised(examined):
    run = reading.read(examined / "hmm")
    assert not run.evaluation.beats_floor()
    assert "does not get below the floor" in overview.training_finding(run)


def test_every_place_of_the_contents_is_there(examined, tmp_path):
    out = tmp_path / "page.html"
    paths = [str(examined / name) for name in ("pairs", "hmm", "pairs", "hmm")]
    assert main(["report", *paths, "--out", str(out)]) == 0
    text = out.read_text()
    links = re.findall(r'href="#([^"]+)"', text)
    places = re.findall(r'\bid=["\']([^"\']+)', text)
    assert len(links) > 4 * len(story.CHAPTERS) and set(links) <= set(places)
    assert len(places) == len(set(places))
    # Of many runs only the first is unfolded.
    assert re.findall(r'<details class="run" id="run(\d)" open>', text) == ["0"]


def test_training_is_said_to_have_had_the_threads_it_had(examined):
    path = examined / "hmm" / "environment.json"
    machine = json.loads(path.read_text())["machine"]
    device = reading.read(examined / "hmm").device
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


def test_a_page_of_many_runs_fits(examined, tmp_path, monkeypatch):
    """First it loses what moves, from the last run on, then large pictures."""
    paths = [str(examined / name) for name in ("hmm", "pairs", "hmm")]
    out, sizes, moving, left_out = tmp_path / "page.html", [10**9], [], []
    while len(sizes) < 3 or sizes[-1] < sizes[-2]:
        monkeypatch.setattr(page, "MOST_BYTES", sizes[-1] - 1)
        assert main(["report", *paths, "--out", str(out)]) == 0
        text = out.read_text()
        sizes.append(len(text.encode()))
        moving.append(len(set(re.findall(r'class="view" [^>]*data-run="(\d)"', text))))
        left_out.append(text.count("Left out to keep"))
    assert moving[:4] == [3, 2, 1, 1] and moving == sorted(moving, reverse=True)
    assert left_out[:3] == [0] * 3 and left_out == sorted(left_out)
    assert moving[-1] == 0 and left_out[-1] > left_out[3] > 0


def test_several_runs_are_held_against_the_best_floor_of_each_task(examined):
    runs = [reading.read(examined / name) for name in ("pairs", "hmm", "hmm")]
    card, *_ = overlays(runs)
    named = re.findall(r"best floor of (\w+), ([\w-]+)", card.picture)
    assert set(named) == {(run.config.task, run.evaluation.best_floor()) for run in runs}
    floors = re.findall(r'class="f2" data-tip="best floor', card.picture)
    assert len(floors) == 2 and card.wide
