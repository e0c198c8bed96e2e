"""Records as tables."""

import builtins
import math

import pytest
import torch

from bwt import tasks
from bwt.evaluate import evaluate
from bwt.records.estimates import Estimate
from bwt.records.frames import to_dataframe
from bwt.records.geometry import KeyEdit
from bwt.records.metrics import MetricsRow
from bwt.runs.directory import RunDirectory

TASK = tasks.get("hmm", num_states=2, num_symbols=2, length=3)


def evaluation():
    return evaluate(
        lambda batch: torch.full_like(batch.posterior, -math.log(2)), TASK, num_sequences=16
    )


def test_without_pandas_it_says_what_to_install(monkeypatch, tmp_path):
    def import_module(name, *more):
        if name == "pandas":
            raise ImportError
        return imported(name, *more)

    imported = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", import_module)
    for make in (evaluation().to_dataframe, RunDirectory(tmp_path).to_dataframe):
        with pytest.raises(ImportError, match="needs pandas: pip install pandas"):
            make()


@pytest.mark.slow
def test_an_evaluation_has_a_row_for_each_predictor():
    pytest.importorskip("pandas", reason="a notebook extra")
    found = evaluation()
    table = found.to_dataframe().set_index("predictor")
    assert list(table.index) == ["model", "exact", *found.floors]
    for metric, estimate in found.model.overall.items():
        assert table.loc["model", metric] == estimate.mean
        assert table.loc["model", f"{metric}_se"] == estimate.se
    assert table.loc["uniform", "kl"] == table.loc["model", "kl"] > 0


@pytest.mark.slow
def test_and_for_each_position():
    pytest.importorskip("pandas", reason="a notebook extra")
    found = evaluation()
    table = found.to_dataframe(per_position=True)
    assert len(table) == 3 * (2 + len(found.floors))
    model = table[table.predictor == "model"]
    assert model.step.tolist() == [1, 2, 3] and model.position.tolist() == found.positions
    assert model.kl.tolist() == found.model.per_position["kl"].mean


@pytest.mark.slow
def test_metrics_of_a_run(tmp_path):
    pytest.importorskip("pandas", reason="a notebook extra")
    run = RunDirectory(tmp_path)
    run.append_metrics(MetricsRow(1, 0.5, 64, 2.0, 1.0))
    run.append_metrics(MetricsRow(2, 1.0, 128, 1.5, 0.5, evaluation={"kl": 0.25}))
    table = run.to_dataframe()
    assert table.step.tolist() == [1, 2] and table.loss.tolist() == [2.0, 1.5]
    assert table["evaluation.kl"].isna().tolist() == [True, False]
    assert table["evaluation.kl"][1] == 0.25


@pytest.mark.slow
def test_records_of_any_kind():
    pytest.importorskip("pandas", reason="a notebook extra")
    rows = [KeyEdit("alike", 0, Estimate(0.5, 0.1), Estimate(0.25, None))]
    (row,) = to_dataframe(rows).to_dict("records")
    assert row["edit"] == "alike" and row["layer"] == 0
    assert (row["kl_added"], row["kl_added_se"]) == (0.5, 0.1)
    assert row["entropy_mae_added"] == 0.25 and row["entropy_mae_added_se"] is None
