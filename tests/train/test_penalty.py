"""A penalty on the keys moves them, and is in nothing that is logged."""

import dataclasses

import pytest
import torch
from helpers.same_runs import losses, same_files
from helpers.small_runs import crash, interrupt_at

from bwt import tasks, train
from bwt.geometry.keys import keys
from bwt.geometry.subject import Subject
from bwt.runs.config import TrainConfig
from bwt.train.penalty import KeyPenalty, squared_cosine

CONFIG = TrainConfig(
    task="bijection",
    task_options=dict(num_symbols=5, num_pairs=6, replacement=True),
    model_options=dict(layers=1, heads=2, width=16, norm="layer", logit_scale=4.0),
    steps=20,
    batch_size=8,
    lr=1e-2,
    evaluations=3,
    eval_sequences=64,
)


def test_squared_cosine_by_brute_force():
    k, apart = torch.randn(3, 2, 5, 4), torch.rand(3, 5, 5) < 0.6
    centred = k - k.mean(2, keepdim=True)
    values = [
        torch.cosine_similarity(centred[b, h, i], centred[b, h, j], dim=0).square()
        for b, i, j in apart.nonzero().tolist()
        for h in range(2)
    ]
    torch.testing.assert_close(squared_cosine(k, apart), torch.stack(values).mean())
    shared = squared_cosine(k + 5 * torch.randn(3, 2, 1, 4), apart)
    torch.testing.assert_close(shared, squared_cosine(k, apart), atol=1e-5, rtol=1e-5)


def cosine_after(weight, tmp_path):
    config = dataclasses.replace(CONFIG, key_penalty=weight)
    result = train.train(config, tmp_path / f"run {weight}")
    task, model, _ = train.load(result.run.path)
    subject = Subject.draw(task, model, 64)
    group = keys(subject, subject).groups["value tokens"]
    return sum(group.trained.centred[0].mean) / 2, result.run


def test_it_moves_the_keys_the_right_way_and_the_logged_loss_is_the_tasks(tmp_path):
    (apart, _), (plain, run), (aligned, paid) = (
        cosine_after(w, tmp_path) for w in (20.0, 0, -20.0)
    )
    assert apart < plain - 0.02 and aligned > plain + 0.1
    # Before the first step both have the same weights, so the cross-entropy is the same.
    assert losses(run)[0] == losses(paid)[0] and losses(run)[-1] != losses(paid)[-1]


def test_resumed_with_a_penalty_equals_uninterrupted(tmp_path, monkeypatch):
    config = dataclasses.replace(CONFIG, key_penalty=1.0, steps=12, optimizer="muon")
    whole = train.train(config, tmp_path / "whole").run
    with monkeypatch.context() as patch:
        interrupt_at(10, crash, patch)
        with pytest.raises(MemoryError):
            train.train(config, tmp_path / "parts")
    same_files(whole, train.resume(tmp_path / "parts").run)


@pytest.mark.parametrize(
    "change,complaint",
    [
        (dict(model="mamba", model_options={}), "needs the keys of a transformer, and mamba has"),
        (dict(compile="on"), "needs compile off"),
        (dict(model_options=dict(keys="collapsed")), "collapsed ones are all alike"),
        (dict(key_penalty=float("inf")), "key_penalty must be a number"),
    ],
)
def test_where_it_makes_no_sense_it_is_refused(change, complaint):
    with pytest.raises(ValueError, match=complaint) as error:
        dataclasses.replace(CONFIG, **{"key_penalty": 1.0, **change})
    assert "\n" not in str(error.value)


def test_a_task_of_one_address_is_refused_before_a_run_is_made(tmp_path):
    config = dataclasses.replace(CONFIG, key_penalty=1.0, task_options=dict(num_pairs=2))
    with pytest.raises(ValueError, match="task bijection has no two value tokens"):
        train.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", tasks.TASKS)
def test_every_task_can_be_paid_for(name):
    task = tasks.get(name)
    batch = task.sample(2, generator=torch.Generator().manual_seed(0))
    k = torch.randn(2, 3, task.seq_len, 8, requires_grad=True)
    KeyPenalty(task, 2.0)({"blocks.0.attn.k": k}, batch).backward()
    reached = k.grad.abs().sum((0, 1, 3)) > 0
    assert reached[task.addresses[0].at].all() and reached.sum() == len(task.addresses[0].at)
