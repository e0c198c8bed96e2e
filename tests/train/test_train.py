"""Training: learns, stops and resumes without a difference."""

import dataclasses
import io
import itertools
import os
import signal

import pytest
import torch
from helpers.same_runs import same_files
from helpers.small_runs import SMALL, crash, interrupt_at

from bwt import models, tasks, train
from bwt.cli import main
from bwt.progress import Progress
from bwt.report import reading
from bwt.runs.checkpoints import load_state, load_weights, write_tensors
from bwt.runs.config import TrainConfig
from bwt.runs.directory import RunDirectory
from bwt.runs.files import RunError, read_json, write_json
from bwt.runs.loading import build_model
from bwt.runs.presets import resolve
from bwt.train.graphs import why_no_graph
from bwt.train.run import means
from bwt.train.schedule import log_spaced, lr_factor

VARIANTS = {
    "adamw": {},
    "muon-averaged": dict(optimizer="muon", average=0.75, targets="posterior"),
    "ema-cosine": dict(ema=0.9, decay="cosine", clip=0.0, weight_decay=0.1),
    "orthogonal-keys": dict(
        model_options={**SMALL.model_options, "keys": "orthogonal"}, optimizer="muon"
    ),
    "frozen-mlps": dict(
        model_options={**SMALL.model_options, "mlp": "frozen", "norm": "rms"},
        optimizer="muon",
        weight_decay=0.1,
        average=0.75,
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_and_resumed_equals_uninterrupted(variant, number, tmp_path, monkeypatch):
    config = dataclasses.replace(SMALL, **VARIANTS[variant])
    whole = train.train(config, tmp_path / "whole")
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patch:
        interrupt_at(5, lambda: os.kill(os.getpid(), number), patch)
        first = train.train(config, tmp_path / "parts")
    assert first.signal == number and first.evaluation is None and first.step < 12
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    stopped_at = first.step
    second = train.resume(tmp_path / "parts")
    assert second.step == 12 and second.signal is None
    # The stop left one checkpoint more.
    extra = second.run.weights_path(stopped_at)
    if not whole.run.weights_path(stopped_at).exists():
        extra.unlink()
    same_files(whole.run, second.run)


def test_resumed_after_a_crash_equals_uninterrupted(tmp_path, monkeypatch):
    whole = train.train(SMALL, tmp_path / "whole")
    with monkeypatch.context() as patch:
        interrupt_at(11, crash, patch)
        with pytest.raises(MemoryError):
            train.train(SMALL, tmp_path / "parts")
    # A line cut off, and later files than the state a resume starts from.
    with open(tmp_path / "parts/metrics.jsonl", "a") as file:
        file.write('{"step": 11, "lo')
    same_files(whole.run, train.resume(tmp_path / "parts").run)


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    whole = train.train(SMALL, tmp_path / "a")
    before = {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()}
    again = train.resume(tmp_path / "a")
    assert again.evaluation.to_json() == whole.evaluation.to_json()
    assert before == {path: path.read_bytes() for path in before}


@pytest.mark.parametrize("name", models.MODELS)
def test_learns(name, tmp_path):
    options = dict(width=32)
    config = resolve(
        "bijection",
        name,
        "quick",
        settings=dict(steps=150, batch_size=64, eval_sequences=256, evaluations=2),
        task_options=dict(num_symbols=4, replacement=False),
        model_options=options,
    )
    result = train.train(config, tmp_path / "run")
    rows = result.run.read_metrics()
    uniform = sum(torch.log2(torch.tensor(4 / n)).item() for n in (4, 3, 2)) / 3
    assert means(result.evaluation)["kl"] < 0.2 * uniform
    assert rows[-1].evaluation == means(result.evaluation)
    assert abs(rows[-1].excess) < 0.2 < rows[0].excess


def test_bijection_draws_keys_with_replacement_unless_told_otherwise():
    assert tasks.get("bijection").replacement
    for name in ("quick", "paper", "authors"):
        assert resolve("bijection", "mlp", name).task_options["replacement"]
        chosen = resolve("bijection", "mlp", name, task_options=dict(replacement=False))
        assert not chosen.task_options["replacement"]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_frozen_mlps_keep_their_weights_and_the_rest_is_trained(optimizer, tmp_path):
    options = {**SMALL.model_options, "mlp": "frozen", "norm": "rms"}
    config = dataclasses.replace(
        SMALL, model_options=options, optimizer=optimizer, weight_decay=0.1, average=0.5
    )
    before = build_model(config, tasks.get("bijection", num_symbols=4)).state_dict()
    run = train.train(config, tmp_path / "run").run
    for name, weights in load_weights(run).items():
        assert torch.equal(weights, before[name]) == ("mlp" in name), name
    state = load_state(run)[1]
    assert not any("mlp" in name for name in state if name.startswith("optimizer/"))


def test_a_run_of_before_an_option_loads(tmp_path):
    """As every run has: a config that lacks options of now, and weights that it describes."""
    options = dataclasses.asdict(models.options_class("transformer")(**SMALL.model_options))
    run = train.train(dataclasses.replace(SMALL, model_options=options), tmp_path / "run").run
    config = read_json(run.path / "config.json")
    for name in ("position_table", "mlp"):
        del config["model_options"][name]
    write_json(run.path / "config.json", config)
    _, model, _ = train.load(run.path)
    for name, weights in load_weights(run).items():
        assert torch.equal(model.state_dict()[name], weights)


def parameters(config: TrainConfig) -> int:
    task = tasks.get(config.task, **config.task_options)
    with torch.device("meta"):
        return models.build_for(task, config.model, **config.model_options).num_parameters


@pytest.mark.parametrize("task", tasks.TASKS)
def test_the_papers_preset_matches_models_at_equal_depth(task):
    transformer = resolve(task, "transformer", "paper")
    for name in models.MODELS:
        config = resolve(task, name, "paper")
        assert config.model_options["layers"] == transformer.model_options["layers"]
        assert parameters(config) == pytest.approx(parameters(transformer), rel=0.01)
    shallow = resolve(task, "lstm", "paper", model_options=dict(layers=1))
    assert shallow.model_options["layers"] == 1
    assert parameters(shallow) == pytest.approx(parameters(transformer), rel=0.01)


@pytest.mark.parametrize(
    "task,model,count",
    [
        ("bijection", "transformer", 2_677_440),
        ("bijection", "lstm", 1_794_048),
        ("hmm", "transformer", 7_398_661),
        ("hmm", "lstm", 4_765_701),
    ],
)
def test_models_have_the_size_of_the_authors(task, model, count):
    """Counted in their code; norms and heads differ a little. (Their Mamba is another one.)"""
    assert parameters(resolve(task, model, "authors")) == pytest.approx(count, rel=0.005)


def test_the_authors_recipes():
    bijection, hmm = (resolve(task, "transformer", "authors") for task in ("bijection", "hmm"))
    assert bijection.task_options["replacement"] and bijection.model_options["tied"]
    assert (bijection.lr, bijection.beta2, bijection.weight_decay) == (3e-4, 0.95, 0.1)
    assert (hmm.task_options["header"], hmm.task_options["floor"]) == ("tokens", 0.05)
    assert (hmm.targets, hmm.warmup, hmm.beta2) == ("posterior", 0.0, 0.999)
    longer = tasks.get("hmm", **{**hmm.task_options, "length": 50})
    assert hmm.model_options["position_table"] >= longer.seq_len
    mamba, lstm = (resolve("hmm", model, "authors") for model in ("mamba", "lstm"))
    assert (mamba.lr, mamba.clip, mamba.decay, mamba.steps) == (1e-4, 0.5, "none", 23437)
    assert [x.model_options["layers"] for x in (mamba, lstm)] == [9, 9]
    assert [x.model_options["width"] for x in (mamba, lstm)] == [256, 256]
    mlp = resolve("hmm", "mlp", "authors", settings=dict(lr=1.0))
    assert (mlp.model_options["layers"], mlp.model_options["width"]) == (18, 384)
    assert (mlp.lr, mlp.steps) == (1.0, hmm.steps)
    assert resolve("hmm", "mlp", "authors", model_options=dict(width=8)).model_options["width"] == 8


def test_the_averaged_weights_are_the_ones_saved_and_evaluated(tmp_path):
    config = dataclasses.replace(SMALL, average=0.5)
    step = train.build_step(config, torch.device("cpu"))
    run = train.Run(RunDirectory.create(tmp_path / "run"), config, step)
    parameters = dict(step.model.named_parameters())
    seen = []
    for _ in range(12):
        step.update()
        seen.append([p.detach().clone() for p in parameters.values()])
    run.save()
    saved = load_weights(run.directory, 12)
    names = list(parameters)
    for i, name in enumerate(names):
        want = torch.stack([weights[i] for weights in seen[6:]]).double().mean(0)
        torch.testing.assert_close(saved[name].double(), want, atol=1e-6, rtol=1e-5)
    # The trained ones are in place again.
    assert all(torch.equal(p, q) for p, q in zip(parameters.values(), seen[-1], strict=True))


def test_the_state_of_an_older_version_is_refused_in_one_line(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_at(5, lambda: os.kill(os.getpid(), signal.SIGTERM), patch)
        run = train.train(SMALL, tmp_path / "run").run
    step, state = load_state(run)
    older = {**state, "counts": torch.tensor([5, 0])}
    del older["run/logged"]
    write_tensors(run.state_path(step), older, {})
    with pytest.raises(RunError, match="is not the state of this run"):
        train.resume(run.path)


def test_a_model_is_the_same_wherever_it_is_built_and_leaves_the_generators_alone():
    before = torch.get_rng_state()
    task = tasks.get("bijection", num_symbols=4)
    one, two = (build_model(SMALL, task).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert torch.equal(torch.get_rng_state(), before)


def test_fixed_keys_are_saved_and_stay(tmp_path):
    options = {**SMALL.model_options, "keys": "orthogonal"}
    run = train.train(dataclasses.replace(SMALL, model_options=options), tmp_path / "run").run
    task, model, config = train.load(run.path)
    fresh, name = build_model(config, task), "blocks.0.attn.qkv.fixed_key"
    for step in run.steps():
        assert torch.equal(load_weights(run, step)[name], fresh.state_dict()[name])
    assert reading.read(run.path).num_parameters == model.num_parameters
    moved = "blocks.0.attn.qkv.query_value.weight"
    assert not torch.equal(model.state_dict()[moved], fresh.state_dict()[moved])


def test_schedule():
    config = dataclasses.replace(SMALL, steps=100, warmup=0.1)
    factors = [lr_factor(step, config) for step in range(100)]
    assert factors[0] == 0.1 and factors[9] == 1.0 and max(factors) == 1.0
    assert all(a > b for a, b in zip(factors[9:], factors[10:], strict=False))
    assert 0 < factors[-1] < 0.02
    cosine = dataclasses.replace(config, decay="cosine")
    assert 0 < lr_factor(99, cosine) < 0.001
    assert lr_factor(99, dataclasses.replace(config, decay="none")) == 1.0


def test_log_spaced():
    steps = sorted(log_spaced(10_000, 10, first=10))
    assert steps[0] == 10 and steps[-1] == 10_000 and 8 <= len(steps) <= 11
    ratios = [b / a for a, b in zip(steps, steps[1:], strict=False)]
    assert max(ratios) / min(ratios) < 1.2
    assert log_spaced(3, 100) == {1, 2, 3}


def test_log_spaced_is_what_it_says_and_cheap_for_any_count():
    for last, count, first in itertools.product((1, 7, 40, 999, 12_345), (1, 2, 12, 100), (1, 10)):
        first = min(first, last)
        ratio = (last / first) ** (1 / max(1, count - 1))
        plain = {min(last, round(first * ratio**i)) for i in range(count)}
        assert log_spaced(last, count, first) == plain | {last}
    assert log_spaced(50, 10**12) == set(range(1, 51))


def test_progress_is_drawn_for_a_person_only():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for file, seen in ((Terminal(), True), (io.StringIO(), False)):
        progress = Progress(200, 0, quiet=False, file=file)
        progress.drawn -= 1
        assert progress.due() == seen
        if seen:
            progress.draw(50, "excess 0.1 bits", tokens_per_step=10)
            assert not progress.due()
            text = file.getvalue()
            assert "50/200  excess 0.1 bits" in text and "steps/s" in text and "left" in text
            assert text.count("█") * 3 == text.count("░")
        progress.clear()
        assert (file.getvalue() == "") != seen
    assert not Progress(200, 0, quiet=True, file=Terminal()).due()


@pytest.mark.parametrize(
    "change,complaint",
    [
        (dict(steps=0), "steps must be at least 1"),
        (dict(eval_sequences=1), "eval_sequences must be at least 2"),
        (dict(lr=float("nan")), "lr must be a number"),
        (dict(lr=-1.0), "lr must be at least 0"),
        (dict(steps="12"), "steps must be int, got '12'"),
        (dict(evaluations=10**9), "evaluations must be at most 100000"),
        (dict(on_divergence="hope"), "on_divergence must be one of stop, continue"),
        (dict(warmup=1.0), r"warmup must be in \[0, 1\)"),
        (dict(targets="soft"), "targets must be one of sampled, posterior"),
        (dict(device="cpu", compile="graphs"), "needs a GPU"),
    ],
)
def test_bad_config(change, complaint):
    with pytest.raises(ValueError, match=complaint):
        dataclasses.replace(SMALL, **change)


def test_cuda_graphs_of_a_compiler_need_the_gpu_that_is_taken(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    config = dataclasses.replace(SMALL, compile="graphs", device="auto")
    with pytest.raises(ValueError, match="means CUDA graphs, and this runs on cpu"):
        train.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("exists", [False, True])
def test_a_start_that_fails_can_be_tried_again(tmp_path, monkeypatch, exists):
    """There or not, the directory is as before, and the same command works then."""
    path = tmp_path / "runs/run"
    if exists:
        path.mkdir(parents=True)

    def fail(*arguments, **options):
        raise MemoryError("no memory for the model")

    with monkeypatch.context() as patch:
        patch.setattr("bwt.train.loop.set_threads", fail)
        with pytest.raises(MemoryError):
            train.train(SMALL, path)
    assert not path.exists() or not any(path.iterdir())
    assert train.train(SMALL, path).evaluation is not None


def test_a_run_that_has_begun_is_not_taken_back(tmp_path, monkeypatch):
    def fail(run, monitor):
        raise MemoryError("no memory for a step")

    with monkeypatch.context() as patch:
        patch.setattr("bwt.train.loop._train", fail)
        with pytest.raises(MemoryError):
            train.train(SMALL, tmp_path / "run")
    assert train.resume(tmp_path / "run").evaluation is not None


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    train.train(SMALL, path)
    return path


def copy(source, target):
    for path in source.rglob("*"):
        if path.is_file():
            copied = target / path.relative_to(source)
            copied.parent.mkdir(parents=True, exist_ok=True)
            copied.write_bytes(path.read_bytes())
    return RunDirectory(target)


def test_load(finished):
    task, model, config = train.load(finished)
    assert (task, config) == (tasks.get("bijection", num_symbols=4), SMALL)
    weights = load_weights(RunDirectory(finished))
    assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters())
    with pytest.raises(ValueError, match="has no checkpoint of step 3"):
        train.load(finished, 3)


@pytest.mark.parametrize("cut", ["half", "empty", "garbage"])
def test_a_damaged_file_is_answered_in_one_line(cut, finished, tmp_path):
    run = copy(finished, tmp_path / "run")
    for path in (run.weights_path(12), run.state_path(12)):
        data = path.read_bytes()
        path.write_bytes(
            {"half": data[: len(data) // 2], "empty": b"", "garbage": b"\x80" * 99}[cut]
        )
    for read in (lambda: train.load(run.path), lambda: train.resume(run.path)):
        with pytest.raises(RunError, match="is corrupt or truncated") as caught:
            read()
        assert "\n" not in str(caught.value)


def test_weights_of_another_model_are_refused(finished, tmp_path):
    run = copy(finished, tmp_path / "run")
    config = run.read_config()
    config["model_options"]["width"] = 32
    write_json(run.path / "config.json", config)
    with pytest.raises(RunError, match="do not fit its config") as caught:
        train.load(run.path)
    assert "\n" not in str(caught.value)


def test_no_run_there(tmp_path, finished):
    with pytest.raises(ValueError, match="is not a run directory"):
        train.load(tmp_path)
    with pytest.raises(ValueError, match="exists already"):
        train.train(SMALL, finished)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json cannot be read"):
        train.load(tmp_path)


def test_state_is_kept_beside_the_last_checkpoint_only(finished):
    states = [path.name for path in (finished / "checkpoints").glob("*.state.*")]
    assert states == ["step_00000012.state.safetensors"]
    assert len(RunDirectory(finished).steps()) >= 2


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    write_json(path, 1)

    def fail(source, target):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_json(path, 2)
    assert read_json(path) == 1 and list(tmp_path.iterdir()) == [path]


def test_equal_size_for_other_models():
    counts = {
        name: models.build_for(
            tasks.get(config.task, **config.task_options), name, **config.model_options
        ).num_parameters
        for name in models.MODELS
        for config in [resolve("recall", name, "quick")]
    }
    for name, count in counts.items():
        assert abs(count / counts["transformer"] - 1) <= 0.01, name


@pytest.mark.parametrize(
    "settings,reason",
    [
        (dict(device="cpu"), "CUDA graphs need a GPU, and this runs on cpu"),
        (dict(device="cuda", compile="on"), "captured by torch itself"),
    ],
)
def test_why_a_step_is_not_a_graph(settings, reason):
    config = dataclasses.replace(SMALL, **settings)
    assert reason in why_no_graph(config, torch.device(config.device))


def test_graphs_without_a_gpu_are_refused_in_one_line_and_leave_nothing(tmp_path, capsys):
    words = ["train", "bijection", "--device", "cpu", "--graph", "on", "--out", str(tmp_path / "a")]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "graph on: CUDA graphs need a GPU" in error
    assert not (tmp_path / "a").exists()
