"""The optimizers against torch's AdamW and against Muon by hand, in float64."""

import copy
import dataclasses

import pytest
import torch

from bwt import models, tasks
from bwt.runs.config import TrainConfig
from bwt.train.optim import MOMENTUM, Optimizer, orthogonalise
from bwt.train.step import TrainStep

CONFIG = TrainConfig("bijection", lr=0.1, muon_lr=0.1, weight_decay=0.2, beta2=0.9, clip=0.0)
MUON = dataclasses.replace(CONFIG, optimizer="muon")
MATRICES = {f"blocks.{i}.{x}.weight" for i in (0, 1) for x in ("attn.qkv", "attn.proj")} | {
    f"blocks.{i}.mlp.{x}.weight" for i in (0, 1) for x in ("up", "down")
}
TASK = tasks.get("bijection", num_symbols=5)
HALF = torch.tensor(0.5)


def build(**options):
    torch.manual_seed(0)
    options = {**dict(token_shift="block", width=18, layers=2), **options}
    return models.build_for(TASK, "transformer", **options)


def optimizer_of(model, config):
    return Optimizer({n: p for n, p in model.named_parameters() if p.requires_grad}, config)


def set_gradients(model, seed):
    """Give all trained parameters random gradients, and return them by name."""
    torch.manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn_like(p) if p.requires_grad else None
    return {n: p.grad.double() for n, p in model.named_parameters() if p.requires_grad}


def test_orthogonalise():
    for shape in [(2, 8, 8), (3, 16, 4), (1, 4, 16)]:
        values = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
        assert values.min() > 0.3 and values.max() < 1.3


def test_muon_gets_the_matrices_of_the_blocks_and_nothing_else():
    entries = {}
    for key in optimizer_of(build(), MUON).state_dict():
        name, _, entry = key.rpartition(":")
        entries.setdefault(entry, set()).add(name)
    assert entries["momentum"] == MATRICES
    everything = {name for name, _ in build().named_parameters()}
    assert entries["exp_avg"] == entries["exp_avg_sq"] == everything - MATRICES
    assert not any(key.endswith("momentum") for key in optimizer_of(build(), CONFIG).state_dict())


def test_what_does_not_train_stays():
    model = build(mlp="frozen")
    before = copy.deepcopy(model.state_dict())
    optimizer = optimizer_of(model, MUON)
    set_gradients(model, 1)
    optimizer.step(torch.ones(()))
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name]) == (".mlp." in name or "norm_mlp" in name), name


@pytest.mark.parametrize("clip", [0.0, 0.5, 1e9])
def test_adamw_is_that_of_torch_in_float64(clip):
    config = dataclasses.replace(CONFIG, clip=clip)
    model = build()
    plain = copy.deepcopy(model).double()
    optimizer = optimizer_of(model, config)
    theirs = torch.optim.AdamW(plain.parameters(), 0.05, (0.9, 0.9), weight_decay=0.2)
    for step in range(4):
        gradients = set_gradients(model, step)
        optimizer.step(HALF)
        for name, p in plain.named_parameters():
            p.grad = gradients[name].clone()
        if clip:
            torch.nn.utils.clip_grad_norm_(plain.parameters(), clip)
        theirs.step()
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.double(), q, atol=2e-6, rtol=2e-6, msg=name)


def test_muon_steps_along_the_momentum_of_each_matrix():
    model = build()
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    wanted = {name: x.double() for name, x in start.items()}
    momentum = {name: torch.zeros_like(x).double() for name, x in start.items()}
    optimizer = optimizer_of(model, MUON)
    for step in range(3):
        gradients = set_gradients(model, step)
        optimizer.step(HALF)
        for name in MATRICES:
            g, m = gradients[name], momentum[name]
            m.mul_(MOMENTUM).add_(g, alpha=1 - MOMENTUM)
            along = orthogonalise(((1 - MOMENTUM) * g + MOMENTUM * m)[None])[0]
            wanted[name] -= 0.05 * max(1.0, g.shape[0] / g.shape[1]) ** 0.5 * along
    for name, p in model.named_parameters():
        if name in MATRICES:
            torch.testing.assert_close(p.double(), wanted[name], atol=1e-5, rtol=0, msg=name)
            assert (p - start[name]).abs().max() > 1e-3


def test_a_state_that_is_loaded_goes_on_as_before():
    one, two = build(), build()
    first, second = optimizer_of(one, MUON), optimizer_of(two, MUON)
    for step in range(2):
        set_gradients(one, step)
        first.step(HALF)
    two.load_state_dict(one.state_dict())
    second.load_state_dict({key: x.clone() for key, x in first.state_dict().items()})
    for model, optimizer in ((one, first), (two, second)):
        set_gradients(model, 7)
        optimizer.step(HALF)
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), two.parameters(), strict=True))


def test_bf16_trains_weights_in_float32():
    config = dataclasses.replace(CONFIG, precision="bf16", task_options=dict(num_symbols=5))
    model = build()
    before = copy.deepcopy(model.state_dict())
    step = TrainStep(model, TASK, config, torch.device("cpu"))
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())
    assert all(torch.equal(p, before[name]) for name, p in step.master.items())
    with torch.no_grad():
        for p in step.master.values():
            p.add_(1e-4)  # less than a bfloat16 near one can tell
    step._round()
    for name, p in model.named_parameters():
        assert torch.equal(p, (before[name] + 1e-4).bfloat16())
    step.update()
    assert all(p.grad.dtype == torch.float32 for p in step.trained.values())


def test_the_model_computes_with_other_weights_inside_a_context():
    model = build()
    step = TrainStep(model, TASK, CONFIG, torch.device("cpu"))
    trained = model.head.weight
    before = trained.detach().clone()
    with step.using({name: torch.ones_like(p) for name, p in model.named_parameters()}):
        assert model.head.weight is trained and bool((trained == 1).all())
    assert torch.equal(trained, before)
