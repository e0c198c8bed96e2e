"""Speed of a whole training step: sampling, forward, backward, clipping, optimizer.

    python benchmarks/bench_train.py --memory
    python benchmarks/bench_train.py --cases quick-bijection --providers bwt 'eager-*'
    python benchmarks/bench_train.py --profile step.json --cases paper-bijection

`bwt` is what `bwt train` runs: on a GPU a replayed CUDA graph, beside it `bwt-eager` without one.
`eager-sdpa` and
`eager-weights` are the same model and optimizer as one writes them in plain PyTorch: logits at all
positions, AdamW as it comes, attention by SDPA or with explicit weights; `compiled-sdpa` is the
first, compiled. `gemm` is the roofline: the counted operations of the matrix products at the speed
of torch.mm in the same run, so that gemm / provider is the share of the peak that is used (MFU).
How many kernels a step launches, and what the host takes for it: benchmarks/launches.py.
"""

import argparse
import dataclasses
import functools
import math
import sys
from typing import NamedTuple

import command
import common
import torch
from backends import using
from bounds import deviation, model_error
from common import Bench, Case, Claim, Provider, Unavailable
from torch import Tensor, nn
from torch.nn import functional

import bwt
from bwt import models, tasks, train
from bwt.reproduce.cost import sequence_flops
from bwt.runs.config import TrainConfig
from bwt.runs.presets import preset_task, resolve
from bwt.train.step import cross_entropy

STEP = "step"
LR, CLIP = 1e-3, 1.0
STEPS = 50_000  # more than are timed
DECAY = 0.01  # torch's own default


def declare(
    name: str, task: str, preset: str, batch: int, model: str = "transformer", **task_options
) -> Case:
    task_options = {**preset_task(preset, task), **task_options}
    built = tasks.get(task, **task_options)
    config = resolve(task, model, preset, task_options=task_options)
    shape = dict(task=task, model=model, batch=batch, T=built.seq_len, **config.model_options)
    # The steps of the preset: how many runs an hour has room for.
    shape |= dict(task_options=task_options, steps=config.steps)
    return Case(name, shape, (STEP,), units=1)


CASES = [
    declare("paper-bijection", "bijection", "paper", 64),
    declare("paper-hmm-rows", "hmm", "paper", 64, header="rows"),
    declare("paper-hmm-tokens", "hmm", "paper", 64, header="tokens", floor=0.05),
    declare("paper-mamba", "bijection", "paper", 64, "mamba"),
    declare("paper-lstm", "bijection", "paper", 64, "lstm"),
    declare("quick-bijection", "bijection", "quick", 64),
    declare("quick-hmm", "hmm", "quick", 128),
]
NOT_OPTIONS = ("task", "task_options", "model", "batch", "T", "steps")


@functools.cache
def task_of(case: Case) -> tasks.Task:
    return tasks.get(case.shape["task"], **case.shape["task_options"])


def options_of(case: Case) -> dict:
    return {k: v for k, v in case.shape.items() if k not in NOT_OPTIONS}


class Inputs(NamedTuple):
    model: nn.Module  # every provider starts from a copy of it
    batch: tasks.Batch  # for the check
    device: str


def inputs(case: Case, device: str) -> Inputs:
    torch.manual_seed(0)
    model = build(case, device)
    with torch.no_grad():
        if model.head.weight is not None:  # zeros would make every result right
            model.head.weight.normal_(std=0.02)
    generator = torch.Generator(device).manual_seed(1)
    return Inputs(model, task_of(case).sample(16, generator=generator, device=device), device)


def build(case: Case, device: str) -> nn.Module:
    return models.build_for(task_of(case), case.shape["model"], **options_of(case)).to(device)


class Stepper:
    """A step on fresh data when called; `result()` is what is compared: loss and gradients of the
    weights all providers start from."""

    def __init__(self, x: Inputs, forward, model: nn.Module, step):
        self.forward, self.model, self.step, self.batch = forward, model, step, x.batch
        self.parameters = list(model.parameters())
        self.start = [p.detach().clone() for p in x.model.parameters()]
        self.set_parameters(self.start)

    def result(self) -> list[Tensor]:
        present = [p.detach().clone() for p in self.parameters]
        self.set_parameters(self.start)
        for p in self.parameters:
            p.grad = None
        loss = cross_entropy(self.forward(self.batch), self.batch, "sampled")
        loss.backward()
        found = [loss.detach(), *(p.grad.clone() for p in self.parameters)]
        self.set_parameters(present)
        return found

    def set_parameters(self, values: list[Tensor]) -> None:
        with torch.no_grad():
            for p, value in zip(self.parameters, values, strict=True):
                p.copy_(value)

    def __call__(self):
        return self.step()


def config_of(case: Case, device: str, **settings) -> TrainConfig:
    return TrainConfig(
        case.shape["task"],
        case.shape["model"],
        task_options=case.shape["task_options"],
        model_options=options_of(case),
        batch_size=case.shape["batch"],
        steps=STEPS,
        lr=LR,
        clip=CLIP,
        beta2=0.999,
        weight_decay=DECAY,
        average=0.0,
        device=device,
        **settings,
    )


def of_bwt(*, capture: bool = False, **settings):
    def make(case, mode, x, device):
        torch._dynamo.reset()
        step = train.build_step(config_of(case, device, **settings), torch.device(device))
        model = step.model

        def forward(batch):
            if not capture:
                return model(batch.tokens, batch.features, batch.positions)
            with bwt.capture(model, "blocks.*.attn.weights"):
                return model(batch.tokens, batch.features, batch.positions)

        if capture:
            if case.shape["model"] != "transformer":
                raise Unavailable("has no attention")
            step.compute_logits = forward
        return Stepper(x, forward, model, step.update), case.units

    return make


def eager_attention(block, x: Tensor, explicit: bool) -> Tensor:
    B, T, C = x.shape
    q, k, v = (
        y.view(B, T, block.attn.heads, -1).transpose(1, 2)
        for y in plain_linear(block.attn.qkv, x).split(C, -1)
    )
    if explicit:
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        future = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        out = scores.masked_fill(future, -math.inf).softmax(-1) @ v
    else:
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return plain_linear(block.attn.proj, out.transpose(1, 2).reshape(B, T, C))


def plain_linear(layer: nn.Linear, x: Tensor) -> Tensor:
    return functional.linear(x, layer.weight, layer.bias)


def plain_norm(norm: nn.Module, x: Tensor) -> Tensor:
    if isinstance(norm, models.parts.RMSNorm):
        return functional.rms_norm(x, norm.weight.shape, norm.weight, models.parts.EPSILON)
    return norm(x)


def eager_forward(model: nn.Module, batch: tasks.Batch, explicit: bool) -> Tensor:
    x = model.embed(batch.tokens, batch.features)
    for block in model.blocks:
        y = plain_norm(block.norm_attn, x)
        if block.mix is not None:
            y = models.parts.shifted(y, block.mix)
        x = x + eager_attention(block, y, explicit)
        hidden = functional.gelu(plain_linear(block.mlp.up, plain_norm(block.norm_mlp, x)))
        x = x + plain_linear(block.mlp.down, hidden)
    weight = model.head.weight
    if weight is None:  # tied
        weight = model.embed.tokens[-model.head.outcomes :]
    logits = functional.linear(plain_norm(model.head.norm, x), weight) * model.head.scale
    return logits[:, batch.positions]


def of_eager(*, explicit: bool, compiled: bool = False):
    def make(case, mode, x, device):
        if case.shape["model"] != "transformer":
            raise Unavailable("is written for the transformer")
        model = build(case, device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
        forward = functools.partial(eager_forward, model, explicit=explicit)
        if compiled:
            torch._dynamo.reset()
            forward = torch.compile(forward)
        generator = torch.Generator(device).manual_seed(2)

        def step():
            batch = task_of(case).sample(
                case.shape["batch"], generator=generator, device=device, posterior=False
            )
            optimizer.zero_grad()
            logits = forward(batch)
            functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            return optimizer.step()

        return Stepper(x, forward, model, step), case.units

    return make


def check(case: Case, mode: str, x: Inputs, outputs, units: float) -> str | None:
    """Loss and gradients against the same model in float64; a transformer's with explicit
    attention, others by the torch backend of their ops."""
    model = build(case, x.device)
    model.load_state_dict(x.model.state_dict())
    model, batch = model.double(), x.batch
    if batch.features is not None:
        batch = batch._replace(features=batch.features.double())
    if case.shape["model"] == "transformer":
        logits = eager_forward(model, batch, explicit=True)
    else:
        with using("torch"):
            logits = model(batch.tokens, batch.features, batch.positions)
    loss = functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
    loss.backward()
    wanted = [loss.detach(), *(p.grad for p in model.parameters())]
    for index, (got, want) in enumerate(zip(outputs, wanted, strict=True)):
        # Some gradients are next to nothing: 1e-3 is small beside the others.
        bound = model_error(got.dtype if index else torch.float32)
        if fault := deviation(f"result {index}", got, want.numpy(), bound, least=1e-3):
            return fault
    return None


def operations(case: Case, mode: str) -> float:
    """Of the matrix products, forward and twice that backward, as `bwt` needs them: the last
    block's output projection and MLP and the head run at supervised positions only."""
    task, shape = task_of(case), case.shape
    if shape["model"] != "transformer":
        return shape["batch"] * float(sequence_flops(config_of(case, "cpu")))
    T, P, C = shape["T"], len(task.positions), shape["width"]
    L = shape["layers"]
    per_block_input, per_block_rest, attention = 3 * C * C, 9 * C * C, C * (T + 1)
    rows = L * T * (per_block_input + attention) + ((L - 1) * T + P) * per_block_rest
    return 3 * 2 * shape["batch"] * (rows + P * C * task.num_outcomes)


def rates(rows: list[dict]) -> str:
    """Steps and tokens per second, runs an hour, the share of the peak that torch.mm reached in the
    same run, and the peak of memory if it was measured."""
    peaks = {_where(row): common.per_unit(row) for row in rows if row["provider"] == "gemm"}
    lines = []
    for row in rows:
        if row["bound"]:
            continue
        step = common.per_unit(row)
        shape = row["shape"]
        tokens = shape["batch"] * shape["T"] / step
        runs = 3600 / (step * shape["steps"])
        text = f"{1 / step:.3g} steps/s, {tokens:,.0f} tokens/s, {runs:.3g} runs/hour"
        if (peak := peaks.get(_where(row))) is not None:
            text += f", MFU {peak / step:.0%}"
        if row["peak_mb"] is not None:
            text += f", peak {row['peak_mb']:.0f} MB"
        lines.append(f"{row['case']} {row['provider']}, {row['threads']} thread(s): {text}")
    return "\n".join(lines)


def _where(row: dict) -> tuple:
    return row["case"], row["device"], row["threads"]


def provider(name: str, make, **options) -> Provider:
    return Provider(name, make, modes=(STEP,), **options)


GPU = ("cuda",)
PROVIDERS = [
    provider("bwt", of_bwt(), backend="auto"),
    provider("bwt-captured", of_bwt(capture=True), backend="auto"),
    provider("bwt-compiled", of_bwt(compile="on"), backend="auto"),
    provider("bwt-eager", of_bwt(graph="off"), backend="auto", devices=GPU),
    provider("bwt-tf32", of_bwt(precision="tf32"), backend="auto", devices=GPU),
    provider("bwt-bf16", of_bwt(precision="bf16"), backend="auto"),
    provider("eager-sdpa", of_eager(explicit=False)),
    provider("eager-weights", of_eager(explicit=True)),
    provider("compiled-sdpa", of_eager(explicit=False, compiled=True)),
    dataclasses.replace(common.gemm_bound("gemm", operations), modes=(STEP,)),
]


def claims():
    goal = "goal: one and a half times as fast as plain PyTorch"
    products = "three quarters of the step are products that torch does as well"
    remark = f"known: {products} (benchmarks/README.md)"
    for peer in ("eager-sdpa", "eager-weights"):
        target = dict(slow=peer, fast="bwt", at_least=1.5, mode=STEP)
        yield Claim("paper-bijection", **target, goal=goal, remark=remark)
    goal = "goal: capturing all attention weights costs 10% of a step at most"
    target = dict(slow="bwt-captured", fast="bwt", at_most=1.1, mode=STEP)
    yield Claim("paper-bijection", **target, goal=goal)


BENCH = Bench(
    op="train",
    cases=CASES,
    providers=PROVIDERS,
    inputs=inputs,
    check=check,
    baseline="eager-sdpa",
    unit="step",
    notes=rates,
    operations=operations,
    claims=tuple(claims()),
    quick=tuple(case for case in CASES if case.name == "quick-bijection"),
    slow=("*compiled*", "bwt-bf16"),
)


def profile(path: str, case: Case, device: str) -> None:
    """A trace of some steps, for chrome://tracing or ui.perfetto.dev."""
    x = inputs(case, device)
    call, _ = of_bwt()(case, STEP, x, device)
    for _ in range(5):  # a GPU's step is captured by then
        call()
    with torch.profiler.profile() as profiler:
        for _ in range(3):
            call()
    profiler.export_chrome_trace(path)
    print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=15))
    print(f"trace of {case.name} on {device}: {path}; open it in ui.perfetto.dev")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--profile", metavar="FILE.json")
    own, rest = parser.parse_known_args(sys.argv[1:] if argv is None else argv)
    if own.profile is None:
        return command.main(BENCH, rest)
    parser.add_argument("--cases", nargs=1, choices=[x.name for x in CASES], required=True)
    named = parser.parse_args(["--profile", own.profile, *rest])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    profile(own.profile, next(x for x in CASES if x.name == named.cases[0]), device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
