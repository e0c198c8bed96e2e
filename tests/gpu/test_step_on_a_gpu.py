"""A whole training step on a GPU: nothing waits for the device, nothing comes from the host and no
devices are mixed, for every task, model, target, optimizer and precision. Run on fake tensors, so
that it needs no GPU; see gpu_host for what that does not show."""

import dataclasses

import pytest
import torch
from helpers import tiers
from helpers.gpu_host import CUDA, Watch, backward, on_the_device
from torch.testing._internal.distributed.fake_pg import FakeStore

from bwt import models, tasks, train
from bwt.runs.config import TrainConfig

HMM = dict(num_states=3, num_symbols=3, length=3, floor=0.05, stickiness=0.2)
RECALL = dict(num_pairs=4, num_queries=2, num_keys=8, num_values=8)
TASKS = {
    "bijection": ("bijection", dict(num_symbols=4)),
    "bijection-replacement": ("bijection", dict(num_symbols=4, replacement=True)),
    "bijection-noise": ("bijection", dict(num_symbols=4, replacement=True, noise=0.1)),
    **{
        f"hmm-{header}-{predict}": ("hmm", dict(HMM, header=header, predict=predict))
        for header in ("rows", "tokens")
        for predict in ("state", "symbol")
    },
    "recall": ("recall", RECALL),
    "recall-unseen": ("recall", dict(RECALL, unseen=0.3)),
}
SMALL = dict(layers=1, width=16)
MODELS = {
    **{
        f"transformer-{positions}-{shift}": (
            "transformer",
            dict(SMALL, heads=2, positions=positions, token_shift=shift, shift_span=2),
        )
        for positions in ("learned", "rotary", "none")
        for shift in ("none", "input", "block")
    },
    "mamba": ("mamba", SMALL),
    "lstm": ("lstm", SMALL),
    "mlp-position": ("mlp", dict(SMALL, context="position")),
    "mlp-prefix": ("mlp", dict(SMALL, context="prefix")),
}
# With features in the tokens, and without.
DEFAULT = [list(TASKS).index(name) for name in ("hmm-rows-state", "recall")]
# Faults that may stay. Empty, and to be kept so.
ALLOWED: set[str] = set()


def watched_updates(config, *targets):
    """A step towards each of the targets; what was seen in each."""
    seen = {}
    with on_the_device():
        step = train.build_step(config, CUDA)
        step.expected = torch.zeros(1, 2, device=CUDA)  # measured before the first step
        for target in targets:
            step.config = dataclasses.replace(config, targets=target)
            with Watch() as seen[target]:
                step.update()
        assert step.count == len(targets)
        assert all(p.grad is not None and p.grad.device == CUDA for p in step.trained.values())
    return seen


def small_config(task, model, **settings):
    (task_name, task_options), (model_name, model_options) = TASKS[task], MODELS[model]
    return TrainConfig(
        task=task_name,
        model=model_name,
        task_options=task_options,
        model_options=model_options,
        steps=2,
        batch_size=4,
        graph="off",  # what would be captured
        ema=0.5,  # weights are averaged from the first step on
        **settings,
    )


@pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("task", tiers.mark("slow", list(TASKS), DEFAULT))
def test_no_step_waits_for_the_device_or_copies_from_the_host(task, model):
    settings = [("adamw", "fp32"), ("muon", "bf16")]
    if task in ("bijection", "hmm-rows-state"):
        # All a model knows of its task is whether there are features.
        settings += [("adamw", "bf16"), ("muon", "fp32")]
    for optimizer, precision in settings:
        config = small_config(task, model, optimizer=optimizer, precision=precision)
        for target, watch in watched_updates(config, "sampled", "posterior").items():
            assert set(watch.faults) <= ALLOWED, (optimizer, precision, target, watch.faults)


def test_the_steps_are_those_of_a_gpu():
    """What is watched is the path of CUDA tensors: the kernels' ops, half precision and all."""
    config = small_config("hmm-rows-state", "transformer-rotary-none", precision="bf16")
    seen = watched_updates(config, "posterior")["posterior"]
    assert {"attention", "attention_backward", "hmm_filter", "_fused_adamw_"} <= seen.ops
    assert "linalg_vector_norm" in seen.ops and "bfloat16" in seen.dtypes
    config = small_config("bijection-noise", "mamba", optimizer="muon")
    seen = watched_updates(config, "posterior")["posterior"]
    assert {"selective_scan", "bijection_posterior", "baddbmm", "convolution"} <= seen.ops


def test_a_step_of_several_processes():
    """The message between GPUs is made and taken apart there. What the hosts ask each other beside
    it has nothing to do with the device; test_train has that."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        seen = watched_updates(small_config("recall", "mlp-prefix"), "sampled", "posterior")
    finally:
        torch.distributed.destroy_process_group()
    for watch in seen.values():
        assert "allreduce_" in watch.ops and watch.faults == []


@pytest.mark.parametrize(
    "fault",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.any()),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.masked_fill_(x > 0, 1).unique(),
        lambda x: torch.arange(3).to(CUDA),
        lambda x: x + torch.tensor(1.0, device=CUDA),
        lambda x: x + torch.tensor(1.0),
        lambda x: x.cpu(),
        lambda x: torch.zeros(3),
    ],
)
def test_the_watch_sees_faults(fault):
    with on_the_device():
        x = torch.zeros(3, device=CUDA)
        with Watch() as watch:
            try:
                fault(x)
                noticed = bool(watch.faults)
            except RuntimeError:  # fake tensors refuse some themselves
                noticed = True
        assert noticed
        with Watch() as watch:
            torch.where(x > 0, x + 1, 2.0).sum()
        assert watch.faults == []


@pytest.mark.parametrize("name", models.MODELS)
def test_the_backward_of_fake_tensors_is_that_of_autograd(name):
    task = tasks.get("bijection", num_symbols=4)
    model = models.build_for(task, name, **SMALL)
    batch = task.sample(3, generator=torch.Generator().manual_seed(0))
    gradients = []
    for run in (backward, torch.Tensor.backward):
        model.zero_grad()
        run(model(batch.tokens, None, batch.positions).square().sum())
        gradients.append([p.grad for p in model.parameters()])
    for mine, own in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, own)
