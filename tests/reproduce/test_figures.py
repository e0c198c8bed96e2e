"""Figures of a reproduction, on planted results."""

import math
from xml.etree import ElementTree

import pytest
from helpers.planted_results import cell, document

from bwt.records.results import StudyText
from bwt.reproduce import by_layer, drawing, figures, page
from bwt.reproduce.tables.variants import variants

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*cells, axis=""):
    (study,) = {x.study for x in cells}
    made = figures.build(document(*cells, studies=[StudyText(study, "T", "Q?", axis, False)]))
    return {x.name: ElementTree.fromstring(x.svg) for x in made}


def texts(svg):
    return [x.text for x in svg.iter(f"{SVG}text")]


def lines(svg):
    """Classes of the lines in the plot; the legend has one for each, too."""
    return [x.get("class") for x in svg.iter(f"{SVG}path") if "line" in x.get("class", "")]


def dots(svg):
    return [x.get("class") for x in svg.iter(f"{SVG}circle")]


def test_what_varies_is_drawn_along_the_axis():
    cells = [
        cell(setting, f"{n} pairs", study="recall", task="recall", x=n, seed=seed)
        for setting in ("transformer", "lstm")
        for n in (4, 8, 64)
        for seed in (0, 1)
    ]
    svg = drawn(*cells, axis="stored pairs")["recall-axis"]
    assert {"transformer", "lstm", "stored pairs", "accuracy"} <= set(texts(svg))
    assert lines(svg) == ["line c0", "line c1"] * 2
    assert dots(svg) == ["f0"] * 6 + ["f1"] * 6  # each seed by itself


def test_two_variants_at_one_place_are_two_lines():
    cells = [
        cell("bijection", f"{part} frozen at {n}", study="freezing", x=n)
        for part in ("routing", "content")
        for n in (300, 1000)
    ]
    whole = cell("bijection", "nothing frozen", study="freezing")
    made = drawn(whole, *cells, axis="step")
    svg = made["freezing-axis"]
    assert {"routing frozen", "content frozen", "nothing frozen", "KL (bits)"} <= set(texts(svg))
    assert lines(svg).count(f"line c{drawing.GREY} dash") == 2
    assert set(made) == {"freezing-axis", "freezing-curves-bijection"}


@pytest.mark.parametrize("count,kind", [(figures.READABLE, "curves"), (9, "kl")])
def test_learning_curves_are_drawn_where_they_can_be_read(count, kind):
    cells = [cell("hmm", f"variant {i}", study="s") for i in range(count)]
    made = drawn(*cells, cell("recall", "other", study="s"))
    assert set(made) == {f"s-{kind}-hmm", "s-curves-recall"}
    names = texts(made[f"s-{kind}-hmm"])
    assert {*(f"variant {i}" for i in range(count)), "floor: constant"} <= set(names)
    looks = set(lines(made[f"s-{kind}-hmm"]))
    assert kind == "kl" or len(looks) == count + 1  # no two alike


def test_a_curve_is_of_the_seed_in_the_middle():
    kl = (0.5, 0.1, math.nan, 0.2)
    cells = [cell(seed=i, numbers={"kl": value}) for i, value in enumerate(kl)]
    assert figures._middle(cells, "kl").seed == 3
    assert figures._middle(cells[:1], "kl").seed == 0


def test_other_seeds_are_drawn_thinly():
    cells = [cell(seed=i, study="s", numbers={"kl": kl}) for i, kl in enumerate((0.1, 0.2, 0.3))]
    looks = lines(drawn(*cells)["s-curves-hmm"])
    assert looks.count("line c0 thin") == 2
    assert looks.count("line c0") == 2  # that of the median, and the legend's


LAYERS = {"lens_kl": [0.3, 0.2, 0.1], "attention_entropy": [1.0, 2.0, 3.0]}
FILTERS = {"uniform": 2.0, "constant": 1.5, "memory-1": 0.25, "memory-2": 0.15, "memory-5": 1e-3}


def test_what_is_inside_is_drawn_by_layer():
    layered = cell("hmm", study="s", floors=FILTERS, layers=LAYERS)
    second = {"lens_kl": [0.5, 0.4, 0.3]}
    both = layered, cell("hmm", study="s", seed=1, floors=FILTERS, layers=second)
    made = drawn(*both)
    assert set(made) == {"s-curves-hmm", "s-lens-kl-hmm", "s-attention-entropy"}
    svg = made["s-lens-kl-hmm"]
    assert {"transformer", "memory-1", "memory-2", "0", "1", "2", "layer"} <= set(texts(svg))
    assert "memory-5" not in texts(svg)  # far below
    assert len(dots(svg)) == 3 and sum("dash" in look for look in lines(svg)) == 4
    (found,) = variants(document(*both), "s")
    assert by_layer._curve(found, by_layer.LENS) == pytest.approx([0.4, 0.3, 0.2])
    assert "hmm: transformer" in texts(made["s-attention-entropy"])


@pytest.mark.parametrize(
    "told",
    [
        dict(layers={"lens_kl": [0.3, 0.2]}),  # a table tells as much
        dict(layers=LAYERS, numbers={"kl": 1.49}),  # not trained
        dict(layers={}),
    ],
)
def test_there_is_nothing_to_draw_by_layer(told):
    assert set(drawn(cell("hmm", study="s", **told))) == {"s-curves-hmm"}


def test_a_study_that_was_not_run_has_none():
    text = StudyText("s", "T", "Q?", "steps", False)
    assert figures.build(document(studies=[text])) == []


def test_figures_are_on_the_pages_and_beside_them(tmp_path):
    results = document(cell(study="s"), cell("recall", study="t"))
    page.write(tmp_path, document(cell(study="s"), cell("bijection", study="former")))
    page.write(tmp_path, results)
    names = {x.name for x in figures.build(results)}
    assert {x.stem for x in (tmp_path / "figures").iterdir()} == names
    markdown, html = ((tmp_path / x).read_text() for x in ("README.md", "index.html"))
    for name in names:
        assert f"(figures/{name}.svg)" in markdown
        alone = ElementTree.parse(tmp_path / f"figures/{name}.svg").getroot()
        assert "prefers-color-scheme:dark" in alone.find(f"{SVG}style").text
    assert html.count("<svg") == len(names) and "prefers-color-scheme:dark" in html
