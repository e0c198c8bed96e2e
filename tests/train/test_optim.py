"""Weights in rows, and the optimizers that work on them."""

import copy
import dataclasses

import pytest
import torch

from bwt import models, tasks
from bwt.runs.config import TrainConfig
from bwt.train.optim import MOMENTUM, Optimizer, orthogonalise
from bwt.train.weights import ALIGNED, Weights

CONFIG = TrainConfig("bijection", lr=0.1, muon_lr=0.1, weight_decay=0.2, beta2=0.9, clip=0.0)
MUON = dataclasses.replace(CONFIG, optimizer="muon")
MATRICES = {f"blocks.{i}.{x}.weight" for i in (0, 1) for x in ("attn.qkv", "attn.proj")} | {
    f"blocks.{i}.mlp.{x}.weight" for i in (0, 1) for x in ("up", "down")
}


def model(seed=0, **options):
    torch.manual_seed(seed)
    options = {**dict(token_shift="block", width=18, layers=2), **options}
    return models.build_for(tasks.get("bijection", num_symbols=5), "transformer", **options)


def rows(made, config, dtype=torch.float32):
    weights = Weights(made, muon=config.optimizer == "muon", dtype=dtype)
    return weights, Optimizer(weights, [config] * len(made))


def put(weights, gradients):
    """gradients: for each model, by name."""
    names = gradients[0].keys()
    weights.collect({name: torch.stack([g[name] for g in gradients]) for name in names})


def random_gradients(made, seed):
    torch.manual_seed(seed)
    return {name: torch.randn_like(p) for name, p in made.named_parameters()}


def test_orthogonalise():
    for shape in [(2, 8, 8), (3, 16, 4), (1, 4, 16)]:
        values = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
        assert values.min() > 0.3 and values.max() < 1.3


def test_models_see_their_rows_and_rows_their_models():
    made = [model(seed) for seed in range(3)]
    before = [copy.deepcopy(x.state_dict()) for x in made]
    weights, _ = rows(made, MUON)
    for row, (x, old) in enumerate(zip(made, before, strict=True)):
        for name, value in x.state_dict().items():
            assert torch.equal(value, old[name])
            assert value.data_ptr() % (4 * ALIGNED) == weights.master.data_ptr() % (4 * ALIGNED)
        views = weights.layout.views(weights.master[row])
        assert views.keys() == old.keys()
        weights.master[row].mul_(2)
        assert all(torch.equal(value, 2 * old[name]) for name, value in x.state_dict().items())
    stacked = weights.leaves()
    assert all(torch.equal(stacked[name][1], 2 * x) for name, x in before[1].items())


def test_another_buffer_can_be_looked_through():
    made = model()
    weights, _ = rows([made], CONFIG)
    trained = made.head.weight
    with weights.pointing(made, 0, torch.ones_like(weights.master)):
        assert made.head.weight is trained and bool((trained == 1).all())
    assert trained.data_ptr() == weights.layout.views(weights.used[0])["head.weight"].data_ptr()


def test_half_of_the_bits_are_rounded_from_the_whole():
    made = model()
    before = copy.deepcopy(made.state_dict())
    weights, _ = rows([made], MUON, torch.bfloat16)
    assert all(p.dtype == torch.bfloat16 for p in made.parameters())
    whole = weights.layout.views(weights.master[0])
    assert all(torch.equal(whole[name], before[name]) for name in before)
    weights.master.add_(1e-4)  # less than a bfloat16 near one can tell
    weights.refresh()
    wanted = {name: (x + 1e-4).bfloat16() for name, x in before.items()}
    assert all(torch.equal(p, wanted[name]) for name, p in made.named_parameters())


def test_muon_gets_the_matrices_of_the_blocks_and_nothing_else():
    weights, optimizer = rows([model()], MUON)
    kinds = {}
    for key in optimizer.state(0):
        name, _, entry = key.rpartition(":")
        kinds.setdefault(entry, set()).add(name)
    assert kinds["momentum"] == MATRICES
    everything = {name for name, _ in model().named_parameters()}
    assert kinds["exp_avg"] == kinds["exp_avg_sq"] == everything - MATRICES
    assert {tuple(x.shape) for x in weights.layout.alike} == {
        (54, 18),
        (18, 18),
        (72, 18),
        (18, 72),
    }
    assert all(x.number == 2 for x in weights.layout.alike)
    assert not rows([model()], CONFIG)[1].momentum.numel()


def test_what_does_not_train_has_no_gradient_and_stays():
    made = model(mlp="frozen")
    before = copy.deepcopy(made.state_dict())
    weights, optimizer = rows([made], MUON)
    put(weights, [random_gradients(made, 1)])
    optimizer.step(torch.ones(1))
    for name, p in made.named_parameters():
        assert torch.equal(p, before[name]) == (".mlp." in name or "norm_mlp" in name), name


@pytest.mark.parametrize("clip", [0.0, 0.5, 1e9])
def test_adamw_steps_as_that_of_torch_does(clip):
    """torch's own, parameter by parameter in float64."""
    made = [model(seed) for seed in range(2)]
    plain = [copy.deepcopy(x).double() for x in made]
    config = dataclasses.replace(CONFIG, clip=clip)
    settings = [config, dataclasses.replace(config, lr=0.03, weight_decay=0.0, beta1=0.5)]
    weights = Weights(made, muon=False, dtype=torch.float32)
    optimizer = Optimizer(weights, settings)
    theirs = [
        torch.optim.AdamW(
            x.parameters(), c.lr, (c.beta1, c.beta2), weight_decay=c.weight_decay, foreach=False
        )
        for x, c in zip(plain, settings, strict=True)
    ]
    for step in range(4):
        gradients = [random_gradients(x, 10 * step + i) for i, x in enumerate(made)]
        put(weights, gradients)
        optimizer.clip()
        optimizer.step(torch.tensor([1.0, 0.5]))
        for i, (x, own) in enumerate(zip(plain, theirs, strict=True)):
            for name, p in x.named_parameters():
                p.grad = gradients[i][name].double()
            if clip:
                torch.nn.utils.clip_grad_norm_(x.parameters(), clip)
            own.param_groups[0]["lr"] = settings[i].lr * (1.0, 0.5)[i]
            own.step()
    for x, want in zip(made, plain, strict=True):
        for (name, p), q in zip(x.named_parameters(), want.parameters(), strict=True):
            torch.testing.assert_close(p.double(), q, atol=2e-6, rtol=2e-6, msg=name)


def test_muon_steps_along_the_momentum_of_each_matrix():
    """By hand, matrix by matrix in float64; each model with its own rate."""
    made = [model(seed) for seed in range(2)]
    start = [copy.deepcopy(x.state_dict()) for x in made]
    weights = Weights(made, muon=True, dtype=torch.float32)
    rates = (0.1, 0.03)
    optimizer = Optimizer(weights, [dataclasses.replace(MUON, muon_lr=x) for x in rates])
    momentum = [{name: torch.zeros_like(x).double() for name, x in y.items()} for y in start]
    wanted = [{name: x.double() for name, x in y.items()} for y in start]
    for step in range(3):
        gradients = [random_gradients(x, 10 * step + i) for i, x in enumerate(made)]
        put(weights, gradients)
        optimizer.step(torch.tensor([0.5, 1.0]))
        for i, factor in enumerate((0.5, 1.0)):
            for name in MATRICES:
                g, m = gradients[i][name].double(), momentum[i][name]
                m.mul_(MOMENTUM).add_(g, alpha=1 - MOMENTUM)
                along = orthogonalise(((1 - MOMENTUM) * g + MOMENTUM * m)[None])[0]
                scale = max(1.0, g.shape[0] / g.shape[1]) ** 0.5
                wanted[i][name] -= rates[i] * factor * scale * along
    for i, x in enumerate(made):
        for name in MATRICES:
            got = x.state_dict()[name].double()
            torch.testing.assert_close(got, wanted[i][name], atol=1e-5, rtol=0, msg=name)
            assert (got - start[i][name]).abs().max() > 1e-3


def test_a_state_that_is_loaded_goes_on_as_before():
    one, two = model(), model()
    (weights, optimizer), (others, other) = rows([one], MUON), rows([two], MUON)
    for step in range(2):
        put(weights, [random_gradients(one, step)])
        optimizer.step(torch.ones(1))
    others.master.copy_(weights.master)
    other.load(0, {key: x.clone() for key, x in optimizer.state(0).items()}, 2)
    for rows_of, stepper in ((weights, optimizer), (others, other)):
        put(rows_of, [random_gradients(one, 7)])
        stepper.step(torch.ones(1))
    assert torch.equal(weights.master, others.master)


def test_a_parameter_without_a_gradient_gets_zeros():
    made = model()
    weights, _ = rows([made], CONFIG)
    weights.gradient.fill_(1.0)
    gradients = dict.fromkeys(dict(made.named_parameters()))
    weights.collect({**gradients, "head.weight": torch.full_like(made.head.weight, 2.0)})
    views = weights.layout.views(weights.gradient[0])
    assert bool((views.pop("head.weight") == 2).all())
    assert all(not bool(x.any()) for x in views.values())
