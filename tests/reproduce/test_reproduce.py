"""`bwt reproduce`: all of it at a scale where nothing is learned, and the rules of its tables."""

import copy
import json
import math
from dataclasses import replace

import pytest
import torch
from inline import Inline
from nvcc import ROOT

from bwt import models, paper, train
from bwt.cli import main
from bwt.records.base import RecordError
from bwt.records.estimates import Estimate, Estimates
from bwt.records.geometry import AblatedPart, Ablation, Geometry, Interchange, Skipped
from bwt.records.results import METRICS, Cell, Floor, Results
from bwt.report import diagnostics
from bwt.reproduce import SCALES, Reproduction, cost, plan, quotes, results, tables
from bwt.runs.files import read_json, read_record

# Everything is run, nothing is learned.
TINY = plan.Scale(
    "tiny",
    "quick",
    seeds=2,
    rates=(1.0, 3.0),
    settings={"evaluations": 1, "eval_sequences": 16, "batch_size": 4, "steps": 2},
    tasks={
        "bijection": {"num_symbols": 4},
        "hmm": {"length": 4, "targets": "posterior"},
        "recall": {"num_pairs": 3, "num_queries": 2, "num_keys": 6, "num_values": 6},
    },
    sequences=16,
)


@pytest.fixture
def tiny_scale(monkeypatch):
    """As the command knows it."""
    monkeypatch.setitem(SCALES, TINY.name, TINY)


def rows():
    return [row for row, (model, _) in plan.ROWS.items() if model in models.MODELS]


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    """(folder, document) of the whole tiny scale, one cell of which fails."""
    folder = tmp_path_factory.mktemp("reproduce")
    workers = Inline(dies=["recall-lstm-rate=3-seed=0"])
    reproduction = Reproduction(
        TINY, folder / "runs", folder / "results/tiny", workers, "bwt reproduce"
    )
    return folder, reproduction.run()


def test_every_cell_is_there_with_its_circumstances(reproduced):
    _, document = reproduced
    done = {(x.task, x.row, x.seed) for x in document.cells if x.chosen}
    assert done == {(task, row, seed) for task in plan.TASKS for row in rows() for seed in (0, 1)}
    for cell in (x for x in document.cells if x.chosen):
        assert cell.environment["versions"]["torch"] == torch.__version__
        assert cell.command.startswith(f"bwt train {cell.task} ")
        assert f"--seed {cell.seed}" in cell.command
        assert set(cell.metrics) == set(METRICS)


def test_models_are_matched_and_see_the_same_data(reproduced):
    _, document = reproduced
    for task in plan.TASKS:
        cells = [x for x in document.cells if x.task == task]
        sizes = [x.parameters for x in cells]
        assert max(sizes) <= 1.02 * min(sizes)
        assert len({(x.config["steps"], x.config["batch_size"]) for x in cells}) == 1


def test_the_rate_of_least_kl_is_chosen(reproduced):
    _, document = reproduced
    for task in plan.TASKS:
        for row in rows():
            tried = [
                x for x in document.cells if (x.task, x.row, x.seed) == (task, row, 0) and x.metrics
            ]
            best = min(tried, key=lambda x: x.metrics["kl"].mean)
            assert [x.rate for x in tried if x.chosen] == [best.rate]


def test_a_failed_cell_is_named(reproduced):
    _, document = reproduced
    assert list(document.faults) == ["recall-lstm-rate=3-seed=0"]
    notes = tables.build(document)[0].notes
    assert any("recall-lstm-rate=3-seed=0 failed" in note for note in notes)


def test_lengths_beyond_training_are_evaluated(reproduced):
    _, document = reproduced
    for cell in document.cells:
        longer = cell.task == "hmm" and cell.chosen and cell.row in plan.READ_LONGER
        assert set(cell.lengths) == ({"6", "10"} if longer else set())
    (table,) = (x for x in tables.build(document) if x.name == "lengths")
    assert table.header == ["model", "length 4", "length 6", "length 10"]


def test_the_same_again_redoes_only_what_failed(reproduced):
    folder, before = reproduced
    workers = Inline()
    place = (folder / "runs", folder / "again", workers, "bwt reproduce")
    after = Reproduction(TINY, *place).run()
    assert workers.started[0] == "recall-lstm-rate=3-seed=0" and not after.faults
    # The other rate may turn out to be the better one; nothing else is run.
    assert set(workers.started[1:]) <= {"recall-lstm-rate=3-seed=1"}
    kept = {x.name: x.metrics for x in before.cells if x.metrics}
    assert kept.items() <= {x.name: x.metrics for x in after.cells}.items()


def test_one_table_runs_what_it_needs(tmp_path):
    workers = Inline()
    place = (tmp_path / "runs", tmp_path / "out", workers, "bwt reproduce --only lengths")
    document = Reproduction(TINY, *place, only="lengths", seeds=1).run()
    assert {x.task for x in document.cells} == {"hmm"}
    assert {x.seed for x in document.cells} == {0}


def test_to_diverge_at_some_rate_is_no_fault_and_at_every_rate_is_one(tmp_path, monkeypatch):
    update = train.Trainer.update

    def spoiled(self, stop):
        name = self.run.path.name
        if "rate=3" in name or name.startswith("recall"):
            with torch.no_grad():
                self.parameters[0].fill_(float("nan"))
        return update(self, stop)

    monkeypatch.setattr(train.Trainer, "update", spoiled)
    place = (tmp_path / "runs", tmp_path / "out", Inline(), "bwt reproduce --only lengths")
    monkeypatch.setattr(plan, "wanted", lambda only: [("hmm", "lstm"), ("recall", "lstm")])
    document = Reproduction(TINY, *place, only="lengths", seeds=1).run()
    status = {x.name: x.status for x in document.cells}
    assert status == {
        "hmm-lstm-rate=1-seed=0": "finished",
        "hmm-lstm-rate=3-seed=0": "diverged",
        "recall-lstm-rate=1-seed=0": "diverged",
        "recall-lstm-rate=3-seed=0": "diverged",
    }
    assert set(document.faults) == {x for x in status if x.startswith("recall")}
    assert all(why.startswith("diverged at step 1") for why in document.faults.values())


def test_pages_have_every_cell_and_the_papers_figure(reproduced):
    folder, document = reproduced
    markdown = (folder / "results/tiny/README.md").read_text()
    html = (folder / "results/tiny/index.html").read_text()
    for text in (markdown, html):
        assert "(paper 0.003 / 0.007)" in text and "(paper 100.0%)" in text
        assert all(x.command in text for x in document.cells)
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
        (lambda d: d["cells"].append(d["cells"][0]), "2 cells 'bijection-transformer"),
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


def test_the_readme_quotes_what_the_results_say():
    text = (ROOT / "README.md").read_text()
    assert quotes.fill(text, ROOT / "results") == text, (
        "README.md and results/ disagree; run python -m bwt.reproduce.quotes README.md"
    )


def test_quotes_follow_the_results(reproduced):
    folder, document = reproduced
    text = (
        "kl <!-- results: tiny hmm mlp kl -->old<!-- /results --> bits\n"
        "<!-- results: tiny table primitives -->\nold\n<!-- /results -->\n"
    )
    filled = quotes.fill(text, folder / "results")
    values = tables.values(document, "hmm", "mlp", "kl")
    assert f"-->{sum(values) / 2:.3g} ±" in filled and "| model | accumulation |" in filled
    assert "old" not in filled and quotes.fill(filled, folder / "results") == filled
    (folder / "README.md").write_text(text)
    assert quotes.main([str(folder / "README.md")]) == 0
    assert (folder / "README.md").read_text() == filled


@pytest.mark.parametrize(
    "marker,complaint",
    [
        ("<!-- results: tiny hmm mlp kl -->", "has no <!-- /results -->"),
        ("<!-- results: tiny hmm mlp beauty --><!-- /results -->", "nothing for the marker"),
        ("<!-- results: tiny table beauty --><!-- /results -->", "no table for the marker"),
        ("<!-- results: tiny hmm --><!-- /results -->", "is not SCALE table NAME"),
        ("<!-- results: huge hmm mlp kl --><!-- /results -->", "does not exist"),
    ],
)
def test_a_bad_marker_is_refused(reproduced, marker, complaint):
    with pytest.raises(ValueError, match=complaint):
        quotes.fill(marker, reproduced[0] / "results")


@pytest.fixture
def cell(reproduced):
    """A finished cell with these numbers."""

    def build(task="hmm", kl=0.001, accuracy=0.5, **floors):
        some = next(x for x in reproduced[1].cells if x.finished)
        numbers = {"kl": Estimate(kl, None), "accuracy": Estimate(accuracy, None)}
        return replace(
            some,
            task=task,
            metrics={**some.metrics, **numbers},
            exact_entropy=1.0,
            floors={name.replace("_", "-"): Floor(value, 0.0) for name, value in floors.items()},
        )

    return build


def test_the_rule_of_primitives(cell):
    assert tables.passes(cell(kl=0.04, memory_1=0.2), "memory-1")
    assert not tables.passes(cell(kl=0.06, memory_1=9.0), "memory-1")  # far from exact
    assert not tables.passes(cell(kl=0.04, memory_1=0.19), "memory-1")  # near the floor
    assert not tables.passes(cell(kl=math.nan, memory_1=0.2), "memory-1")  # diverged
    assert tables.passes(cell("recall", 0.3, 0.96, unbound=4.0), "unbound")
    assert not tables.passes(cell("recall", 0.3, 0.94, unbound=4.0), "unbound")


def test_a_model_at_the_floor_is_not_an_architecture_that_fails(cell):
    assert cell(kl=0.51, uniform=0.513, constant=0.512).at_floor()
    assert not cell(kl=0.4, uniform=0.513, constant=0.512).at_floor()


def test_readings_beside_the_paper(reproduced):
    def reading(task, row, metric, value, kl=1e-4):
        def changed(x: Cell) -> Cell:
            numbers = {metric: Estimate(value, None), "kl": Estimate(kl, None)}
            return replace(x, metrics={**x.metrics, **numbers}) if x.finished else x

        document = reproduced[1]
        document = replace(document, cells=[changed(x) for x in document.cells])
        return tables._reading(task, row, document)

    assert reading("bijection", "lstm", "entropy_mae", 0.01) == "agrees"
    assert reading("bijection", "lstm", "entropy_mae", 0.001) == "lower"
    assert reading("hmm", "transformer", "entropy_mae", 0.005) == "between"
    assert reading("hmm", "lstm", "entropy_mae", 0.41, kl=9.0) == f"agrees; {tables.FLOOR}"
    assert reading("recall", "lstm", "accuracy", 0.99) == "higher"
    assert reading("recall", "mlp-position", "accuracy", 0.1, kl=9.0) == tables.BLIND


def test_spread():
    assert tables.spread([1.0, 3.0]) == "2 ± 1.41"
    assert tables.spread([0.5]) == "0.5 (1 seed)"
    assert tables.spread([0.5, math.nan]) == "diverged" and tables.spread([]) == "-"


def test_diagnostics_are_summed_up_in_a_few_numbers():
    some = Estimate(0.5, 0.1)

    def part(kind, factor=7.0, mode="zero"):
        return AblatedPart(0, kind, None, mode, some, some, factor)

    parts = [("block", 7.0), ("block", 3.0), ("head", 7.0)]
    both = [part(kind, f, mode) for kind, f in parts for mode in ("zero", "mean")]
    ablation = Ablation(some, some, both, 16, [], [Interchange(0, some, some, some, some, [1])])
    geometry = Geometry(4, clusters=Skipped("ties"), ablation=ablation)
    assert diagnostics.numbers(geometry) == {
        "layer_least": 3.0,
        "layer_most": 7.0,
        "head_most": 0.5,
    }


def test_attention_is_summed_up_over_its_heads(reproduced):
    folder, _ = reproduced
    path = next((folder / "runs").glob("hmm-transformer-*-seed=0/geometry.json"))
    geometry = read_record(path, Geometry)
    layers = geometry.attention.layers
    first = replace(layers[0], entropy=Estimates([0.1, 0.3, 0.2, 0.2], [0.0] * 4))
    attention = replace(geometry.attention, layers=[first, *layers[1:]])
    numbers = diagnostics.numbers(replace(geometry, attention=attention))
    assert numbers["attention_entropy_first"] == pytest.approx(0.2)


def test_the_papers_figures_are_of_our_rows():
    assert {row for _, row in paper.HEADLINE} == set(plan.ROWS)
    assert {task for task, _ in paper.HEADLINE} == set(plan.TASKS) == set(tables.TASKS)


def test_operations_of_a_dense_network_are_counted():
    """Of an MLP that sees its own position: 6 for each weight and position, but 4 for those of
    the first block and the features, through which no gradient has to go further."""
    reader = plan.plan_cell(TINY, ROOT, "hmm", "mlp-position", 0, 1.0).cell.config
    counted, size = cost.sequence_flops(reader), results.parameters(reader)
    steps = reader.task_options["length"]
    assert 0.7 * 6 * size * steps < counted < 1.3 * 6 * size * steps


def test_an_lstm_costs_what_its_products_cost():
    config = plan.plan_cell(TINY, ROOT, "bijection", "lstm", 0, 1.0).cell.config
    options = config.model_options
    products = 2 * 4 * options["width"] * (options["width"] + options["embed"])
    assert cost.sequence_flops(config) > 0.8 * 3 * 5 * products  # 5 tokens


@pytest.mark.parametrize("scale,word", [("tiny", "core"), ("paper", "operations")])
def test_estimate(scale, word, capsys, monkeypatch, tiny_scale):
    monkeypatch.setattr(cost, "sequence_flops", lambda config: 10**9)
    assert main(["reproduce", "--scale", scale, "--estimate", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert word in document["unit"] and len(document["cells"]) == 3 * len(rows())
    assert main(["reproduce", "--scale", scale, "--estimate"]) == 0
    assert "about" in capsys.readouterr().out


def test_bad_arguments_are_one_line_and_two(capsys, tmp_path, tiny_scale):
    place = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    assert main(["reproduce", "--scale", "tiny", "--seeds", "0", *place]) == 2
    assert "--seeds must be at least 1" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
