"""Speed of a whole training step: sampling, forward, backward, clipping, optimizer.

    python benchmarks/bench_train.py --memory

`bwt` is what `bwt train` runs. `eager-sdpa` and `eager-weights` are the same model and optimizer as
one writes them in plain PyTorch: logits at all positions, AdamW as it comes, attention by SDPA or
with explicit weights. `gemm` is the roofline: the counted operations of the matrix products at the
speed of torch.mm in the same run.
"""

import dataclasses
import functools
import math
import sys
from typing import NamedTuple

import common
import torch
from bounds import deviation, model_error
from common import Bench, Case, Claim, Provider
from torch import Tensor, nn
from torch.nn import functional

import bwt
from bwt import models, tasks
from bwt.runs.presets import preset_model
from bwt.train.loop import loss_of
from bwt.train.optim import Optimizer

STEP = "step"
LR, CLIP = 1e-3, 1.0


def declare(name: str, task: str, preset: str, batch: int) -> Case:
    task_options = dict(num_symbols=20) if task == "bijection" else dict(length=20)
    built = tasks.get(task, **task_options)
    shape = dict(task=task, batch=batch, T=built.seq_len, **preset_model(preset, task))
    return Case(name, shape, (STEP,), units=1)


CASES = [
    declare("paper-bijection", "bijection", "paper", 64),
    declare("quick-bijection", "bijection", "quick", 64),
    declare("quick-hmm", "hmm", "quick", 128),
]


@functools.cache
def task_of(case: Case) -> tasks.Task:
    return tasks.get(case.shape["task"])


def options_of(case: Case) -> dict:
    return {k: v for k, v in case.shape.items() if k not in ("task", "batch", "T")}


class Inputs(NamedTuple):
    model: nn.Module  # every provider starts from a copy of it
    batch: tasks.Batch  # for the check
    device: str


def inputs(case: Case, device: str) -> Inputs:
    torch.manual_seed(0)
    model = models.build_for(task_of(case), "transformer", **options_of(case)).to(device)
    with torch.no_grad():
        if model.head.weight is not None:  # zeros would make every result right
            model.head.weight.normal_(std=0.02)
    generator = torch.Generator(device).manual_seed(1)
    return Inputs(model, task_of(case).sample(16, generator=generator, device=device), device)


def copy(case: Case, x: Inputs) -> nn.Module:
    model = models.build_for(task_of(case), "transformer", **options_of(case)).to(x.device)
    model.load_state_dict(x.model.state_dict())
    return model


class Stepper:
    """A step on fresh data when called; `result()` is what is compared: loss and gradients of the
    weights all providers start from."""

    def __init__(self, case: Case, x: Inputs, forward, model: nn.Module, optimizer):
        self.case, self.forward, self.model, self.optimizer = case, forward, model, optimizer
        self.generator = torch.Generator(x.device).manual_seed(2)
        self.device, self.batch = x.device, x.batch
        self.parameters = list(model.parameters())
        self.start = [p.detach().clone() for p in self.parameters]

    def gradients(self, batch: tasks.Batch) -> list[Tensor]:
        for p in self.parameters:
            p.grad = None
        loss = loss_of(self.forward(batch), batch, "sampled")
        loss.backward()
        return [loss.detach(), *(p.grad for p in self.parameters)]

    def result(self) -> list[Tensor]:
        present = [p.detach().clone() for p in self.parameters]
        self.set_parameters(self.start)
        found = [g.clone() for g in self.gradients(self.batch)]
        self.set_parameters(present)
        return found

    def set_parameters(self, values: list[Tensor]) -> None:
        with torch.no_grad():
            for p, value in zip(self.parameters, values, strict=True):
                p.copy_(value)

    def __call__(self):
        size = self.case.shape["batch"]
        batch = task_of(self.case).sample(
            size, generator=self.generator, device=self.device, posterior=False
        )
        self.gradients(batch)
        nn.utils.clip_grad_norm_(self.parameters, CLIP)
        return self.optimizer()


def of_bwt(*, compiled: bool = False, capture: bool = False):
    def make(case, mode, x, device):
        model = copy(case, x)
        if compiled:
            torch._dynamo.reset()
            model.compile()
        inner = Optimizer(
            model, name="adamw", lr=LR, muon_lr=0.0, betas=(0.9, 0.999), weight_decay=0.01
        )

        def forward(batch):
            if not capture:
                return model(batch.tokens, batch.features, batch.positions)
            with bwt.capture(model, "blocks.*.attn.weights"):
                return model(batch.tokens, batch.features, batch.positions)

        return Stepper(case, x, forward, model, lambda: inner.step(1.0)), case.units

    return make


def eager_attention(block, x: Tensor, explicit: bool) -> Tensor:
    B, T, C = x.shape
    q, k, v = (
        y.view(B, T, block.attn.heads, -1).transpose(1, 2) for y in block.attn.qkv(x).split(C, -1)
    )
    if explicit:
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        future = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        out = scores.masked_fill(future, -math.inf).softmax(-1) @ v
    else:
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return block.attn.proj(out.transpose(1, 2).reshape(B, T, C))


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
        hidden = functional.gelu(block.mlp.up(plain_norm(block.norm_mlp, x)))
        x = x + block.mlp.down(hidden)
    weight = model.head.weight
    if weight is None:  # tied
        weight = model.embed.tokens[-model.head.outcomes :]
    logits = functional.linear(plain_norm(model.head.norm, x), weight) * model.head.scale
    return logits[:, batch.positions]


def of_eager(*, explicit: bool):
    def make(case, mode, x, device):
        model = copy(case, x)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
        forward = functools.partial(eager_forward, model, explicit=explicit)
        return Stepper(case, x, forward, model, optimizer.step), case.units

    return make


def check(case: Case, mode: str, x: Inputs, outputs, units: float) -> str | None:
    """Loss and gradients against the same model in float64 with explicit attention."""
    model = copy(case, x).double()
    batch = x.batch
    if batch.features is not None:
        batch = batch._replace(features=batch.features.double())
    logits = eager_forward(model, batch, explicit=True)
    loss = functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
    loss.backward()
    wanted = [loss.detach(), *(p.grad for p in model.parameters())]
    for index, (got, want) in enumerate(zip(outputs, wanted, strict=True)):
        # Some gradients are next to nothing: 1e-3 is small beside the others.
        bound = model_error(torch.float32)
        if fault := deviation(f"result {index}", got, want.numpy(), bound, least=1e-3):
            return fault
    return None


def operations(case: Case, mode: str) -> float:
    """Of the matrix products, forward and twice that backward, as `bwt` needs them: the last
    block's output projection and MLP and the head run at supervised positions only."""
    task, shape = task_of(case), case.shape
    T, P, C = shape["T"], len(task.positions), shape["width"]
    L = shape["layers"]
    per_block_input, per_block_rest, attention = 3 * C * C, 9 * C * C, C * (T + 1)
    rows = L * T * (per_block_input + attention) + ((L - 1) * T + P) * per_block_rest
    return 3 * 2 * shape["batch"] * (rows + P * C * task.num_outcomes)


def rates(rows: list[dict]) -> str:
    """Steps and tokens per second, and the peak of memory if it was measured."""
    lines = []
    for row in rows:
        if row["bound"]:
            continue
        steps = 1 / common.per_unit(row)
        tokens = steps * row["shape"]["batch"] * row["shape"]["T"]
        peak = "" if row["peak_mb"] is None else f", peak {row['peak_mb']:.0f} MB"
        where = f"{row['case']} {row['provider']}, {row['threads']} thread(s)"
        lines.append(f"{where}: {steps:.3g} steps/s, {tokens:,.0f} tokens/s{peak}")
    return "\n".join(lines)


PROVIDERS = [
    Provider("bwt", of_bwt(), modes=(STEP,), backend="auto"),
    Provider("bwt-captured", of_bwt(capture=True), modes=(STEP,), backend="auto"),
    Provider("bwt-compiled", of_bwt(compiled=True), modes=(STEP,), backend="auto"),
    Provider("eager-sdpa", of_eager(explicit=False), modes=(STEP,)),
    Provider("eager-weights", of_eager(explicit=True), modes=(STEP,)),
    dataclasses.replace(common.gemm_bound("gemm", operations), modes=(STEP,)),
]

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
    claims=(
        Claim("paper-bijection", slow="eager-sdpa", fast="bwt", at_least=1.5, mode=STEP),
        Claim("paper-bijection", slow="eager-weights", fast="bwt", at_least=1.5, mode=STEP),
        Claim("paper-bijection", slow="bwt-captured", fast="bwt", at_most=1.1, mode=STEP),
    ),
)


def main(argv: list[str] | None = None) -> int:
    return common.main(BENCH, argv)


if __name__ == "__main__":
    sys.exit(main())
