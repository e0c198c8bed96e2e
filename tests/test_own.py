"""Tasks and models that are not ours: registered, offered by packages, and the worked examples."""

import dataclasses
import importlib
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import ROOT, tiers

import bwt
from bwt import models, registry, tasks
from bwt.cli import main
from bwt.runs.files import RunError

EXAMPLES = ROOT / "examples"
TINY = ("--steps", "4", "--evaluations", "2", "--eval-sequences", "16", "--batch-size", "8")


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch):
    """Neither what a test registers nor what it imports."""
    for kind in (tasks.TASKS, models.MODELS):
        monkeypatch.setattr(kind, "registered", {})
        monkeypatch.setattr(kind, "offers", None)
        monkeypatch.setattr(kind, "complaints", set())
    monkeypatch.setattr(registry, "_imported", {})
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("own_", "coins")):
            del sys.modules[name]


def example(monkeypatch, name):
    monkeypatch.setenv("BWT_IMPORT", str(EXAMPLES / f"{name}.py"))


def run(*words):
    assert main([str(word) for word in words]) == 0


def test_an_own_task_can_do_all_that_ours_can(monkeypatch, tmp_path, capsys):
    example(monkeypatch, "own_task")
    out = tmp_path / "coin"
    run("train", "coin", "--layers", 1, "--width", 8, "--length", 6, *TINY, "--out", out)
    assert "The task coin: 2 outcomes, 5 positions." in capsys.readouterr().out
    run("eval", out, "--sequences", 16)
    run("geometry", out, "--sequences", 16)
    told = capsys.readouterr().out
    assert "Not measured: the task has no pairs of keys and values to look up." in told
    run("ablate", out, "--sequences", 16)
    assert "sequences of coin cannot be continued by those of another" in capsys.readouterr().out
    run("report", out)
    page = (out / "report.html").read_text()
    assert "coin" in page and "Not measured." in page
    loaded = bwt.load(out)
    assert loaded.task == tasks.get("coin", length=6)


def test_an_own_model_can_do_all_that_ours_can(monkeypatch, tmp_path, capsys):
    example(monkeypatch, "own_model")
    out = tmp_path / "gru"
    sizes = ("--num-states", 2, "--num-symbols", 2, "--length", 4, "--width", 8)
    run("train", "hmm", "--model", "gru", *sizes, *TINY, "--out", out)
    run("eval", out, "--sequences", 16, "--length", 6)
    run("geometry", out, "--sequences", 16)
    run("ablate", out, "--sequences", 16)
    run("report", out)
    found = json.loads((out / "geometry.json").read_text())
    assert {"manifold", "probes", "lens", "clusters", "ablation", "splice"} <= found.keys()
    parts = {row["part"] for row in found["ablation"]["parts"]}
    assert parts == {"block"}, "what returns a pair cannot be taken out"
    _, model, _ = bwt.load(out)
    with bwt.capture(model, "blocks.1", "blocks.0.hook_resid_post") as trace:
        model(*next_batch(bwt.load(out).task))
    assert trace["blocks.1"].shape[-1] == 8


def next_batch(task):
    batch = task.sample(2, generator=torch.Generator().manual_seed(0))
    return batch.tokens, batch.features


@pytest.mark.parametrize(
    "words",
    tiers.mark("slow", [("coin",), ("bijection", "--model", "gru", "--num-symbols", "3")], (0,)),
)
def test_a_sweep_tells_its_processes_what_to_import(monkeypatch, tmp_path, capsys, words):
    """Here it is registered by hand; a process of its own has to know from where."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("PYTHONPATH", f"{EXAMPLES}:{ROOT}")
    importlib.import_module("own_task" if words[0] == "coin" else "own_model")
    run("sweep", *words, "--layers", 1, "--width", 8, *TINY, "--out", tmp_path, "--jobs", 1)
    assert "finished" in capsys.readouterr().out


def test_a_run_of_an_unknown_task_says_what_to_import(monkeypatch, tmp_path):
    with monkeypatch.context() as there:
        example(there, "own_task")
        out = tmp_path / "coin"
        run("train", "coin", "--layers", 1, "--width", 8, "--length", 6, *TINY, "--out", out)
    nowhere = {"registered": {}, "offers": None}
    for name, value in nowhere.items():
        monkeypatch.setattr(tasks.TASKS, name, value)
    source = str(EXAMPLES / "own_task.py")
    with pytest.raises(RunError, match=f"'coin' is not known here.*BWT_IMPORT={source}$"):
        bwt.load(out)


def test_examples_run_as_scripts():
    """They print how far they are from Bayes; shortened, to be quick."""
    for name in ("own_task", "own_model"):
        code = (EXAMPLES / f"{name}.py").read_text().replace("steps=300", "steps=3")
        assert "steps=3," in code
        done = subprocess.run(
            [sys.executable, "-P", "-c", code], capture_output=True, text=True, cwd=ROOT
        )
        assert "bits from Bayes" in done.stdout, done.stderr


def test_laplace_by_counting(monkeypatch):
    """The posterior of the example against the integral over biases, on a fine grid."""
    example(monkeypatch, "own_task")
    task = tasks.get("coin", length=7)
    batch = task.sample(32, generator=torch.Generator().manual_seed(0))
    bias = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    for row, throws in enumerate(batch.tokens):
        weight = torch.ones_like(bias)
        for step, heads in enumerate(throws.tolist()):
            weight = weight * (bias if heads else 1 - bias)
            want = (weight * bias).sum() / weight.sum()
            assert abs(batch.posterior[row, step, 1] - want) < 1e-6


@dataclasses.dataclass(frozen=True)
class Own(tasks.Bijection):
    """Nothing new."""


def test_names_that_are_taken_are_refused():
    for name in ("hmm", "bijection"):
        with pytest.raises(ValueError, match=f"there is a task '{name}' already"):
            tasks.register(name, Own)
    with pytest.raises(ValueError, match="there is a model 'mamba' already"):
        models.register("mamba", models.MODELS["mlp"])
    tasks.register("own", Own)
    with pytest.raises(ValueError, match="there is a task 'own' already"):
        tasks.register("own", type("Other", (tasks.Recall,), {}))


def test_a_cell_of_a_notebook_may_be_run_again():
    def cell():
        @tasks.register("again")
        class Again(tasks.Bijection):
            """Defined anew each time."""

        return Again

    first, second = cell(), cell()
    assert first is not second and tasks.TASKS["again"] is second


class NoDraw(tasks.Task):
    vocab_size = num_outcomes = seq_len = 2
    posterior = positions_on = None


class Undecorated(tasks.Bijection):
    more: int = dataclasses.field(default=1)


class WithoutOptions(models.Model):
    pass


@pytest.mark.parametrize(
    "kind,cls,complaint",
    [
        (tasks, dict, "is not a subclass of bwt.tasks.Task"),
        (tasks, NoDraw, "NoDraw does not define draw"),
        (tasks, Undecorated, r"\(more\) need @dataclass\(frozen=True\)"),
        (models, torch.nn.Linear, "is not a subclass of bwt.models.Model"),
        (models, WithoutOptions, "WithoutOptions.options_class is not a dataclass"),
    ],
)
def test_what_is_no_task_or_model_is_refused(kind, cls, complaint):
    with pytest.raises(ValueError, match=complaint):
        kind.register("mine", cls)
    with pytest.raises(ValueError, match="a name is letters"):
        kind.register("my own", cls)


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(ValueError, match="no task 'bijektion'; did you mean bijection"):
        tasks.get("bijektion")
    with pytest.raises(ValueError, match="no model 'x'; choose one of transformer, mamba"):
        models.build("x", vocab_size=2, num_outcomes=2, seq_len=2)


def test_a_module_that_cannot_be_imported_is_named(monkeypatch):
    monkeypatch.setenv("BWT_IMPORT", "no_such_module")
    with pytest.raises(ValueError, match="BWT_IMPORT: no_such_module cannot be imported"):
        tasks.get("coin")
    assert tasks.get("hmm").name == "hmm"  # ours do not ask


def install(folder: Path, package: str, entry_points: str, **modules: str) -> None:
    """As pip would leave it."""
    info = folder / f"{package}-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(entry_points)
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)


COIN = (EXAMPLES / "own_task.py").read_text()


def test_a_package_adds_a_task_and_a_broken_one_breaks_nothing(
    monkeypatch, tmp_path, capsys, caplog
):
    points = "[bwt.tasks]\ncoin = coins:Coin\nhmm = coins:Coin\n"
    install(tmp_path, "coins", points, coins=COIN)
    install(tmp_path, "ruins", "[bwt.tasks]\nruin = coins_ruin:Ruin\n", coins_ruin="import nothing")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert list(tasks.TASKS) == ["bijection", "hmm", "recall", "coin", "ruin"]
    assert "coins" not in sys.modules
    assert tasks.get("coin", length=4).seq_len == 3
    assert type(tasks.get("hmm")) is tasks.HMM
    complaint = "task 'ruin' of package ruins 1.2 cannot be loaded: ModuleNotFoundError: No module"
    with pytest.raises(ValueError, match=complaint):
        tasks.get("ruin")
    with caplog.at_level(logging.WARNING, "bwt"):
        assert [name for name, _ in tasks.TASKS.items()] == ["bijection", "hmm", "recall", "coin"]
    assert [record.message[: len(complaint)] for record in caplog.records].count(complaint) == 1
    assert main(["train", "ruin"]) == 2
    assert capsys.readouterr().err.startswith(f"bwt: {complaint}")
    with pytest.raises(SystemExit):
        main(["train", "coin", "--help"])
    assert "--length N" in capsys.readouterr().out
    out = tmp_path / "run"
    run("train", "coin", "--layers", 1, "--width", 8, *TINY, "--out", out)
    told = json.loads((out / "environment.json").read_text())
    assert told["registered"] == {"task": "coins"}


def test_two_packages_with_one_name_are_both_named(monkeypatch, tmp_path):
    for name in ("coins", "coinage"):
        install(tmp_path, name, f"[bwt.tasks]\ncoin = {name}:Coin\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    complaint = r"'coin' of package .* and package .*: two packages offer it"
    with pytest.raises(ValueError, match=complaint):
        tasks.get("coin")
    with pytest.raises(ValueError, match="there is a task 'coin' already"):
        tasks.register("coin", Own)


def test_a_package_adds_a_model(monkeypatch, tmp_path):
    text = (EXAMPLES / "own_model.py").read_text()
    install(tmp_path, "coins", "[bwt.models]\ngru = coins:GRU\n", coins=text)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "gru" in models.MODELS and "coins" not in sys.modules
    model = models.build("gru", vocab_size=3, num_outcomes=2, seq_len=4, width=8)
    assert model(torch.tensor([[0, 1, 2, 0]])).shape == (1, 4, 2)
    assert not models.matchable("gru")


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """None."""


class Bare(models.Model):
    """Has nothing inside that could be looked at."""

    options_class = NoOptions

    def __init__(self, shape, options):
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros(shape.vocab_size, shape.num_outcomes))

    def forward(self, tokens, features=None, positions=None):
        return self.table[tokens if positions is None else tokens[:, positions]]


def test_what_a_model_does_not_have_is_left_out_with_the_reason(tmp_path, capsys):
    models.register("bare", Bare)
    out = tmp_path / "bare"
    run("train", "bijection", "--model", "bare", "--num-symbols", 4, *TINY, "--out", out)
    run("geometry", out, "--sequences", 16)
    run("ablate", out, "--sequences", 16)
    told = capsys.readouterr().out
    assert told.count("Not measured: the model has no modules `embed` and `blocks`") >= 3
    run("report", out)
    found = json.loads((out / "geometry.json").read_text())
    sections = {name: x for name, x in found.items() if isinstance(x, dict)}
    skipped = {name for name, section in sections.items() if "reason" in section}
    assert {"manifold", "probes", "lens", "clusters", "dissociation", "ablation"} <= skipped
    assert "attention" not in found and "examples" in sections.keys() - skipped
