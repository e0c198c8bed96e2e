"""From a run directory to geometry.json and a page, as a user does it."""

import json
import math
import re
import shutil
import subprocess
import sys
import typing
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from bwt import models, paper, tasks
from bwt.cli import main
from bwt.geometry import key_edits
from bwt.geometry.diagnostics import CHANGING, LOOKING
from bwt.records import geometry as records
from bwt.records.estimates import Estimate, Estimates
from bwt.records.evaluation import METRICS, OF_MEAN, Evaluation, Score
from bwt.report import charts, overview, svg, words
from bwt.report.charts import Series
from bwt.report.diagnostics import DIAGNOSTICS, ablation, clusters, dissociation, in_order, keys

SHORT = [
    "--preset",
    "quick",
    "--steps",
    "8",
    "--evaluations",
    "3",
    "--eval-sequences",
    "32",
    "--batch-size",
    "4",
]
SMALL = ["--layers", "2", "--width", "16", "--heads", "2"]
RUNS = {
    "bijection": ["bijection", "--num-symbols", "5", *SMALL],
    "repeated": ["bijection", "--num-symbols", "4", "--num-pairs", "6", "--replacement", *SMALL],
    "hmm": ["hmm", "--length", "4", *SMALL],
    "recall": ["recall", "--num-pairs", "3", "--num-queries", "2", *SMALL],
    "single": ["bijection", "--num-symbols", "4", "--num-pairs", "1", *SMALL],  # nothing to infer
    **{
        name: ["bijection", "--num-symbols", "5", "--model", name, "--width", "12"]
        for name in models.MODELS
        if name != "transformer"
    },
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Every kind of run, examined."""
    root = tmp_path_factory.mktemp("runs")
    for name, flags in RUNS.items():
        path = str(root / name)
        assert main(["train", *flags, "--out", path, "--json", *SHORT]) == 0
        assert main(["geometry", path, "--sequences", "48", "--json"]) == 0
        assert main(["ablate", path, "--sequences", "48", "--json"]) == 0
    return root


class Page(HTMLParser):
    """Checks that tags are balanced, and collects what would be loaded from elsewhere."""

    EMPTY = ("meta", "path", "rect", "circle", "br")

    def __init__(self, text):
        super().__init__()
        self.open, self.outside, self.figures, self.words = [], [], 0, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag not in self.EMPTY:
            self.open.append(tag)
        self.figures += tag == "svg"
        for name, value in attributes:
            if name in ("src", "href") and not value.startswith("#"):
                self.outside.append(value)
        assert tag not in ("link", "iframe", "img")

    def handle_endtag(self, tag):
        if tag not in self.EMPTY:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.mark.parametrize("name", RUNS)
def test_page_of_a_run(runs, name, capsys):
    assert main(["report", str(runs / name)]) == 0
    path = runs / name / "report.html"
    assert str(path) in capsys.readouterr().out
    text = path.read_text()
    page = Page(text)
    assert page.open == [] and page.outside == [] and page.figures >= 6
    assert "@import" not in text and "url(" not in text
    assert "prefers-color-scheme:dark" in text and "@media print" in text
    assert "nan" not in re.sub(r"<[^>]*>", "", text).lower().split()
    kl = json.loads((path.parent / "evaluation.json").read_text())["model"]["overall"]["kl"]
    assert f"<b>{words.pm(Estimate(**kl))}</b>" in text
    figures = list((path.parent / "figures").glob("*.svg"))
    assert len(figures) >= 6
    for figure in figures:
        root = ElementTree.parse(figure).getroot()
        assert root.tag.endswith("svg") and "NaN" not in figure.read_text()


@pytest.mark.parametrize("name", RUNS)
def test_sections_of_geometry(runs, name):
    found = json.loads((runs / name / "geometry.json").read_text())
    want = {"examples", "manifold", "probes", "lens", "clusters", "lengths", "dissociation"}
    want |= {"keys", "attention", "formation"} if name not in models.MODELS else set()
    want |= {"ablation", "splice"}
    assert ("reason" in found["splice"]) == (name != "hmm")
    assert set(found) == want | {"schema", "step", "seed"}
    assert found["step"] == 8
    assert [row["step"] for row in found["dissociation"]["checkpoints"]][0] == 0


def test_each_command_keeps_what_the_other_found(runs, capsys):
    path = runs / "bijection" / "geometry.json"
    before = json.loads(path.read_text())
    for command in ("geometry", "ablate"):
        assert main([command, str(path.parent), "--sequences", "48"]) == 0
    assert json.loads(path.read_text()) == before
    out = capsys.readouterr().out
    assert "intact:" in out and "layer 1 head 1" in out and "keys:" in out


def test_several_runs_side_by_side(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    paths = [str(runs / name) for name in ("bijection", "mlp", "hmm")]
    assert main(["report", *paths, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["report"] == "report.html"
    page = Page((tmp_path / "report.html").read_text())
    text = " ".join(page.words)
    for name in ("bijection", "mlp", "hmm"):
        assert text.count(name) > 1
    assert text.count("Step by step: bijection") == 1 and "Step by step: hmm" not in text
    assert main(["report", paths[0], "--out", "deep/down.html"]) == 0
    assert (tmp_path / "deep/down.html").exists()


def test_what_a_pattern_catches_besides_runs_is_left_out(runs, tmp_path, capsys):
    (tmp_path / "logs").mkdir()
    several = [str(runs / "bijection"), str(runs / "mlp"), str(tmp_path / "logs")]
    assert main(["report", *several, "--out", str(tmp_path / "page.html")]) == 0
    assert f"left out, as they are no runs: {tmp_path / 'logs'}" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "logs"), str(tmp_path)]) == 2
    assert "is a run directory" in capsys.readouterr().err


def test_a_run_that_was_not_examined_says_what_to_do(runs, tmp_path):
    path = tmp_path / "<b>run"
    assert main(["train", *RUNS["bijection"], "--out", str(path), "--json", *SHORT]) == 0
    assert main(["report", str(path)]) == 0
    text = (path / "report.html").read_text()
    assert Page(text).open == [] and "&lt;b&gt;run" in text and "<b>run" not in text
    assert "bwt geometry" in text and "bwt ablate" in text


@pytest.mark.parametrize(
    "argv,complaint",
    [
        (["geometry", "nowhere"], "nowhere is not a run directory"),
        (["ablate", "nowhere"], "nowhere is not a run directory"),
        (["report", "nowhere"], "nowhere is not a run directory"),
        (["geometry", "nowhere", "--sequences", "3"], "at least 16 sequences"),
    ],
)
def test_bad_value_is_one_line_and_two(argv, complaint, capsys):
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and complaint in error


def test_faulty_files_are_one_line(runs, tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text((runs / "hmm/config.json").read_text())
    for name, text, complaint in (
        ("evaluation.json", None, "finish it with bwt train --resume"),
        ("evaluation.json", '{"lengths": {}}', "evaluate it at its own length"),
        ("evaluation.json", '{"model": {}}', "evaluation.json: lacks '"),
        ("evaluation.json", '{"schema": 9}', "has schema 9, and this bwt reads 1; run bwt eval"),
    ):
        if text is not None:
            (run / name).write_text(text)
        assert main(["report", str(run)]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and complaint in error


def evaluation(kl, floor):
    def score(mean):
        names = (*METRICS, OF_MEAN)
        return Score(
            {name: Estimate(mean, 0.01) for name in names},
            {name: Estimates([mean], [0.01]) for name in names},
        )

    floors = {"uniform": score(9.0), "constant": score(floor), "memory-5": score(0.0)}
    return Evaluation("hmm", {}, 8, 0, [3], score(0.0), score(kl), floors, 1.0, None)


def test_words_do_not_praise_what_does_not_beat_its_floor():
    good, bad = (overview.headline(evaluation(kl, 1.0)) for kl in (0.1, 0.99))
    assert "10 times as far" in good and "NOT" not in good
    assert "NOT better than the floor constant" in bad
    assert "NOT better" in overview.headline(evaluation(math.nan, 1.0))


def dissociated(ratio, low, high, *, attention=0.1, floor=0.0):
    some = Estimate(0.001, 0.0001)
    rows = [
        records.Checkpoint(
            step, Estimate(1 / step, 0.01), some, 0.1, 0.1, 0.1, attention=Estimate(attention, 0.01)
        )
        for step in (1, 2, 4, 8, 16)
    ]
    rows = [replace(rows[0], step=0), *rows[1:]]
    slopes = records.Slopes(ratio, low, high, [2, 4], attention_factor=30.0, kl_factor=20.0)
    return records.Dissociation(rows, [8, 16], 8, slopes, floor=floor)


@pytest.mark.parametrize(
    "interval,verdict",
    [
        ((2.0, 1.3, 2.9), "settles before precision, a dissociation."),
        ((1.1, 0.8, 1.4), ": no dissociation."),
        ((1.1, 1.05, 1.15), ": no dissociation."),  # sure, and too little to have a name
        ((2.0, 0.8, 5.0), "no dissociation is shown, though a ratio of 5 is not ruled out."),
        ((0.5, 0.3, 0.7), "more slowly than precision, the reverse of a dissociation."),
        ((0.9, 0.85, 0.95), ": no dissociation."),
    ],
)
def test_words_see_a_dissociation_only_where_there_is_one(interval, verdict):
    text = dissociation.in_words(dissociated(*interval))
    assert verdict in text and "by a factor of 30 and the KL by 20" in text
    assert "noise" not in text


def test_words_do_not_call_slow_what_noise_hides():
    text = dissociation.in_words(dissociated(0.5, 0.3, 0.7, attention=0.02, floor=0.015))
    assert "reverse" not in text and "lower bound" in text


def test_a_dissociation_of_before_is_left_out_with_a_reason(runs, tmp_path, capsys):
    """It set a linear scale against a logarithmic one; the rest of the file is as good as ever."""
    run = tmp_path / "run"
    shutil.copytree(runs / "bijection", run)
    found = json.loads((run / "geometry.json").read_text())
    rows = [{**row, "distance": 0.1} for row in found["dissociation"]["checkpoints"]]
    settled = dict(precision=8, distance=8, spread=8, pc1=8, attention=1)
    former = dict(checkpoints=rows, settled=settled, sequences=12, kl_factor_after=31.0)
    (run / "geometry.json").write_text(json.dumps({**found, "dissociation": former}))
    assert main(["report", str(run)]) == 0
    text = (run / "report.html").read_text()
    assert "measured in a way that is no longer used; run bwt geometry again" in text
    assert "Are the keys orthogonal?" in text and "settle before precision?" not in text
    assert main(["geometry", str(run), "--sequences", "48", "--json"]) == 0
    assert json.loads((run / "geometry.json").read_text()) == found


def test_words_of_keys_say_which_way():
    def section(trained, untrained):
        cosines = [[Estimates([x], [0.001])] for x in (trained, untrained)]
        trained, untrained = (records.KeyCosines(x, x) for x in cosines)
        groups = {"value tokens": records.KeyGroup(trained, untrained, addresses=3)}
        return records.Keys(groups, gaussian=0.1, head_size=4, sequences=8)

    assert "nearer to orthogonal than" in keys.in_words(section(0.05, 0.1))
    assert "LESS orthogonal" in keys.in_words(section(0.2, 0.1))
    assert "no different" in keys.in_words(section(0.1, 0.101))


def test_words_of_clusters_are_relative_to_the_ceiling():
    def scores(rand):
        return dict(
            clusters=5,
            silhouette=0.6,
            rand=rand,
            outcomes=5,
            rand_given_outcomes=rand,
            silhouette_of_outcomes=0.5,
        )

    def clustering(rand):
        return records.Clustering(
            **scores(rand), share=[1.0], plane=[[0, 0]], outcome=[0], cluster=[0]
        )

    def section(rand, ceiling):
        old = records.Clusters(clustering(0.1), clustering(0.0), [0.5], 1, 8)
        return old, replace(
            old,
            predicted=clustering(rand),
            predicted_untrained=records.ClusterScores(**scores(0.0)),
            ceiling=records.ClusterScores(**scores(ceiling)),
        )

    old, new = section(0.4, 0.8)
    assert "50 % of what is possible" in clusters.in_words(new) and "by 0.8" in clusters.in_words(
        new
    )
    assert "Distinct clusters" in clusters.in_words(new)
    assert "No ceiling is known" in clusters.in_words(old)
    assert "not even exact beliefs" in clusters.in_words(section(0.04, 0.05)[1])
    assert len(clusters.cards(new)) == 2 and len(clusters.cards(old)) == 1
    told = {shown: number(new) for shown, number in clusters.SHOWN.numbers.items()}
    assert told["clusters_rand_share"] == pytest.approx(0.5) and told["clusters_rand_states"] == 0.1
    assert clusters.SHOWN.numbers["clusters_rand"](old) is None
    assert records.Clusters.from_json(new.to_json()) == new
    with pytest.raises(records.RecordError, match="belong together with their ceiling"):
        replace(new, ceiling=None)


def test_words_of_changed_keys_are_of_the_layer_where_they_matter_most():
    def row(edit, layer, bits):
        return records.KeyEdit(edit, layer, Estimate(bits, 0.01), Estimate(bits, 0.01))

    costs = {"halved": 0.1, "alike": 0.5, "permuted": 2.0, "exchanged": 1.0, "shifted": 1e-9}
    assert costs.keys() == ablation.KEY_EDITS.keys() == key_edits.EDITS.keys()
    rows = [
        row(edit, i, f * x) for edit, x in costs.items() for i, f in ((0, 1), (1, 2), (None, 3))
    ]
    text = ablation.keys_in_words(rows)
    assert "keys of layer 1 alike the model loses 1 ±" in text and "all layers 1.5 ±" in text
    assert "changes 3.0e-9 bits at most" in text
    assert ablation.keys_in_words([]) == ""


def test_every_diagnostic_is_computed_shown_and_recorded_under_one_name():
    computed = {x.name: x.record for x in (*LOOKING, *CHANGING)}
    assert {x.name: x.record for x in DIAGNOSTICS} == computed
    hints = typing.get_type_hints(records.Geometry)
    sections = {name: hint for name, hint in hints.items() if type(None) in typing.get_args(hint)}
    sections = {name: set(typing.get_args(hint)) for name, hint in sections.items()}
    assert sections.pop("seed") == {int, type(None)}
    assert sections.keys() == computed.keys() == {x.name for x in in_order()}
    assert all(computed[name] in kinds for name, kinds in sections.items())
    assert {x.name for x in DIAGNOSTICS if x.command == "ablate"} == {x.name for x in CHANGING}
    assert paper.NOTES.keys() <= computed.keys()
    assert paper.GEOMETRY.keys() <= {name for x in DIAGNOSTICS for name in x.numbers}


def test_a_report_needs_no_torch(runs, tmp_path):
    shutil.copytree(runs / "hmm", tmp_path / "run")
    code = (
        "import sys; sys.modules['torch'] = None\n"  # which makes its import fail
        f"from bwt.cli import main; sys.exit(main(['report', {str(tmp_path / 'run')!r}]))"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
    text = (tmp_path / "run/report.html").read_text()
    size = json.loads((runs / "hmm/config.json").read_text())
    task = tasks.get("hmm", **size["task_options"])
    model = models.build_for(task, "transformer", **size["model_options"])
    assert f"{model.num_parameters:,} parameters" in text


def test_runs_of_the_time_before_schemas_are_read(runs, tmp_path):
    for name in ("bijection", "hmm"):
        run = shutil.copytree(runs / name, tmp_path / name)
        assert main(["report", str(run)]) == 0
        page = (run / "report.html").read_text()
        for file in ("evaluation.json", "geometry.json"):
            document = json.loads((run / file).read_text())
            del document["schema"]
            if "reason" in document.get("lengths", {}):
                document["lengths"]["trained"] = 4
            (run / file).write_text(json.dumps(document))
        lines = (run / "metrics.jsonl").read_text().replace('"schema": 1, ', "")
        assert "schema" not in lines
        (run / "metrics.jsonl").write_text(lines)
        assert main(["report", str(run)]) == 0
        assert (run / "report.html").read_text() == page


def test_what_is_not_finite_is_shown_as_nothing(runs, tmp_path):
    """As of a model that gives no mass to what happens."""
    run = shutil.copytree(runs / "hmm", tmp_path / "run")
    evaluation = json.loads((run / "evaluation.json").read_text())
    for name in ("kl", "excess"):
        evaluation["model"]["overall"][name] = {"mean": None, "se": None}
        for kind in ("mean", "se"):
            evaluation["model"]["per_position"][name][kind][1] = None
    (run / "evaluation.json").write_text(json.dumps(evaluation))
    document = json.loads((run / "geometry.json").read_text())
    document["ablation"]["parts"][0]["kl_added"] = {"mean": None, "se": None}
    document["manifold"]["points"]["residual 1"]["x"][0] = None
    (run / "geometry.json").write_text(json.dumps(document))
    assert main(["report", str(run)]) == 0
    text = re.sub(r"<[^>]*>", " ", (run / "report.html").read_text())
    assert "NOT better than the floor" in text and "– bits from the exact posterior" in text
    assert "The model is not trained: " in text and "Try more --steps" in text
    for path in (run / "figures").glob("*.svg"):
        assert "nan" not in path.read_text()


@pytest.mark.parametrize(
    "low,high,log,want",
    [
        (0, 1, False, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (1.3, 4.4, False, [2, 3, 4]),
        (0.003, 2, True, [0.01, 0.1, 1]),
        (1, 9, True, [1, 2, 5]),
    ],
)
def test_ticks(low, high, log, want):
    assert svg.Scale(low, high, 0, 1, log).ticks() == pytest.approx(want)


def test_a_scale_shows_all_values():
    scale = svg.fitted([3, None, 1], 10, 110)
    assert 10 < scale(1) < scale(3) < 110
    log = svg.fitted([0.0, 1e-3, 1.0], 0, 1, log=True)
    assert 0 < log(1e-3) < log(1.0) < 1
    svg.fitted([], 0, 1), svg.fitted([2.0, 2.0], 0, 1)(2.0)


def test_lines_leave_out_what_a_log_scale_cannot_show():
    picture = charts.lines(
        [Series("a & b", [1, 2, 3], [0.0, 1.0, 0.1], [0, 0.5, 0.2])], "<t>", "x", "y", log_y=True
    )
    root = ElementTree.fromstring(picture)
    assert "a &amp; b" in picture and "&lt;t&gt;" in picture
    (line,) = [p for p in root.iter() if p.get("class") == "line c0" and "L" in p.get("d")]
    assert line.get("d").count("L") == 1  # two points are left


def test_heat_map_draws_equal_neighbours_once():
    drawing = svg.Drawing(10, 10, "")
    svg.cells(drawing, [[1, 1, 0.0], [0, 0.25, 1]], 0, 0, 3, 2)
    picture = ElementTree.fromstring(drawing.render())
    found = {p.get("stroke-opacity"): p.get("d") for p in picture.iter() if p.get("stroke-opacity")}
    assert found == {"0.5": "M1 1h1", "1": "M0 0h2M2 1h1"}


def outside(folder):
    return {p for p in folder.rglob("*") if p.is_file() and folder / "run" not in p.parents}


def test_a_label_cannot_lead_out_of_the_run(runs, tmp_path):
    shutil.copytree(runs / "bijection", tmp_path / "run", ignore=shutil.ignore_patterns("figures"))
    path = tmp_path / "run/geometry.json"
    document = json.loads(path.read_text())
    section = document["manifold"]
    last = list(section["clouds"])[-1]
    for label in ("x/../../../stolen", "x" * 300, "/../" * 9, "..", "ü" * 99):
        for part in ("clouds", "points"):
            section[part] = {label if k == last else k: v for k, v in section[part].items()}
        last = label
        path.write_text(json.dumps(document))
        (tmp_path / "run/figures/manifold-x").mkdir(parents=True, exist_ok=True)
        assert main(["report", str(tmp_path / "run")]) == 0
        assert outside(tmp_path) == set()
        figures = [p for p in (tmp_path / "run/figures").rglob("*") if p.is_file()]
        assert figures and {p.parent.name for p in figures} == {"figures"}


def test_figures_that_are_a_link_elsewhere_are_refused(runs, tmp_path, capsys):
    shutil.copytree(runs / "bijection", tmp_path / "run", ignore=shutil.ignore_patterns("figures"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "run/figures").symlink_to(elsewhere)
    assert main(["report", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "leads out of the run" in error
    assert outside(tmp_path) == set()


def test_a_link_in_place_of_a_page_is_replaced_and_not_followed(runs, tmp_path):
    shutil.copytree(runs / "bijection", tmp_path / "run", ignore=shutil.ignore_patterns("figures"))
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    (tmp_path / "run/figures").mkdir()
    for name in ("report.html", "figures/kl.svg"):
        (tmp_path / "run" / name).unlink(missing_ok=True)
        (tmp_path / "run" / name).symlink_to(precious)
    assert main(["report", str(tmp_path / "run")]) == 0
    assert precious.read_text() == "mine" and "<html" in (tmp_path / "run/report.html").read_text()
