"""Speed of a training step of Mamba beside the transformer of equal parameters.

    python benchmarks/bench_mamba.py

The size is the paper's for HMMs (header of tokens, 93 positions). A step is forward, backward,
clipping and optimizer, on one batch.
"""

import copy
import functools
import sys
from typing import NamedTuple

import command
import torch
from backends import using
from bounds import deviation, model_error
from common import Bench, Case, Claim, Provider
from torch import Tensor, nn

from bwt import models, tasks
from bwt.runs.config import TrainConfig
from bwt.runs.presets import preset_model
from bwt.train.optim import Optimizer
from bwt.train.step import cross_entropy

STEP = "step"
CHECKED = 2  # sequences compared with the reference


def declare(name: str, preset: str, batch: int, **task_options) -> Case:
    shape = dict(batch=batch, task=task_options, **preset_model(preset, "hmm"))
    return Case(name, shape, (STEP,), units=batch)


PAPER = declare("paper-hmm", "paper", 16, header="tokens")
CASES = [PAPER, declare("quick-hmm", "quick", 64)]
QUICK = (declare("small-hmm", "quick", 16),)


@functools.cache
def task_of(case: Case) -> tasks.Task:
    return tasks.get("hmm", **case.shape["task"])


@functools.cache
def options_of(case: Case, name: str) -> dict:
    options = {k: v for k, v in case.shape.items() if k not in ("task", "batch")}
    if name == "transformer":
        return options
    target = models.build_for(task_of(case), "transformer", **options).num_parameters
    same = {k: options[k] for k in ("layers", "norm")}
    return models.match_parameters(name, task_of(case), target, **same)


class Inputs(NamedTuple):
    batch: tasks.Batch
    device: str


def inputs(case: Case, device: str) -> Inputs:
    generator = torch.Generator(device).manual_seed(1)
    size = case.shape["batch"]
    return Inputs(task_of(case).sample(size, generator=generator, device=device), device)


class Stepper:
    """A step when called; `result()` gives the logits of some sequences and those that the NumPy
    reference of the ops leads to in float64, on a CPU."""

    def __init__(self, case: Case, x: Inputs, name: str):
        torch.manual_seed(0)
        self.batch = x.batch
        self.model = models.build_for(task_of(case), name, **options_of(case, name)).to(x.device)
        nn.init.normal_(self.model.head.weight)  # zeros would make every result right
        config = TrainConfig("hmm", beta2=0.999, weight_decay=0.01)
        self.optimizer = Optimizer(dict(self.model.named_parameters()), config)
        self.factor = torch.ones((), device=x.device)

    def logits(self, count: int | None = None) -> Tensor:
        features = None if self.batch.features is None else self.batch.features[:count]
        return self.model(self.batch.tokens[:count], features, self.batch.positions)

    def result(self) -> tuple[Tensor, Tensor]:
        exact = copy.deepcopy(self.model).cpu().double()
        tokens, features, positions = (
            None if x is None else x.cpu()
            for x in (self.batch.tokens[:CHECKED], self.batch.features, self.batch.positions)
        )
        features = None if features is None else features[:CHECKED].double()
        with using("reference"), torch.no_grad():
            want = exact(tokens, features, positions)
        with torch.no_grad():
            return self.logits(CHECKED), want

    def __call__(self):
        for p in self.model.parameters():
            p.grad = None
        cross_entropy(self.logits(), self.batch, "sampled").backward()
        return self.optimizer.step(self.factor)


def provider(name: str) -> Provider:
    def make(case, mode, x, device):
        return Stepper(case, x, name), case.units

    return Provider(name, make, modes=(STEP,), backend="auto")


def check(case: Case, mode: str, x: Inputs, outputs, units: float) -> str | None:
    got, want = outputs
    return deviation("logits", got, want.numpy(), model_error(torch.float32), least=0.0)


BENCH = Bench(
    op="mamba",
    cases=CASES,
    providers=[provider("transformer"), provider("mamba")],
    inputs=inputs,
    check=check,
    baseline="transformer",
    unit="sequence",
    claims=(
        Claim(
            PAPER.name,
            slow="mamba",
            fast="transformer",
            at_most=2,
            mode=STEP,
            goal="goal: a step of Mamba in twice the time of the transformer's of equal parameters",
        ),
    ),
    quick=QUICK,
)


def main(argv: list[str] | None = None) -> int:
    return command.main(BENCH, argv)


if __name__ == "__main__":
    sys.exit(main())
