"""The rules of the tables of a reproduction, on planted results."""

import math
from dataclasses import replace

import pytest
import torch
from helpers.planted_results import FLOORS, cell, document

from bwt import paper, tasks
from bwt.records.estimates import Estimate
from bwt.records.results import Curve, StudyText
from bwt.report import diagnostics
from bwt.reproduce import names, page, studies, tables
from bwt.reproduce.tables import freezing
from bwt.reproduce.tables.beside import beside
from bwt.reproduce.tables.circumstances import circumstances
from bwt.reproduce.tables.primitives import NEEDED, verdict
from bwt.reproduce.tables.table import percent, spread, spread_of
from bwt.reproduce.tables.variants import BLIND, find, variants


def table(results, name):
    (found,) = (x for x in tables.build(results) if x.name == name)
    return found


def lines(results, name):
    """Rows of a table as dictionaries."""
    found = table(results, name)
    return [dict(zip(found.header, row, strict=True)) for row in found.rows]


def test_spread():
    assert spread([1.0, 3.0]) == "2 ± 1"
    assert spread([0.5]) == "0.5 (1 seed)"
    assert spread([]) == "-"
    assert spread([0.5, math.nan]) == "1 of 2 seeds 0.5, the other no number"
    assert spread([0.97, 0.99], percent) == "98.0% ± 1.4%"


@pytest.mark.parametrize(
    "values,text",
    [
        ([0.0097, 1.85, 0.0095, 1.85, 0.0099], "3 of 5 seeds 0.0097 ± 0.0002, the others 1.85 ± 0"),
        ([0.01, 0.1], "1 of 2 seeds 0.01, the other 0.1"),
        ([0.01, 0.099], "0.0545 ± 0.06"),
        ([0.01, 0.06, 0.3], "0.123 ± 0.2"),  # a wide spread has no gap
        ([1e-9, 3e-7, 2e-8], "1.1e-7 ± 2.0e-7"),  # nothing but rounding
        ([0.0, 1e-4], "1 of 2 seeds 0, the other 0.0001"),
        ([1e-4, 0.01, 1.0], "1 of 3 seeds 0.0001, 1 at 0.01, 1 at 1"),
    ],
)
def test_two_outcomes_are_not_one_with_a_wide_spread(values, text):
    assert spread(values) == text


def test_seeds_at_a_floor_are_an_outcome_of_their_own():
    """Between recall without elimination and a guess lies less than the factor of a gap."""
    floors = {"uniform": 1.85, "lookup": 0.357}
    cells = [
        cell("bijection", seed=seed, floors=floors, numbers={"kl": kl})
        for seed, kl in enumerate((0.36, 1.85, 0.355))
    ]
    text = spread_of(cells, "kl")
    assert text == "2 of 3 seeds 0.357 ± 0.004, the other 1.85"


def test_accuracies_are_apart_by_points():
    assert spread([0.98, 0.99, 0.3], percent) == "2 of 3 seeds 98.5% ± 0.7%, the other 30.0%"
    assert spread([0.9, 0.7], percent) == "80.0% ± 14.1%"
    assert spread([0.001, 0.02], percent).startswith("1.1%")  # a factor says little


def test_a_curriculum_is_among_the_circumstances():
    made = cell("bijection")
    easier = {"curriculum": "replacement=false,true", "curriculum_steps": 3000}
    told = circumstances({**made.config, **easier})
    assert told.endswith("; first 3,000 steps with replacement=false,true")
    assert "first" not in circumstances(made.config)


def test_layers_have_no_mean_and_missing_numbers_are_counted():
    cells = [
        cell("bijection", seed=seed, geometry=geometry)
        for seed, geometry in enumerate(
            (
                {"lookup_layer": 0.0, "pc1": 0.4, "lens_first_layer": 1.0},
                {"lookup_layer": 1.0, "pc1": 0.5},
                {"lookup_layer": 0.0, "pc1": 0.6},
                {},  # nobody has looked
            )
        )
    ]
    rows = {row[""]: row["bijection: transformer"] for row in lines(document(*cells), GEOMETRY)}
    assert rows["lookup_layer"] == "0 in 2 of 3 seeds, 1 in 1"
    assert rows["pc1"] == "0.5 ± 0.1"
    assert rows["lens_first_layer"] == "1 (1 of 3 seeds)"


GEOMETRY = "geometry-architecture"


def opened_at(*kl):
    """A seed for each KL, with its place as the share of the first component."""
    return [
        cell("bijection", seed=i, geometry={"pc1": float(i)}, numbers={"kl": x})
        for i, x in enumerate(kl)
    ]


def test_a_seed_at_a_floor_is_not_among_the_diagnostics():
    guess = FLOORS["uniform"]
    (row,) = lines(document(*opened_at(0.01, guess, 0.01)), GEOMETRY)
    assert row["bijection: transformer, 2 of 3 seeds"] == "1 ± 1"  # of 0 and 2
    (row,) = lines(document(*opened_at(0.01, guess)), GEOMETRY)
    assert row["bijection: transformer, 1 of 2 seeds"] == "0 (1 seed)"


def test_where_all_seeds_are_at_a_floor_the_diagnostics_say_so():
    (row,) = lines(document(*opened_at(*[FLOORS["uniform"]] * 2)), GEOMETRY)
    assert row["bijection: transformer, not trained"] == "0.5 ± 0.7"


def test_what_is_known_of_each_layer_is_told_by_layer():
    def layers(*entropy):
        return {"attention_entropy": list(entropy), "mlp_removed": [0.5, None][: len(entropy)]}

    deep = [cell("bijection", seed=i, layers=layers(2.0 + i, 1.0)) for i in (0, 1)]
    shallow = cell("hmm", layers=layers(3.0))
    rows = lines(document(*deep, shallow), "layers-architecture")
    told = {(row["model"], row[""]): (row["layer 0"], row["layer 1"]) for row in rows}
    assert told == {
        ("bijection: transformer", "attention_entropy"): ("2.5 ± 0.7", "1 ± 0"),
        ("bijection: transformer", "mlp_removed"): ("0.5 ± 0", "-"),
        ("hmm: transformer", "attention_entropy"): ("3", "-"),
        ("hmm: transformer", "mlp_removed"): ("0.5", "-"),
    }
    assert not [x for x in tables.build(document(cell())) if x.name == "layers-architecture"]


@pytest.mark.parametrize(
    "given,words",
    [
        (
            cell("bijection", task_options={"replacement": True}),
            "keys with replacement; {positions} positions, ",
        ),
        (cell("bijection", task_options={"replacement": False}), "distinct keys; "),
        (
            cell("hmm", model_options={"positions": "none", "token_shift": "block"}),
            "rows header, no floor; no positions, token shift block",
        ),
        (
            cell("hmm", model_options={"positions": "rotary", "token_shift": "none"}),
            "rows header, no floor; rotary positions, no token shift",
        ),
        (cell("hmm", model="lstm", task_options={"floor": 0.05}), "rows header, floor 0.05"),
        (
            cell("hmm", model="lstm", task_options={"header": "tokens", "stickiness": 0.9}),
            "token header, no floor, stickiness 0.9",
        ),
        (
            cell("bijection", model="lstm", task_options={"num_symbols": 8, "noise": 0.2}),
            "8 symbols, 7 pairs, {keys}, noise 0.2",
        ),
    ],
)
def test_a_row_names_its_circumstances(given, words):
    config = given.config
    positions = config["model_options"].get("positions")
    keys = "keys with replacement" if config["task_options"].get("replacement") else "distinct keys"
    assert words.format(positions=positions, keys=keys) in circumstances(config)


THEIRS = {
    "bijection": {"replacement": True},
    "hmm": {"header": "tokens", "floor": 0.05},
    "recall": paper.GENERATORS["recall"],
}


def reading(setting, row, options=None, model="transformer", **numbers):
    options = THEIRS[setting] if options is None else options
    made = cell(setting, row, model=model, task_options=options, numbers=numbers)
    return beside(find(document(made), "architecture", setting, row))


def test_the_same_generator_and_metric_are_compared():
    assert reading("bijection", "mamba", entropy_mae_of_mean=0.011) == "agrees"
    assert reading("bijection", "mamba", entropy_mae_of_mean=0.001) == "lower than 0.01"
    assert reading("bijection", "transformer", entropy_mae_of_mean=0.02) == "higher than 0.007"
    assert reading("hmm", "mamba", entropy_mae=0.02) == "agrees"
    assert reading("recall", "mamba", accuracy=0.99) == "agrees"
    assert reading("recall", "lstm", accuracy=0.99) == "higher than 0.5%"
    # The other order of averaging is another metric.
    assert reading("bijection", "mamba", entropy_mae=0.5, entropy_mae_of_mean=0.011) == "agrees"


def test_a_figure_without_a_stated_metric_agrees_with_nothing():
    words = reading("hmm", "transformer", entropy_mae=7.5e-5)
    assert words.startswith("lower than 0.049;") and "7.5e-5" in words


def test_another_generator_is_not_comparable():
    words = reading("hmm", "lstm", {}, entropy_mae=0.407)
    assert words.startswith("another generator (rows header, no floor): not comparable")
    assert "uniform floor of its task, 0.42" in words
    words = reading("bijection", "mlp", {"replacement": False}, entropy_mae_of_mean=1.107)
    assert words.startswith("another generator (distinct keys): not comparable")
    words = reading("recall", "mamba", {**THEIRS["recall"], "num_pairs": 16}, accuracy=0.978)
    assert words == "another generator (16 pairs): not comparable"


def test_the_papers_mlp_is_at_the_uniform_floor_of_its_bijection():
    task = tasks.get("bijection", **paper.GENERATORS["bijection"])
    posterior = task.posterior(task.sample(4000, generator=torch.Generator().manual_seed(0)))
    entropy = torch.special.entr(posterior).sum(-1) / math.log(2)
    (theirs,) = paper.HEADLINE["bijection", "mlp"]
    assert (math.log2(20) - entropy).mean() == pytest.approx(theirs.value, abs=0.01)
    assert "1.849" in theirs.note


def test_the_papers_figures_are_of_our_rows_and_options():
    assert {row for _, row in paper.HEADLINE} == set(studies.ROWS)
    for task, options in paper.GENERATORS.items():
        assert set(options) <= set(tasks.get(task).options())


def kl_of(task, predicted, posterior):
    return float((posterior * (posterior / predicted).log2().nan_to_num()).sum(-1).mean())


CONVERGED = ((50, 0.51), (100, 0.5))


def planted(setting, study, task, kl_like):
    """A cell with the floors of the task and the KL of one of its predictors."""
    batch = task.sample(512, generator=torch.Generator().manual_seed(0))
    exact = task.posterior(batch).double()
    uniform = torch.full_like(exact, 1 / exact.shape[-1])
    floors = {name: kl_of(task, x.double(), exact) for name, x in task.floors(batch).items()}
    floors |= {"uniform": kl_of(task, uniform, exact)}
    entropy = float((torch.special.entr(exact).sum(-1) / math.log(2)).mean())
    kl = floors.get(kl_like, 1e-4) if isinstance(kl_like, str) else kl_like
    numbers, curve = {"kl": kl}, CONVERGED
    made = cell(setting, study=study, task=task.name, floors=floors, numbers=numbers, curve=curve)
    return replace(made, exact_entropy=entropy)


@pytest.mark.parametrize("setting", ["hmm-sticky", "hmm-missing"])
@pytest.mark.parametrize(
    "predictor,transports",
    [("exact", "yes"), *((f"memory-{k}", "no") for k in (1, 2, 5, 10))],
)
def test_a_filter_of_few_observations_does_not_transport(setting, predictor, transports):
    (fields,) = (
        x.fields
        for x in studies.transport(1).variants
        if (x.setting, x.row) == (setting, "transformer")
    )
    options = {name: fields[name] for name in ("stickiness", "missing") if name in fields}
    made = planted(setting, "transport", tasks.get("hmm", **options), predictor)
    assert verdict(made, "memory-10") == transports
    (row,) = lines(document(made), "primitives")
    assert row[f"transport ({setting})"] == f"{transports} (paper yes)"
    assert row["binding (recall)"] == "- (paper yes)"


def test_only_to_look_up_is_not_to_accumulate():
    task = tasks.get("bijection", replacement=True)
    assert verdict(planted("bijection", "architecture", task, "lookup"), "lookup") == "no"
    assert verdict(planted("bijection", "architecture", task, "unbound"), "unbound") == "no"
    exact = planted("bijection", "architecture", task, "exact")
    assert verdict(exact, "lookup") == verdict(exact, "unbound") == "yes"


def test_to_keep_the_last_showing_is_not_to_accumulate():
    (fields,) = (
        x.fields
        for x in studies.variants_of_tasks(1).variants
        if (x.setting, x.row) == ("bijection-noisy", "transformer")
    )
    options = {name: fields[name] for name in ("num_symbols", "num_pairs", "noise")}
    task = tasks.get("bijection", replacement=True, **options)
    for predictor, says in (("exact", "yes"), ("latest", "no"), ("lookup", "no")):
        made = planted("bijection-noisy", "generators", task, predictor)
        assert verdict(made, "latest") == says
        (row,) = lines(document(made), "primitives")
        assert row["accumulation (bijection-noisy)"] == f"{says} (paper yes)"


def test_a_model_at_the_floor_is_not_trained():
    task = tasks.get("bijection", replacement=True)
    assert verdict(planted("bijection", "architecture", task, "uniform"), "lookup") == "not trained"
    nothing = planted("bijection", "architecture", task, math.nan)
    assert verdict(nothing, "lookup") == "not trained"


def test_where_the_entropy_is_not_known_nothing_is_said():
    made = planted("bijection", "architecture", tasks.get("bijection", replacement=True), "exact")
    assert verdict(replace(made, exact_entropy=None), "lookup") == "-"


def test_recall_has_to_be_right():
    floors = {"uniform": 6.0, "unbound": 4.0}

    def recall(kl, accuracy):
        numbers = {"kl": kl, "accuracy": accuracy}
        return cell("recall", floors=floors, numbers=numbers, curve=CONVERGED)

    assert verdict(recall(0.3, 0.96), "unbound") == "yes"
    assert verdict(recall(0.3, 0.94), "unbound") == "no"
    assert verdict(recall(2.1, 0.96), "unbound") == "no"  # not half of the floor
    assert verdict(recall(4.1, 0.02), "unbound") == "not trained"


def test_what_still_falls_is_not_said_to_lack_anything():
    made = planted("bijection", "architecture", tasks.get("bijection", replacement=True), "lookup")
    for curve, says in ((Curve([50, 100], [0.6, 0.4]), "not converged"), (made.curve, "no")):
        assert verdict(replace(made, curve=curve), "lookup") == says
    # In a run until a plateau the fall of the rate at the end is no learning.
    curve = Curve([40, 80, 100], [0.51, 0.5, 0.3])
    held = replace(made, curve=curve, config={**made.config, "until": "plateau"})
    assert verdict(held, "lookup") == "no"
    assert verdict(replace(made, curve=curve), "lookup") == "not converged"


def test_where_the_predictor_is_unknown_nothing_is_said():
    assert verdict(cell("bijection"), "lookup") == "-"


def test_seeds_that_differ_are_counted():
    task = tasks.get("bijection", replacement=True)
    kinds = ("exact", "exact", "uniform", "lookup")
    cells = [
        replace(planted("bijection", "architecture", task, kind), seed=i, name=str(i))
        for i, kind in enumerate(kinds)
    ]
    (row,) = lines(document(*cells), "primitives")
    words = "yes in 2 of 4 seeds, not trained in 1, no in 1 (paper yes)"
    assert row["accumulation (bijection)"] == words


def test_what_primitives_need_is_in_the_studies():
    found = (
        studies.architecture(bijection={}, hmm={}, recall={}),
        studies.transport(1),
        studies.variants_of_tasks(1),
    )
    there = {(study.name, x.setting) for study in found for x in study.variants}
    assert {(study, setting) for _, study, setting, _ in NEEDED} <= there


def test_learned_or_not():
    def learned(kl, row="transformer", **floors):
        made = cell(row=row, numbers={"kl": kl}, floors={**FLOORS, **floors})
        return variants(document(made), "architecture")[0].learned()

    assert learned(1.49) == "not trained" and learned(1.49, "mlp-position") == BLIND
    assert learned(0.5) == "yes"
    assert learned(0.5, lookup=0.4) == "worse than lookup"
    assert learned(0.41, lookup=0.4) == "no better than lookup"
    assert learned(0.39, **{"memory-1": 0.4}) == "no better than memory-1"


def test_a_seed_that_came_to_nothing_is_not_left_out_in_silence():
    fine = cell("bijection")
    gone = cell("bijection", seed=1, status="diverged", chosen=False, curve=())
    other = replace(gone, name="x", seed=2, rate=3.0)  # of a rate that was not chosen
    trial = replace(gone, name="y", seed=3, trial=True)
    results = document(fine, gone, other, trial)
    assert lines(results, "metrics")[0]["learned"] == "yes; seed 1 diverged"
    assert "; 1 more without a result" in lines(results, "architecture")[0]["bijection (bits)"]


def test_notes_say_what_is_alike_and_what_was_tried():
    def notes(*cells, **about):
        results = replace(document(*cells), **about)
        return " ".join(table(results, "architecture").notes + table(results, "metrics").notes)

    ours, alike = cell(), cell(row="lstm", model="lstm", parameters=1010)
    assert "equally many parameters" in notes(ours, alike) and "were tried" in notes(ours, alike)
    larger = replace(alike, parameters=1100)
    assert "equally many parameters" not in notes(ours, larger)
    batches = replace(alike, config={**alike.config, "batch_size": 7})
    assert "equally many parameters" not in notes(ours, batches)
    untuned = [StudyText("architecture", "Architectures", "Which?", "", False)]
    theirs = notes(ours, larger, scale="authors", studies=untuned)
    assert "no dropout" in theirs and "were tried" not in theirs
    assert "no dropout" not in notes(ours, alike)


def test_a_rate_at_an_edge_is_marked():
    def rate(chosen, tried):
        trials = [cell(rate=x, trial=True, chosen=False, name=str(x)) for x in tried]
        return lines(document(*trials, cell(rate=chosen)), "metrics")[0]["rate"]

    assert rate(1.0, (0.3, 1.0, 3.0)) == "1"
    assert rate(30.0, (1.0, 3.0, 9.5, 30.0)) == "30 (edge)"
    assert rate(0.3, (0.3, 1.0)) == "0.3 (edge)" and rate(1.0, (1.0,)) == "1"


def test_steps_and_what_more_of_them_would_do():
    halving = [(2**i, 1 / 2**i) for i in range(5)]
    trembling = [(step, kl * (1.1 if step in (4, 16) else 1)) for step, kl in halving]
    flat = [(2**i, 1.0) for i in range(4)]
    both = cell(curve=halving), cell(seed=1, curve=flat)
    row = lines(document(*both[:1]), "metrics")[0]
    assert row["steps"] == "16" and row["per doubling"] == "-50% ± 0%"
    # log2 KL is -2, -3, -4, with log2 1.1 = 0.1375 added at both ends: the slope stays -1, with an
    # error of 0.1375 / sqrt(3).
    row = lines(document(cell(curve=trembling)), "metrics")[0]
    assert row["per doubling"] == "-50% ± 3%"
    row = lines(document(*both), "metrics")[0]
    # Of the mean exponent, -1/2; the deviation of -1 and 0 is 0.71.
    assert row["steps"] == "8 to 16" and row["per doubling"] == "-29% ± 35%"


def test_a_study_has_a_line_for_each_variant():
    cells = [
        cell("hmm", f"{n} heads", study="shape", seed=seed, x=n, numbers={"kl": 0.01 * (n + seed)})
        for n in (1, 2)
        for seed in (0, 1)
    ]
    rows = lines(document(*cells), "shape")
    assert [x["variant"] for x in rows] == ["1 heads", "2 heads"]
    assert rows[0]["kl"] == "0.015 ± 0.007" and rows[0]["best floor (kl)"] == "constant 1.5"
    assert "setting" not in rows[0] and "accuracy" not in rows[0] and "circumstances" not in rows[0]
    assert any("rows header" in note for note in table(document(*cells), "shape").notes)


def test_what_differs_between_variants_has_a_column():
    cells = [
        cell("hmm rows", "a", study="s", task="hmm"),
        cell("hmm tokens", "a", study="s", task="hmm", task_options={"header": "tokens"}),
        cell("recall", "a", study="s", numbers={"accuracy": 0.5}),
    ]
    rows = lines(document(*cells), "s")
    assert [x["setting"] for x in rows] == ["hmm rows", "hmm tokens", "recall"]
    assert rows[1]["circumstances"].startswith("token header")
    assert rows[2]["accuracy"] == "50.0% (1 seed)"


def test_models_of_the_papers_size_stand_beside_the_papers():
    numbers = {"entropy_mae_of_mean": 0.0055}
    large = cell(
        "bijection",
        "6 x 192",
        study="paper-size",
        task_options=THEIRS["bijection"],
        numbers=numbers,
    )
    (row,) = lines(document(large), "paper-size")
    assert row["paper"] == "0.003 / 0.007" and row["beside the paper"] == "agrees"


@pytest.mark.parametrize(
    "own,start,after,whole_after",
    [
        ([(1, 1.0), (10, 0.2), (10_000, 0.02)], "0.2", "10x", "2000x"),  # it was evaluated there
        ([(1, 1.0), (10_000, 0.02)], "0.1", "5x", "1000x"),  # it was not: on the way of the other
    ],
)
def test_what_is_gained_after_freezing(own, start, after, whole_after):
    curve = [(1, 1.0), (100, 0.01), (10_000, 0.0001)]
    whole = cell("bijection", "nothing frozen", study="freezing", curve=curve, numbers={"kl": 1e-4})
    row = "routing frozen at 10"
    frozen = cell("bijection", row, study="freezing", x=10.0, curve=own, numbers={"kl": 0.02})
    first, second = lines(document(whole, frozen), "freezing")
    assert first["gained after"] == "-"
    assert second["kl at freezing"] == f"{start} (1 seed)"
    assert second["gained after"] == f"{after} (1 seed)"
    assert second["gained with nothing frozen"] == f"{whole_after} (1 seed)"


def test_between_evaluations_a_curve_is_straight_on_log_scales():
    curve = Curve([10, 1000], [1.0, 0.01])
    assert freezing.at(curve, 100) == pytest.approx(0.1) and freezing.at(curve, 10) == 1.0
    assert math.isnan(freezing.at(curve, 5)) and math.isnan(freezing.at(curve, 2000))


def test_diagnostics_are_told_over_all_seeds():
    cells = [
        cell(seed=seed, geometry={"pc1": value, "layer_least": 2.0})
        for seed, value in enumerate((0.8, 0.9, 0.7))
    ]
    cells.append(cell(row="lstm"))
    (row,) = lines(document(*cells), "geometry-architecture")
    assert row == {"": "pc1", "hmm: transformer": "0.8 ± 0.1", "paper": paper.GEOMETRY["pc1"]}
    (row,) = lines(document(*cells), "ablation-architecture")
    assert row["hmm: transformer"] == "2 ± 0"
    told = table(document(*cells), "geometry-architecture").notes[0]
    legends = [x.legend for x in diagnostics.in_order() if "pc1" in x.numbers]
    assert legends[0][1:] in told


def test_longer_sequences_beside_the_papers():
    some = cell().metrics
    longer = {"30": {**some, "entropy_mae": Estimate(0.2, None)}}
    small = cell(lengths=longer)
    large = cell("hmm", "9 x 256", study="paper-size", lengths=longer)
    rows = lines(document(small, large, cell("hmm", "mlp")), "lengths")
    assert [(x["study"], x["model"]) for x in rows] == [
        ("architecture", "transformer"),
        ("paper-size", "9 x 256"),
        ("paper", "transformer"),
        ("paper", "mlp"),
    ]
    assert rows[0]["length 20"] == "0.01 (1 seed)" and rows[0]["length 30"] == "0.2 (1 seed)"
    assert rows[2]["length 30"] == "0.012" and "token header" in rows[2]["circumstances"]


def test_what_is_not_finished_is_listed_by_name():
    begun = cell(seed=1, status="not finished", chosen=False)
    failed = cell(seed=2, status="failed", chosen=False, curve=())
    diverged = cell(seed=3, status="diverged", chosen=False)
    results = document(cell(), begun, failed, diverged)
    faults = {failed.name: "out of memory", "x-geometry": "no run"}
    rows = lines(replace(results, faults=faults), "unfinished")
    steps = begun.config["steps"]
    assert [list(x.values()) for x in rows] == [
        [begun.name, f"100 of {steps:,}", "-"],
        [failed.name, f"0 of {steps:,}", "out of memory"],
        ["x-geometry", "-", "no run"],
    ]


def test_tables_can_be_made_of_nothing():
    text = StudyText("shape", "Shape", "What?", "", False)
    empty = document(studies=[text])
    assert not any(x.rows for x in tables.build(empty))


def test_every_number_of_the_diagnostics_has_a_name_in_words():
    shown = diagnostics.DIAGNOSTICS
    numbers = {name for x in shown for name in (*x.numbers, *x.by_layer)}
    assert numbers == names.NUMBERS.keys() and not numbers & names.METRICS.keys()


def test_the_page_has_names_in_words_and_the_markdown_those_of_the_files():
    found = document(cell(study="lookup"))
    text = page.html(found)
    assert '<th><span title="kl">KL / bits</span></th>' in text and "<th>kl</th>" not in text
    assert "| kl |" in page.markdown(found)
