"""`bwt reproduce`: all of it at a scale where nothing is learned. Its tables: test_tables."""

import copy
import dataclasses
import json
import math
import os
import shutil
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from helpers import ROOT
from helpers.inline import Inline
from helpers.planted_results import cell as planted_cell
from helpers.tiny_scale import AMONG, ARCHITECTURE, SHAPE, TASKS, TINY

from bwt import models, tasks, train
from bwt.cli import main
from bwt.records.base import RecordError
from bwt.records.estimates import Estimate, Estimates
from bwt.records.geometry import AblatedPart, Ablation, Geometry, Interchange, Skipped
from bwt.records.results import METRICS, Results
from bwt.report import diagnostics
from bwt.report.words import num
from bwt.reproduce import (
    SCALES,
    Reproduction,
    cost,
    figures,
    page,
    plan,
    quotes,
    results,
    tables,
)
from bwt.reproduce.studies import Study, Variant
from bwt.reproduce.tables.variants import find
from bwt.runs.config import TrainConfig
from bwt.runs.files import read_json, read_object, read_record

FAILS = "architecture-recall-lstm-rate=3-trial-seed=0"


@pytest.fixture
def tiny_scale(monkeypatch):
    """As the command knows it."""
    monkeypatch.setitem(SCALES, TINY.name, TINY)


@pytest.fixture(scope="module", autouse=True)
def no_extensions():
    """Of the range of rates: they have a test of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "EXTENSIONS", 0)
        yield


def reproduction(folder, workers, scale=TINY, out="results/tiny", **options):
    return Reproduction(scale, folder / "runs", folder / out, workers, "bwt reproduce", **options)


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    """(folder, document) of the whole tiny scale, one cell of which fails."""
    folder = tmp_path_factory.mktemp("reproduce")
    return folder, reproduction(folder, Inline(dies=[FAILS])).run()


def test_every_cell_is_there_with_its_circumstances(reproduced):
    _, document = reproduced
    done = {(x.study, x.setting, x.row, x.seed) for x in document.cells if x.chosen}
    assert done == {
        *(("architecture", t, row, seed) for t in TASKS for row in AMONG[t] for seed in (0, 1)),
        *(("shape", "hmm", row, 0) for row in ("1 heads", "2 heads")),
    }
    for cell in (x for x in document.cells if x.chosen):
        assert cell.environment["versions"]["torch"] == torch.__version__
        assert cell.command.startswith(f"bwt train {cell.task} ")
        assert f"--seed {cell.seed}" in cell.command
        assert set(cell.metrics) == set(METRICS)
        assert cell.steps == 4 and cell.config["steps"] == 4


def test_models_are_matched_and_see_the_same_data(reproduced):
    _, document = reproduced
    for task in TASKS:
        cells = [x for x in document.cells if x.setting == task and x.chosen]
        sizes = [x.parameters for x in cells]
        assert max(sizes) <= 1.02 * min(sizes)
        assert len({(x.config["steps"], x.config["batch_size"]) for x in cells}) == 1


def test_the_rate_is_that_whose_worst_trial_is_best(reproduced):
    _, document = reproduced
    for task in TASKS:
        for row in AMONG[task]:
            cells = [x for x in document.cells if (x.setting, x.row) == (task, row) and not x.x]
            trials = [x for x in cells if x.trial and x.finished]
            worst = {}
            for x in trials:
                kl = math.inf if x.at_floor() else x.metrics["kl"].mean
                worst[x.rate] = max(worst.get(x.rate, 0), kl)
            if (task, row) == ("recall", "lstm"):
                worst.pop(3.0, None)  # a trial of it failed
            best = min(worst, key=lambda rate: (worst[rate], rate != 1.0))
            assert {x.rate for x in cells if x.chosen} == {best}


def test_trials_are_short_and_do_not_count(reproduced):
    _, document = reproduced
    trials = [x for x in document.cells if x.trial]
    assert {x.study for x in trials} == {"architecture"}
    assert {x.config["steps"] for x in trials} == {2}
    assert not any(x.chosen for x in trials)
    assert {x.seed for x in trials} <= set(range(plan.TRIED))


def test_a_failed_cell_is_named(reproduced):
    _, document = reproduced
    assert list(document.faults) == [FAILS]
    (table,) = (x for x in tables.build(document) if x.name == "unfinished")
    assert [row[0] for row in table.rows] == [FAILS]


def test_lengths_beyond_training_are_evaluated(reproduced):
    _, document = reproduced
    for cell in document.cells:
        longer = cell.study == "architecture" and cell.task == "hmm" and cell.chosen
        longer = longer and cell.row in plan.READ_LONGER
        assert set(cell.lengths) == ({"6", "10"} if longer else set())
    (table,) = (x for x in tables.build(document) if x.name == "lengths")
    assert table.header[-3:] == ["length 4", "length 6", "length 10"]


def test_models_are_opened_with_all_their_seeds(reproduced):
    folder, document = reproduced
    opened = [x for x in document.cells if x.geometry]
    assert {(x.setting, x.row, x.seed) for x in opened} == {
        (*place, seed) for place in ARCHITECTURE.opened for seed in (0, 1)
    }
    assert all({"pc1", "layer_least"} <= set(x.geometry) for x in opened)
    for x in opened:
        kept = read_object(folder / f"results/tiny/geometry/{x.name}.json")
        whole = read_object(folder / f"runs/{x.name}/geometry.json")
        assert set(whole) - set(kept) <= results.BULK
        assert kept["ablation"] == results.without_bulk(whole["ablation"])
        assert not results.BULK & _names(kept) and results.BULK & _names(whole)


def test_long_rows_of_numbers_are_bulk_whatever_their_name():
    parts = [{"part": f"head {i}", "kl_added": 0.1} for i in range(300)]  # of which each counts
    kept = {"clusters": {"rand": 0.9}, "entropy": [1.0, 2.0], "ablation": {"parts": parts}}
    whole = {**kept, "clusters": {"entropy": [0.5] * 1200, "rand": 0.9}}
    assert results.without_bulk(whole) == kept


def _names(value):
    if isinstance(value, dict):
        return set(value).union(*map(_names, value.values()))
    return set().union(*map(_names, value)) if isinstance(value, list) else set()


def test_the_same_again_redoes_only_what_failed(reproduced):
    folder, before = reproduced
    workers = Inline()
    after = reproduction(folder, workers, out="again").run()
    assert workers.started[0] == FAILS and not after.faults
    # The other rate may turn out to be the better one; nothing else is run.
    assert all(x.startswith("architecture-recall-lstm-") for x in workers.started)
    kept = {x.name: x.metrics for x in before.cells if x.metrics}
    assert kept.items() <= {x.name: x.metrics for x in after.cells}.items()


@pytest.fixture
def elsewhere(reproduced, tmp_path):
    """Results without their runs, as a clone of the repository has them."""
    shutil.copytree(reproduced[0] / "results", tmp_path / "results")
    return tmp_path


def test_what_is_known_is_not_run_again(reproduced, elsewhere):
    workers = Inline()
    after = reproduction(elsewhere, workers).run()
    assert workers.started[0] == FAILS
    assert all(x.startswith("architecture-recall-lstm-") for x in workers.started)
    others = [x for x in after.cells if (x.setting, x.row) != ("recall", "lstm")]
    assert others == [x for x in reproduced[1].cells if (x.setting, x.row) != ("recall", "lstm")]


def test_what_other_sittings_found_is_kept(reproduced, elsewhere):
    more = replace(TINY, studies=(ARCHITECTURE, replace(SHAPE, seeds=2)))
    workers = Inline()
    after = reproduction(elsewhere, workers, more, only=("shape",)).run()
    assert workers.started == [f"shape-hmm-{n}_heads-seed=1" for n in (1, 2)]
    before = {x.name: x for x in reproduced[1].cells}
    assert {x.name: x for x in after.cells if x.name in before} == before
    assert [x.study for x in after.cells] == sorted(x.study for x in after.cells)


def test_what_is_no_longer_planned_is_dropped(elsewhere):
    longer = tuple(replace(x, fields={**x.fields, "steps": 3}) for x in SHAPE.variants)
    other = replace(TINY, studies=(replace(SHAPE, variants=longer[:1]),))
    workers = Inline()
    after = reproduction(elsewhere, workers, other).run()
    assert workers.started == ["shape-hmm-1_heads-seed=0"]
    assert [x.config["steps"] for x in after.cells] == [3]


def test_one_table_runs_what_it_needs(tmp_path):
    document = reproduction(tmp_path, Inline(), only=("lengths",), seeds=1).run()
    assert {(x.study, x.task) for x in document.cells} == {("architecture", "hmm")}
    assert {x.row for x in document.cells} == {"transformer", "lstm"}
    assert {x.seed for x in document.cells if not x.trial} == {0}


class Interrupted(Inline):
    """Ctrl-C while the second cell trains; a cell that saves itself has no evaluation."""

    def start(self, number, cell, log, lock):
        super().start(number, cell, log, lock)
        if len(self.started) == 2:
            (cell.path / "evaluation.json").unlink()
            self.running[number] = 130
            os.kill(os.getpid(), signal.SIGINT)


def test_what_was_interrupted_is_not_finished_and_goes_on(tmp_path):
    first = reproduction(tmp_path, Interrupted(), only=("shape",), seeds=2)
    document = first.run()
    assert first.interrupted and not document.faults
    names = [f"shape-hmm-{n}_heads-seed={seed}" for seed in (0, 1) for n in (1, 2)]
    status = {x.name: x.status for x in document.cells}
    assert status == dict(zip(names, ["finished", *["not finished"] * 3], strict=True))
    (table,) = (x for x in tables.build(document) if x.name == "unfinished")
    assert sorted(row[0] for row in table.rows) == sorted(names[1:])
    workers = Inline()
    document = reproduction(tmp_path, workers, only=("shape",), seeds=2).run()
    assert workers.started == names[1:] and all(x.finished for x in document.cells)


def test_an_interrupted_trial_chooses_nothing(tmp_path):
    first = reproduction(tmp_path, Interrupted(), only=("geometry",))
    document = first.run()
    assert first.interrupted and not any(x.chosen for x in document.cells)


ONE = replace(
    TINY,
    studies=(
        Study("tuned", "T", "?", (Variant("hmm", "lstm", "hmm", "lstm", TASKS["hmm"]),), True),
    ),
    rates=(0.3, 1.0, 3.0),
)


def chosen_rate(tmp_path, monkeypatch, kl):
    """(rate, the trials as (rate, seed)) if `kl(rate, seed)` comes out of the trials."""
    monkeypatch.setattr(plan, "EXTENSIONS", 2)
    monkeypatch.setattr(Reproduction, "_train", lambda self, cells, title: None)
    monkeypatch.setattr(Reproduction, "_kl", lambda self, x: kl(x.rate, x.seed))
    monkeypatch.setattr(Reproduction, "_cell", lambda self, x: SimpleNamespace(status="finished"))
    made, tried = reproduction(tmp_path, Inline(), ONE), []
    original = made._plan
    made._plan = lambda *a, **k: tried.append((a[3], a[2])) or original(*a, **k)
    made._try_rates(plan.wanted(ONE, ()))
    return made.rates.get(("tuned", "hmm", "lstm")), tried


@pytest.mark.parametrize(
    "best,chosen,tried",
    [
        (1.0, 1.0, [0.3, 1.0, 3.0]),
        (3.0, 3.0, [0.3, 1.0, 3.0, 9.5]),  # no longer at an edge
        (10.0, 9.5, [0.3, 1.0, 3.0, 9.5, 30.0]),
        (1000.0, 30.0, [0.3, 1.0, 3.0, 9.5, 30.0]),  # and no further
        (0.001, 0.03, [0.03, 0.095, 0.3, 1.0, 3.0]),
    ],
)
def test_the_range_of_rates_is_extended(tmp_path, monkeypatch, best, chosen, tried):
    def kl(rate, seed):
        return abs(torch.tensor(rate / best).log().item())

    rate, trials = chosen_rate(tmp_path, monkeypatch, kl)
    assert (rate, sorted({x for x, _ in trials})) == (chosen, tried)


def test_the_worst_of_two_seeds_decides(tmp_path, monkeypatch):
    def kl(rate, seed):
        """The best mean is that of a rate which fails with seed 1."""
        table = {0.3: (0.5, 0.5), 1.0: (0.3, 0.3), 3.0: (0.0, 0.4)}
        return table[rate][seed]

    rate, trials = chosen_rate(tmp_path, monkeypatch, kl)
    assert rate == 1.0
    # The second seed of 0.3 cannot make it the best, so it is not run.
    assert trials == [(0.3, 0), (1.0, 0), (3.0, 0), (3.0, 1), (1.0, 1)]
    assert plan.choose({1.0: {0: float("inf")}, 3.0: {0: 0.2, 1: float("nan")}}) is None


def test_near_a_floor_no_rate_is_better_than_another(tmp_path, monkeypatch):
    """A small rate stays nearer to a guess than a large one, and that is all."""
    rate, trials = chosen_rate(tmp_path, monkeypatch, lambda rate, seed: plan.NOTHING)
    assert rate == 1.0 and trials == [(0.3, 0), (1.0, 0), (3.0, 0)]
    # One that has learned something is better than all that have not.
    learned = {0.3: 1.5, 1.0: plan.NOTHING, 3.0: plan.NOTHING, 0.095: plan.NOTHING}
    rate, _ = chosen_rate(tmp_path, monkeypatch, lambda rate, seed: learned[rate])
    assert rate == 0.3


def test_a_trial_at_a_floor_counts_as_nothing(tmp_path, monkeypatch):
    made = reproduction(tmp_path, Inline(), ONE)
    for kl, counts in ((0.5, 0.5), (1.5, plan.NOTHING)):
        found = planted_cell("hmm", numbers={"kl": kl})
        monkeypatch.setattr(Reproduction, "_cell", lambda self, x, found=found: found)
        assert made._kl(None) == counts


def test_what_several_rounds_of_trials_chose_can_be_gathered(tmp_path):
    """A round of trials follows from the one before it, whether it is run or only read."""
    chosen = reproduction(tmp_path, Inline(), ONE)
    chosen.run()
    gathered = reproduction(tmp_path, Inline(), ONE, gather=True)
    gathered.run()
    assert gathered.rates == chosen.rates and len(gathered.rates) == 1


def test_to_diverge_at_some_rate_is_no_fault_and_at_every_rate_is_one(tmp_path, monkeypatch):
    make = train.Run.__init__

    def spoiled(self, directory, config, step, say):
        make(self, directory, config, step, say)
        name = directory.path.name
        if "rate=3" in name or "recall" in name:
            with torch.no_grad():
                next(iter(step.master.values())).fill_(float("nan"))

    monkeypatch.setattr(train.Run, "__init__", spoiled)
    both = tuple(x for x in ARCHITECTURE.variants if x.row == "lstm")
    scale = replace(TINY, studies=(replace(ARCHITECTURE, variants=both, opened=()),))
    document = reproduction(tmp_path, Inline(), scale, seeds=1).run()
    status = {x.name.removeprefix("architecture-"): x.status for x in document.cells}
    assert status == {
        "hmm-lstm-rate=1-trial-seed=0": "finished",
        "hmm-lstm-rate=3-trial-seed=0": "diverged",
        "hmm-lstm-rate=1-seed=0": "finished",
        "recall-lstm-rate=1-trial-seed=0": "diverged",
        "recall-lstm-rate=3-trial-seed=0": "diverged",
    }
    assert set(document.faults) == {f"architecture-{x}" for x in status if x.startswith("recall")}
    assert all(why.startswith("diverged at step 1") for why in document.faults.values())


def test_pages_have_every_study_and_cell_and_the_papers_figure(reproduced):
    folder, document = reproduced
    markdown = (folder / "results/tiny/README.md").read_text()
    html = (folder / "results/tiny/index.html").read_text()
    for text in (markdown, html):
        assert "(paper 0.003 / 0.007, another generator)" in text  # of fewer symbols
        assert "(paper 100.0%, another generator)" in text
        assert all(x.command in text for x in document.cells)
        assert all(x.question in text for x in document.studies)
    assert read_record(folder / "results/tiny/results.json", Results) == document


def finished(document):
    return next(x for x in document["cells"] if x["status"] == "finished")


@pytest.mark.parametrize(
    "spoil,complaint",
    [
        (lambda d: d.pop("commit"), "lacks 'commit'"),
        (lambda d: d.update(schema=0), "schema 0"),
        (lambda d: finished(d).pop("seed"), r"cells\[0\] lacks 'seed'"),
        (lambda d: finished(d).update(seed="0"), r"cells\[0\].seed is '0'"),
        (lambda d: finished(d).update(speed=1), r"cells\[0\] has no place for 'speed'"),
        (lambda d: finished(d)["metrics"].pop("kl"), "lacks the metric 'kl'"),
        (lambda d: finished(d)["metrics"]["kl"].pop("se"), "metrics.kl lacks 'se'"),
        (lambda d: finished(d).update(environment={}), "does not say where it was run"),
        (lambda d: d["cells"].append(d["cells"][0]), "2 cells 'architecture-bijection-transformer"),
    ],
)
def test_the_schema_refuses(reproduced, spoil, complaint):
    document = copy.deepcopy(reproduced[1].to_json())
    assert Results.from_json(document) == reproduced[1]
    spoil(document)
    with pytest.raises(RecordError, match=complaint):
        Results.from_json(document)


def test_committed_results_fit_the_schema():
    for path in ROOT.glob("results/*/results.json"):
        assert read_record(path, Results).to_json() == read_json(path)


def test_committed_pages_are_those_of_the_committed_results():
    for path in ROOT.glob("results/*/results.json"):
        document, folder = read_record(path, Results), path.parent
        again = f"run bwt reproduce --scale {document.scale} --gather --out {folder.name}"
        assert (folder / "README.md").read_text() == page.markdown(document), again
        assert (folder / "index.html").read_text() == page.html(document), again
        drawn = {x.stem for x in (folder / "figures").iterdir()}
        assert drawn == {x.name for x in figures.build(document)}, again
        opened = {x.stem for x in (folder / "geometry").iterdir()}
        assert opened <= {x.name for x in document.cells}


@pytest.mark.parametrize("name", ["README.md", "results/README.md"])
def test_pages_quote_what_the_results_say(name):
    text = (ROOT / name).read_text()
    assert "<!-- results:" in text
    assert quotes.fill(text, quotes.folder_of(ROOT / name)) == text, (
        f"{name} and results/ disagree; run python -m bwt.reproduce.quotes {name}"
    )


def test_quotes_follow_the_results(reproduced):
    folder, document = reproduced
    text = (
        "kl <!-- results: tiny value architecture/hmm/mlp/kl -->old<!-- /results --> bits\n"
        "<!-- results: tiny value shape/hmm/2 heads/accuracy -->old<!-- /results -->\n"
        "<!-- results: tiny number architecture/hmm/mlp/kl -->old<!-- /results -->\n"
        "<!-- results: tiny floor architecture/hmm/mlp/uniform -->old<!-- /results -->\n"
        "<!-- results: tiny steps architecture/hmm/mlp -->old<!-- /results -->\n"
        "<!-- results: tiny table primitives -->\nold\n<!-- /results -->\n"
        "<!-- results: tiny table shape -->\nold\n<!-- /results -->\n"
    )
    filled = quotes.fill(text, folder / "results")
    cells = [x for x in document.cells if (x.setting, x.row) == ("hmm", "mlp") and x.chosen]
    uniform = sum(x.floors["uniform"].kl for x in cells) / 2
    assert f"/uniform -->{uniform:.3g}<!--" in filled and "hmm/mlp -->4<!--" in filled
    # With its spread, be it called a value or a number.
    assert filled.count(f"-->{sum(x.metrics['kl'].mean for x in cells) / 2:.3g} ±") == 2
    assert "% (1 seed)<!--" in filled
    assert "| model | accumulation (bijection) |" in filled and "| 2 heads |" in filled
    assert "old" not in filled and quotes.fill(filled, folder / "results") == filled
    (folder / "README.md").write_text(text)
    assert quotes.main([str(folder / "README.md")]) == 0
    assert (folder / "README.md").read_text() == filled


def test_quotes_reach_into_layers_lengths_curves_and_records(reproduced):
    folder, document = reproduced

    def quoted(marker):
        return quotes.quote(f"tiny {marker}", folder / "results")

    def means(values):
        return f"{sum(values) / len(values):.3g} ±"

    opened = find(document, "architecture", "bijection", "transformer")
    layers = [x.layers["lens_kl"][0] for x in opened.cells]
    assert quoted("layer architecture/bijection/transformer/lens_kl/0").startswith(means(layers))
    longer = find(document, "architecture", "hmm", "lstm").cells
    lengths = [x.lengths["10"]["kl"].mean for x in longer]
    assert quoted("length architecture/hmm/lstm/kl/10").startswith(means(lengths))
    step, kl = longer[0].curve.steps[0], [x.curve.kl[0] for x in longer]
    assert quoted(f"curve architecture/hmm/lstm/{step}").startswith(means(kl))
    name = opened.cells[0].name
    kept = read_object(folder / f"results/tiny/geometry/{name}.json")
    value = kept["lens"]["readings"][1]["tuned"]["mean"]
    assert quoted(f"record {name} lens/readings/1/tuned/mean") == num(value)
    heads = kept["attention"]["entropy"]["mean"]
    assert quoted(f"record {name} attention/entropy/mean") == num(sum(heads) / len(heads))


@pytest.mark.parametrize(
    "marker,complaint",
    [
        ("tiny value architecture/hmm/mlp/beauty", "no value for the marker"),
        ("tiny value architecture/hmm/mlp", "no value for the marker"),
        ("tiny value architecture/hmm/cnn/kl", "no value for the marker"),
        ("tiny number architecture/hmm/mlp/beauty", "no number for the marker"),
        ("tiny floor architecture/hmm/mlp/beauty", "no floor for the marker"),
        ("tiny steps architecture/hmm", "no steps for the marker"),
        ("tiny table beauty", "no table for the marker"),
        ("tiny layer architecture/bijection/transformer/lens_kl/9", "no layer for the marker"),
        ("tiny layer architecture/bijection/transformer/lens_kl/two", "no layer for the marker"),
        ("tiny layer architecture/bijection/transformer", "no layer for the marker"),
        ("tiny length architecture/hmm/lstm/kl/7", "no length for the marker"),
        ("tiny curve architecture/hmm/lstm/77", "no curve for the marker"),
        ("tiny record architecture-bijection-transformer-rate=1-seed=0 lens/beauty", "no record"),
        ("tiny record nobody lens", "does not exist"),
        ("tiny", "is none of: SCALE table NAME, "),
        ("tiny hmm mlp kl", "is none of: SCALE table NAME, "),
        ("huge table shape", "does not exist"),
    ],
)
def test_a_bad_marker_is_refused(reproduced, marker, complaint):
    with pytest.raises(ValueError, match=complaint):
        quotes.fill(f"<!-- results: {marker} --><!-- /results -->", reproduced[0] / "results")
    with pytest.raises(ValueError, match="has no <!-- /results -->"):
        quotes.fill(f"<!-- results: {marker} -->", reproduced[0] / "results")


def test_diagnostics_are_summed_up_in_a_few_numbers():
    some = Estimate(0.5, 0.1)

    def part(kind, factor=7.0, mode="zero"):
        return AblatedPart(0, kind, None, mode, some, some, factor)

    parts = [("block", 7.0), ("block", 3.0), ("head", 7.0)]
    modes = (("zero", 0.0), ("mean", 1.0))
    both = [part(kind, f + more, mode) for kind, f in parts for mode, more in modes]
    ablation = Ablation(some, some, both, 16, [], [Interchange(0, some, some, some, some, [1])])
    geometry = Geometry(4, clusters=Skipped("ties"), ablation=ablation)
    assert diagnostics.numbers(geometry) == {
        "layer_least": 3.0,
        "layer_most": 7.0,
        "layer_least_mean": 4.0,
        "layer_most_mean": 8.0,
        "head_most": 0.5,
        "head_most_layer": 0,
        "head_most_mean": 0.5,
        "head_most_mean_layer": 0,
    }


def test_attention_is_summed_up_over_its_heads(reproduced):
    folder, _ = reproduced
    path = next((folder / "runs").glob("architecture-bijection-transformer-*-seed=0/geometry.json"))
    geometry = read_record(path, Geometry)
    layers = geometry.attention.layers
    first = replace(layers[0], entropy=Estimates([0.1, 0.3], [0.0] * 2))
    attention = replace(geometry.attention, layers=[first, *layers[1:]])
    numbers = diagnostics.numbers(replace(geometry, attention=attention))
    assert numbers["attention_entropy_first"] == pytest.approx(0.2)


def test_the_options_of_every_variant_are_known():
    """One that nothing knows would be dropped, and another run be made."""
    fields = dataclasses.fields
    for scale in SCALES.values():
        for study, x in plan.wanted(scale, ()):
            classes = (TrainConfig, tasks.TASKS[x.task], *map(models.options_class, models.MODELS))
            known = {f.name for cls in classes for f in fields(cls)}
            assert set(x.fields) <= known, (scale.name, study.name, x.row)
            if x.model == "transformer":
                plan.plan_cell(scale, ROOT, study, x, 0)


def test_the_authors_baselines_are_as_deep_and_wide_as_theirs():
    scale = SCALES["authors"]
    found = {
        (x.task, x.row): plan.plan_cell(scale, ROOT, study, x, 0).cell.config
        for study, x in plan.wanted(scale, ("architecture/hmm", "architecture/bijection"))
    }
    for row in ("mamba", "lstm"):
        options = found["hmm", row].model_options
        assert (options["layers"], options["width"]) == (9, 256)
    assert found["hmm", "mlp"].model_options["layers"] == 18
    assert found["hmm", "mamba"].lr == 1e-4 and found["bijection", "lstm"].lr == 3e-4
    assert found["hmm", "transformer"].task_options["header"] == "tokens"
    assert {x.optimizer for x in found.values()} == {"adamw"}


def config_of(variant):
    return plan.plan_cell(TINY, ROOT, ARCHITECTURE, variant, 0).cell.config


def test_operations_of_a_dense_network_are_counted():
    """Of an MLP that sees its own position: 6 for each weight and position, but 4 for those of
    the first block and the features, through which no gradient has to go further."""
    fields = {**TASKS["hmm"], "context": "position"}
    reader = config_of(Variant("hmm", "mlp-position", "hmm", "mlp", fields))
    counted, size = cost.sequence_flops(reader), results.parameters(reader)
    steps = reader.task_options["length"]
    assert 0.7 * 6 * size * steps < counted < 1.3 * 6 * size * steps


def test_an_lstm_costs_what_its_products_cost():
    config = config_of(Variant("bijection", "lstm", "bijection", "lstm", TASKS["bijection"]))
    options = config.model_options
    products = 2 * 4 * options["width"] * (options["width"] + options["embed"])
    assert cost.sequence_flops(config) > 0.8 * 3 * 5 * products  # 5 tokens


@pytest.mark.parametrize("scale,word", [("tiny", "core"), ("paper", "operations")])
def test_estimate(scale, word, capsys, monkeypatch, tiny_scale):
    monkeypatch.setattr(cost, "sequence_flops", lambda config: 10**9)
    if scale == "paper":  # to match models of its size takes a while
        monkeypatch.setitem(SCALES, scale, replace(TINY, name=scale, preset="paper"))
    assert main(["reproduce", "--scale", scale, "--estimate", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    planned = plan.wanted(SCALES[scale], ())
    assert word in document["unit"] and len(document["cells"]) == len(planned)
    assert main(["reproduce", "--scale", scale, "--estimate"]) == 0
    assert "about" in capsys.readouterr().out


def test_a_study_a_setting_or_a_row_can_be_asked_for():
    def keys(*only):
        return [plan.key_of(*pair) for pair in plan.wanted(SCALES["workstation"], only)]

    [row] = keys("recall/lstm/8 pairs")
    assert row == ("recall", "lstm", "8 pairs")
    setting = keys("recall/lstm")
    assert row in setting and {key[:2] for key in setting} == {row[:2]} and len(setting) > 1
    assert set(setting) < set(keys("recall")) == set(keys("recall", "recall/lstm/8 pairs"))
    known = plan.names(SCALES["workstation"])
    assert {"recall", "recall/lstm", "recall/lstm/8 pairs"} <= set(known)
    assert len(known) == len(set(known))


def test_bad_arguments_are_one_line_and_two(capsys, tmp_path, tiny_scale):
    place = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    assert main(["reproduce", "--scale", "tiny", "--seeds", "0", *place]) == 2
    assert "--seeds must be at least 1" in capsys.readouterr().err
    assert main(["reproduce", "--scale", "tiny", "--only", "recall", *place]) == 2
    assert "the scale tiny has no recall; it has architecture" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_setting_of_a_study_can_be_named():
    named = plan.wanted(TINY, ("architecture/hmm",))
    assert {(study.name, x.setting) for study, x in named} == {("architecture", "hmm")}
    assert "architecture/hmm" in plan.names(TINY)


def test_what_has_finished_is_gathered_and_nothing_run(tmp_path):
    reproduction(tmp_path, Inline(), only=("shape",)).run()
    workers = Inline()
    more = reproduction(tmp_path, workers, out="again", only=("shape", "lengths"), gather=True)
    document = more.run()
    assert workers.started == [] and document.faults == {}
    status = {x.study: x.status for x in document.cells}
    assert status == {"shape": "finished", "architecture": "not finished"}
