"""Tests of compiled, captured, trained and distributed use as functions of the device: the same
body runs on a CPU today and on a GPU where there is one."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from functools import partial
from unittest import mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.fx.experimental.proxy_tensor import make_fx

from bwt import ops, reference, streams, train
from bwt.runs.config import TrainConfig
from bwt.runs.directory import RunDirectory
from helpers import ROOT
from helpers.small_runs import interrupt_at
from helpers.tolerances import attention_error, scan_error

SMALL = TrainConfig(
    task="bijection",
    task_options=dict(num_symbols=4),
    model_options=dict(layers=2, heads=2, width=32, norm="rms", logit_scale=4.0),
    steps=12,
    batch_size=8,
    lr=1e-2,
    evaluations=3,
    eval_sequences=64,
)
TASKS = {
    "bijection": dict(num_symbols=4),
    "hmm": dict(length=5),
    "recall": dict(num_pairs=3, num_keys=8, num_values=8, num_queries=2),
}


def compiled(function, device, mode):
    """As a user compiles; on a CPU without the C++ compiler, which takes minutes."""
    torch._dynamo.reset()
    if torch.device(device).type == "cpu":
        return torch.compile(function, fullgraph=True, backend="aot_eager")
    return torch.compile(function, fullgraph=True, mode=mode)


def attend_and_scan(q, k, v, u, A):
    """Two ops with a product between them, as in a model."""
    out = ops.attention(q, k, v, capture=("weights",))
    y = ops.selective_scan(u, u, A, u[..., :4], u[..., 2:6], delta_softplus=True)
    return out.out, out.weights, y


def example(device):
    generator = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(2, 2, 39, 32, generator=generator) for _ in range(3))
    u, A = torch.randn(2, 20, 8, generator=generator), -torch.rand(8, 4, generator=generator) - 0.1
    return [x.to(device) for x in (q, k, v, u, A)]


def expect(arguments):
    """(out, weights, y) by the reference, with their bounds."""
    q, k, v, u, A = (x.detach().double().cpu().numpy() for x in arguments)
    found = reference.attention(q, k, v, capture=("weights",))
    y = reference.selective_scan(u, u, A, u[..., :4], u[..., 2:6], delta_softplus=True)
    bound = attention_error(torch.float32, q.shape[2], q.shape[3])
    scan = scan_error(torch.float32, u.shape[1], A.shape[1])
    return [(found.out, bound), (found.weights, bound), (y, scan)]


def assert_expected(outputs, arguments):
    for got, (want, bound) in zip(outputs, expect(arguments), strict=True):
        scale = max(1.0, np.abs(want).max())
        got = got.detach().double().cpu().numpy()
        np.testing.assert_allclose(got, want, rtol=0, atol=bound * scale)


def compile_agrees(device, mode):
    """Values against the reference and gradients against those without compiling; repeated, as
    reduce-overhead captures its graph only then."""
    arguments = example(device)
    run = compiled(attend_and_scan, device, mode)
    for _ in range(3):
        if mode == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        leaves = [x.clone().requires_grad_() for x in arguments]
        outputs = run(*leaves)
        assert_expected([x.clone() for x in outputs], arguments)
        found = torch.autograd.grad(sum(x.square().sum() for x in outputs), leaves)
        found = [x.clone() for x in found]  # a graph's memory is used again
        plain = [x.clone().requires_grad_() for x in arguments]
        total = sum(x.square().sum() for x in attend_and_scan(*plain))
        for a, b in zip(found, torch.autograd.grad(total, plain), strict=True):
            # Both chain two sums of up to 39 terms of order one.
            bound = attention_error(torch.float32, 39, 32) * max(1.0, b.abs().max().item())
            assert (a - b).abs().max().item() <= bound
        for x in arguments[:4]:
            x.normal_()


def captured(function, arguments):
    """(replay, outputs): a CUDA graph of the call; on a CPU the operations of a recorded call,
    without its Python code, into the same memory."""
    call = partial(function, *arguments)
    if arguments[0].is_cpu:
        graph = make_fx(function)(*arguments)
        outputs = graph(*arguments)

        def replay():
            for old, new in zip(outputs, graph(*arguments), strict=True):
                old.copy_(new)

        return replay, outputs
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # compiles and allocates before the capture
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = call()
    return graph.replay, outputs


def graph_replays(device):
    """A replay computes from what is in the inputs' memory then."""
    arguments = example(device)
    with torch.no_grad():
        replay, outputs = captured(attend_and_scan, arguments)
        for _ in range(2):
            for x in arguments[:4]:
                x.normal_()
            replay()
            if device != "cpu":
                torch.cuda.synchronize()
            assert_expected(outputs, arguments)


def draw_batches(config, count):
    made = train.build_step(config, torch.device("cpu"))
    return [made.sample(made.task) for _ in range(count)]


def moved(batch, device):
    return type(batch)(*(None if x is None else x.to(device) for x in batch))


def three_steps(config, device, batches, perturbation=0.0):
    """(losses, weights) of three updates on given data."""
    made = train.build_step(config, torch.device(device))
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for p in made.master.values():
            signs = torch.randn(p.shape, generator=generator).sign().to(device)
            p.mul_(1 + perturbation * signs)
    losses = []
    for batch in batches:
        made.sums.zero_()
        made.update(moved(batch, device))
        losses.append(made.sums[0].item())
    weights = torch.cat([p.detach().double().cpu().flatten() for p in made.master.values()])
    return np.array(losses), weights.numpy()


def small(task, model="transformer", **changes):
    options = dict(width=32) | (dict(layers=2, heads=2) if model == "transformer" else {})
    settings = dict(task=task, task_options=TASKS[task], model=model, model_options=options)
    return dataclasses.replace(SMALL, **settings, **changes)


def bf16_steps_agree(device, task, model="transformer"):
    """Losses in bf16 with those in float32 on a CPU. They are of logits of order one, each rounded
    to half an eps; later ones also of weights that followed gradients of that precision."""
    config = small(task, model)
    batches = draw_batches(config, 3)
    losses, _ = three_steps(config, "cpu", batches)
    found, weights = three_steps(small(task, model, precision="bf16"), device, batches)
    eps = torch.finfo(torch.bfloat16).eps
    np.testing.assert_allclose(found, losses, rtol=2 * eps)
    assert np.isfinite(weights).all() and (found != losses).any()


def steps_agree(device, task, model="transformer", **changes):
    """With those of a CPU, as well as two runs on a CPU agree whose weights differ by 32 roundings
    at the start: what the sums of a few hundred terms in a step lose in another order. Adam divides
    by the gradient's size, so that nothing smaller can be asked of single weights."""
    config = small(task, model, **changes)
    batches = draw_batches(config, 3)
    eps = torch.finfo(torch.float32).eps
    losses, weights = three_steps(config, "cpu", batches)
    near_losses, near_weights = three_steps(config, "cpu", batches, 32 * eps)
    got_losses, got_weights = three_steps(config, device, batches)
    allowed = np.abs(near_losses - losses).max() + 32 * eps * np.abs(losses).max()
    assert np.abs(got_losses - losses).max() <= allowed
    norm = np.linalg.norm
    assert norm(got_weights - weights) <= norm(near_weights - weights)


def resume_is_exact(device, tmp_path, **changes):
    """Interrupted and resumed equals uninterrupted, bit for bit."""
    config = dataclasses.replace(SMALL, device=device, **changes)
    whole = train.train(config, tmp_path / "whole").run
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(5, lambda: os.kill(os.getpid(), signal.SIGINT), patch)
        first = train.train(config, tmp_path / "parts")
    assert first.signal == signal.SIGINT and first.step < config.steps
    second = train.resume(tmp_path / "parts").run
    last = max(whole.steps())
    one, two = (load_file(run.weights_path(last)) for run in (whole, second))
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
    kept = [[(row.step, row.loss) for row in run.read_metrics()] for run in (whole, second)]
    assert kept[0] == kept[1]


def processes_agree(device, count, tmp_path):
    """torchrun with `count` processes has the losses of one that draws from all their streams."""
    flags = ["--steps", "8", "--evaluations", "2", "--eval-sequences", "32", "--num-symbols", "4"]
    flags += ["--width", "16", "--heads", "1", "--threads", "1", "--json", "--preset", "quick"]
    command = [sys.executable, "-P", "-m", "torch.distributed.run", "--nproc-per-node", str(count)]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "-m", "bwt", "train"]
    command += ["bijection", "--device", device, "--out", str(tmp_path / "many")]
    done = subprocess.run(
        [*command, "--batch-size", str(16 // count), *flags],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["step"] == 8
    many = RunDirectory.open(tmp_path / "many")
    config = dataclasses.replace(TrainConfig.from_json(many.read_config()), batch_size=16)
    generators = [
        streams.generator("training", config.seed, device, rank=rank) for rank in range(count)
    ]

    def sample(self, task):
        options = dict(device=self.device, posterior=False)
        parts = [self.task.sample(16 // count, generator=x, **options) for x in generators]
        tokens, targets = (torch.cat([getattr(x, n) for x in parts]) for n in ("tokens", "targets"))
        return parts[0]._replace(tokens=tokens, targets=targets)

    with mock.patch.object(train.TrainStep, "sample", sample):
        one = train.train(config, tmp_path / "one").run
    losses = [[row.loss for row in run.read_metrics()] for run in (one, many)]
    # Sums in another order; 1e-4 bits is what test_train allows two processes on a CPU.
    np.testing.assert_allclose(*losses, rtol=0, atol=1e-4)


def extension_serves(device):
    """The library of the device is loaded and is what a call without a backend takes."""
    from importlib import import_module

    from bwt.ops import _dispatch
    from helpers import gpu_bodies

    module, backend = {"cpu": ("bwt._C", "native"), "cuda": ("bwt._C_cuda", "cuda")}[device]
    assert import_module(module).__file__.endswith(".so")
    chosen = _dispatch.choose("bijection_posterior", "auto", torch.device(device))
    assert chosen == backend and _dispatch.status(backend) is None
    for noise in (0.0, 0.2):
        gpu_bodies.bijection_posterior(device, "dense", noise, backend=backend)
