"""Frozen weights stay as they are to the bit, all others train on, and what came before the freeze
is the run without it."""

import dataclasses
import os
import signal

import pytest
import torch
from helpers.same_runs import losses, same_files
from helpers.small_runs import interrupt_at

from bwt import train
from bwt.cli import main
from bwt.runs.checkpoints import load_state, load_weights
from bwt.runs.config import TrainConfig
from bwt.train.freezing import frozen_rows
from bwt.train.optim import MOMENTUM, orthogonalise
from bwt.train.schedule import lr_factor

S, STEPS, WIDTH = 12, 20, 16
FREE = TrainConfig(
    task="bijection",
    task_options=dict(num_symbols=4),
    model_options=dict(layers=2, heads=2, width=WIDTH),
    steps=STEPS,
    batch_size=8,
    lr=1e-2,
    decay="none",
    evaluations=6,
    eval_sequences=32,
)
VARIANTS = {
    "adamw": dict(weight_decay=0.1),
    "muon-averaged": dict(optimizer="muon", average=0.5),  # the mean begins before the freeze
    "ema": dict(ema=0.9, optimizer="muon", weight_decay=0.1, clip=0.0),
}


def branch(part, variant="adamw", **settings):
    chosen = {} if part == "none" else dict(freeze=part, freeze_at=S)
    return dataclasses.replace(FREE, **{**VARIANTS[variant], **chosen, **settings})


def build(config):
    return train.build_step(config, torch.device("cpu"))


def weights(trained):
    return {name: p.detach().clone() for name, p in trained.model.named_parameters()}


def frozen_by_hand(part, name):
    """Rows of a parameter that the part is said to hold."""
    if name.endswith("attn.qkv.weight"):
        return slice(0, 2 * WIDTH) if part == "routing" else slice(2 * WIDTH, None)
    inside = ".attn.proj." in name or ".mlp." in name
    return slice(None) if part == "content" and inside else slice(0)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("part", ["routing", "content"])
def test_what_is_frozen_does_not_change_by_a_bit_and_all_else_does(part, variant):
    trained = build(branch(part, variant))
    free = build(branch("none", variant))
    for _ in range(S):
        trained.update(), free.update()
    before, same = weights(trained), weights(free)
    assert all(torch.equal(p, same[name]) for name, p in before.items())
    for _ in range(S, STEPS):
        trained.update()
        held = 0
        for name, p in trained.model.named_parameters():
            rows = frozen_by_hand(part, name)
            assert torch.equal(p[rows], before[name][rows]), name
            if trained.best() is trained.average:
                assert torch.equal(trained.average[name][rows], before[name][rows]), name
            held += p[rows].numel()
        assert held > 1000
    for name, p in trained.model.named_parameters():
        rest = torch.ones(len(p), dtype=bool)
        rest[frozen_by_hand(part, name)] = False
        moved = (p != before[name])[rest]
        assert len(moved) == 0 or moved.float().mean() > 0.5, name


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("part", ["routing", "content"])
def test_until_the_freeze_it_is_the_run_without(part, variant, tmp_path):
    free = train.train(branch("none", variant), tmp_path / "free").run
    frozen = train.train(branch(part, variant), tmp_path / "frozen").run
    assert set(frozen.steps()) == {*free.steps(), S}
    shared = [step for step in free.steps() if step <= S]
    assert shared == [10, 11]
    for step in shared:
        one, two = load_weights(free, step), load_weights(frozen, step)
        assert all(torch.equal(one[name], two[name]) for name in one), step
    assert losses(free)[:S] == losses(frozen)[:S]
    assert losses(free)[-1] != losses(frozen)[-1]


@pytest.mark.parametrize("stop", [S - 2, S, S + 4])
@pytest.mark.parametrize("variant", VARIANTS)
def test_resumed_before_and_after_the_freeze_equals_uninterrupted(
    stop, variant, tmp_path, monkeypatch
):
    config = branch("routing", variant)
    whole = train.train(config, tmp_path / "whole").run
    with monkeypatch.context() as patch:
        interrupt_at(stop, lambda: os.kill(os.getpid(), signal.SIGTERM), patch)
        run = train.train(config, tmp_path / "parts").run
    assert load_state(run)[0] == stop
    train.resume(run.path)
    if stop not in whole.steps():
        run.weights_path(stop).unlink()
    same_files(whole, run)


def test_others_step_as_if_frozen_rows_were_not_there():
    """Muon makes the rows of a step orthogonal to each other: gradients or momentum of the frozen
    ones would turn the step of the rest."""
    trained = build(branch("routing", "muon-averaged", clip=0.0))
    for _ in range(S):
        trained.update()
    p = trained.model.blocks[0].attn.qkv.weight
    before = p.detach().clone()
    name = "blocks.0.attn.qkv.weight"
    momentum = trained.optimizer.state(name)["momentum"][2 * WIDTH :].clone()
    trained.update()
    gradient = p.grad[2 * WIDTH :]
    momentum.lerp_(gradient, 1 - MOMENTUM)
    ahead = torch.lerp(gradient, momentum, MOMENTUM)
    # A step is scaled by the shape of the whole.
    rate = FREE.muon_lr * 3**0.5 * lr_factor(S, trained.config)
    alone = before[2 * WIDTH :] - rate * orthogonalise(ahead[None])[0]
    assert not torch.equal(alone, before[2 * WIDTH :])
    torch.testing.assert_close(p[2 * WIDTH :], alone, atol=1e-5, rtol=0)


def test_from_the_start():
    trained = build(branch("routing", freeze_at=0))
    before = weights(trained)
    trained.update()
    for name, rows in frozen_rows(trained.model, "routing").items():
        assert torch.equal(trained.model.get_parameter(name)[rows], before[name][rows])
    assert not torch.equal(trained.model.head.weight, before["head.weight"])


@pytest.mark.parametrize(
    "words,complaint",
    [
        (["--freeze-at", "3"], "freeze_at 3: say what to freeze then"),
        (["--freeze", "routing", "--freeze-at", "8"], "freeze_at must be below the 8 steps"),
        (["--freeze", "heads"], "invalid choice"),
        (["--freeze", "routing", "--model", "lstm"], "freeze routing needs a model with attention"),
        (["--freeze", "content", "--model", "mamba"], "mamba has none"),
    ],
)
def test_bad_value_is_one_line_and_leaves_no_folder(words, complaint, tmp_path, capsys):
    run = tmp_path / "run"
    argv = ["train", "bijection", "--preset", "quick", "--device", "cpu", "--steps", "8"]
    try:
        assert main([*argv, *words, "--out", str(run)]) == 2
    except SystemExit as stopped:  # of argparse
        assert stopped.code == 2
    assert complaint in capsys.readouterr().err.splitlines()[-1]
    assert not run.exists()
