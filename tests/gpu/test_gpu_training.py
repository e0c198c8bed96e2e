"""Training steps on a GPU against those of the native CPU path, on the same data."""

import dataclasses
import os
import signal

import pytest
import torch
from helpers.same_runs import same_files
from helpers.small_runs import interrupt_at
from helpers.tolerances import training_error

from bwt import train
from bwt.cli import main
from bwt.runs.config import TrainConfig
from bwt.runs.directory import RunDirectory

pytestmark = pytest.mark.gpu

TASKS = {
    "bijection": ("bijection", dict(num_symbols=4)),
    "noisy": ("bijection", dict(num_symbols=3, num_pairs=4, replacement=True, noise=0.2)),
    "hmm": ("hmm", dict(num_states=3, num_symbols=4, length=4)),
    "recall": ("recall", dict(num_pairs=3, num_keys=6, num_values=6, num_queries=2, filler=2)),
}
MODELS = {
    "transformer": dict(layers=1, heads=2, width=16, logit_scale=4.0),
    "mamba": dict(layers=1, width=12, state=4),
}
UPDATES = 3


def configuration(task: str, model: str, **changes) -> TrainConfig:
    name, task_options = TASKS[task]
    base = TrainConfig(
        task=name,
        model=model,
        task_options=task_options,
        model_options=MODELS[model],
        steps=UPDATES,
        batch_size=2,
        eval_sequences=4,
        evaluations=1,
        optimizer="muon",
    )
    return dataclasses.replace(base, **changes)


def batch_of(step, source):
    """Draw a batch on the CPU, whatever the device: the generators of a GPU draw other numbers."""
    batch = step.task.sample(
        step.config.batch_size, generator=source, posterior=False, device="cpu"
    )
    moved = type(batch)(*(None if x is None else x.to(step.device) for x in batch))
    if step.config.targets == "posterior":  # which is the device's own
        moved = moved._replace(posterior=step.task.posterior(moved))
    return moved


def updates(config: TrainConfig, device: str):
    """Return the losses of the updates, and the gradients of the first."""
    step = train.build_step(config, torch.device(device))
    source = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in step.master.values():  # a head of zeros would pass on no gradient
            p.add_((0.1 * torch.randn(p.shape, generator=source)).to(device))
    losses, gradients = [], None
    for _ in range(UPDATES):
        step.sums.zero_()
        step.update(batch_of(step, source))
        losses.append(step.sums[0].item())
        if gradients is None:
            gradients = [p.grad.cpu().double().flatten() for p in step.trained.values()]
    return torch.tensor(losses, dtype=torch.float64), torch.cat(gradients)


@pytest.mark.parametrize("targets", ["sampled", "posterior"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("task", TASKS)
def test_updates_agree_with_the_cpu(task, model, targets):
    config = configuration(task, model, targets=targets)
    losses, gradients = updates(config, "cpu")
    half = dataclasses.replace(config, precision="bf16")
    half_losses, half_gradients = updates(half, "cpu")

    bound = training_error(torch.float32)
    on_gpu, gpu_gradients = updates(config, "cuda")
    assert (gpu_gradients - gradients).abs().max() <= bound * gradients.abs().max()
    torch.testing.assert_close(on_gpu, losses, rtol=bound, atol=0)

    # In bf16 both are off by roundings of their own: twice what the CPU loses, and its rounding.
    bound = training_error(torch.bfloat16)
    on_gpu, gpu_gradients = updates(half, "cuda")
    allowed = 2 * (half_gradients - gradients).norm() + bound * gradients.norm()
    assert (gpu_gradients - gradients).norm() <= allowed
    allowed = 2 * (half_losses - losses).abs().max() + bound * losses.max()
    assert (on_gpu - losses).abs().max() <= allowed


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("targets", ["sampled", "posterior"])
def test_a_step_neither_waits_nor_feeds(task, targets, emulated_device):
    """Counted below torch's dispatcher, so inside the launchers of our kernels as well."""
    config = configuration(task, "transformer", targets=targets)
    step = train.build_step(config, torch.device("cuda"))
    step.update()  # makes what is made once
    before = emulated_device.counts()
    step.update()
    assert emulated_device.counts() == before


SHORT = ["--steps", "4", "--evaluations", "2", "--eval-sequences", "4", "--batch-size", "2"]
SHORT += ["--layers", "1", "--width", "16", "--preset", "quick"]


def test_the_command_trains_on_the_gpu_and_resumes_bit_for_bit(tmp_path, capsys, monkeypatch):
    options = ["--num-symbols", "4", "--heads", "2", *SHORT]
    assert main(["train", "bijection", *options, "--out", str(tmp_path / "whole")]) == 0
    assert "bits from exact Bayes" in capsys.readouterr().out
    with monkeypatch.context() as patch:
        interrupt_at(2, lambda: os.kill(os.getpid(), signal.SIGTERM), patch)
        stopped = main(["train", "bijection", *options, "--out", str(tmp_path / "parts")])
    assert stopped == 128 + signal.SIGTERM
    assert main(["train", "--resume", str(tmp_path / "parts")]) == 0
    whole, parts = (RunDirectory(tmp_path / name) for name in ("whole", "parts"))
    for step in set(parts.steps()) - set(whole.steps()):  # the stop left one more
        parts.weights_path(step).unlink()
    same_files(whole, parts)


@pytest.mark.parametrize("model", MODELS)
def test_compiled_updates_agree_with_those_that_are_not(model):
    """By Inductor, whose code checks the layout of every result of our ops."""

    choices = {
        "shape_padding": False,  # decided by timing
        "assert_indirect_indexing": False,  # a call that the emulated GPU does not know
        "use_static_cuda_launcher": False,
        "compile_threads": 1,
        "triton.autotune_pointwise": False,
    }
    config = configuration("hmm", model)
    losses, gradients = updates(config, "cuda")
    compiled = dataclasses.replace(config, compile="on")
    with torch._inductor.config.patch(choices):
        found, found_gradients = updates(compiled, "cuda")
    bound = training_error(torch.float32)
    torch.testing.assert_close(found, losses, rtol=bound, atol=0)
    assert (found_gradients - gradients).abs().max() <= bound * gradients.abs().max()
