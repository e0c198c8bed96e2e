"""One update of a model: sample, forward, backward, clip, optimize, average.

A step knows its model and its task, and nothing of runs. All of it happens on the device and
depends on the host only through the phase of the training, so that it can be captured as a CUDA
graph once and replayed.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from bwt import evaluate, streams
from bwt.models import Model
from bwt.runs.config import TrainConfig
from bwt.tasks import Batch, Task
from bwt.train import distributed
from bwt.train.freezing import Freeze
from bwt.train.graphs import Graphs, uses_graphs
from bwt.train.optim import Optimizer
from bwt.train.penalty import KeyPenalty
from bwt.train.schedule import BLOCK, Plateau, Schedule, curriculum, lr_factor

Weights = dict[str, Tensor]


class Phase(NamedTuple):
    """What distinguishes the updates of a run from each other on the device."""

    easier: int  # index of the curriculum's task; -1: the task itself
    frozen: bool
    averaged: bool


def cross_entropy(logits: Tensor, batch: Batch, targets: str) -> Tensor:
    """Return the mean cross-entropy in nats of logits [B, P, O]."""
    wanted = batch.targets if targets == "sampled" else batch.exact
    return functional.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten(0, 1))


class TrainStep:
    """A model with its optimizer and its data.

    `master` are the trained weights in float32, by name. With bf16 the model computes with copies
    of them that are rounded before each step. `average` are averaged weights, if they are wanted.
    """

    def __init__(self, model: Model, task: Task, config: TrainConfig, device: torch.device):
        self.task, self.config, self.device = task, config, device
        self.curriculum = curriculum(config, task)
        self.plateau = Plateau.of(config)
        self.freeze = Freeze(model, config)
        weight = config.key_penalty
        self.penalty = KeyPenalty(task, weight, device) if weight else None
        self.model = model.to(device)
        self.used = {name: p.detach() for name, p in model.named_parameters()}
        self.master = self._masters()
        self.trained = {n: p for n, p in self.master.items() if p.requires_grad}
        self.optimizer = Optimizer(self.trained, config)
        wanted = self.master.items() if self._averages() else ()
        self.average = {name: torch.zeros_like(p) for name, p in wanted}
        if config.compile != "off":
            model.compile(mode="reduce-overhead" if config.compile == "graphs" else None)
        distributed.broadcast(list(self.master.values()))
        rank = distributed.rank()
        self.generator = streams.generator("training", config.seed, device, rank=rank)
        self.count = 0  # updates
        self.losses = torch.zeros(BLOCK, device=device)  # of the last steps, in nats
        # Loss, exact entropy and its standard error in nats, summed since `sums` was cleared.
        self.sums = torch.zeros(3, device=device)
        self.expected: Tensor | None = None  # see `expect`
        self.schedule = Schedule(device)
        self.reschedule()
        self.phase: Phase | None = None  # of the last update
        self.graphs = None
        if uses_graphs(config, device):
            required = config.graph == "on"
            self.graphs = Graphs(self._queue, [self.generator], required=required)

    def update(self, batch: Batch | None = None) -> None:
        """Update the weights, with a batch of this step's task unless one is given. The host does
        not wait for the device."""
        phase = self._next_phase()
        if phase.frozen and not (self.phase and self.phase.frozen):
            self.freeze.begin(self.master, self.optimizer)
        self.phase = phase
        self.expect()
        if self.count and self.count % BLOCK == 0:
            self.reschedule()
        if self.graphs is None or batch is not None:
            self._queue(phase, batch)
        else:
            self.graphs.run(phase)
        self.count += 1

    def _queue(self, phase: Phase, batch: Batch | None = None) -> None:
        """Queue the work of a step on the device."""
        if batch is None:
            batch = self.sample(self.task_of(phase))
        self._round()
        with self.penalty.capture_keys(self.model) if self.penalty else nullcontext({}) as keys:
            logits = self.compute_logits(batch)
        loss = cross_entropy(logits, batch, self.config.targets)
        total = loss + self.penalty(keys, batch) if self.penalty else loss
        for p in self.model.parameters():
            p.grad = None
        total.backward()
        with torch.no_grad():
            self._optimize(phase)
            numbers = torch.cat((loss.detach()[None], self._exact_entropy(batch, phase)))
            self._record(distributed.mean(numbers))

    def compute_logits(self, batch: Batch) -> Tensor:
        return self.model(batch.tokens, batch.features, batch.positions)

    def _optimize(self, phase: Phase) -> None:
        self._collect_gradients()
        distributed.mean_gradients(list(self.trained.values()))
        if phase.frozen:
            self.freeze.clear_gradients(self.trained)
        place = self.schedule.place()
        self.optimizer.step(self.schedule.factors[place][0])
        if phase.averaged:
            self._update_average(self.schedule.shares[place][0])
        if phase.frozen:
            self.freeze.restore(self.master, self.average)

    def _record(self, numbers: Tensor) -> None:
        self.losses.index_copy_(0, self.schedule.place(), numbers[:1])
        self.sums += numbers
        self.schedule.step += 1

    # Data

    def sample(self, task: Task) -> Batch:
        """Draw this process's part of a step."""
        return task.sample(
            self.config.batch_size,
            generator=self.generator,
            device=self.device,
            posterior=self.config.targets == "posterior",
        )

    def task_of(self, phase: Phase) -> Task:
        return self.task if phase.easier < 0 else self.curriculum[phase.easier]

    def _next_phase(self) -> Phase:
        step = self.count
        easier = step % len(self.curriculum) if step < self.config.curriculum_steps else -1
        averaged = self._averages() and step >= self._average_start
        return Phase(easier, self.freeze.applies(step), averaged)

    def expect(self) -> None:
        """Measure what a perfect model's loss would be, unless each batch has its posteriors:
        entropies [tasks, 2] in nats of the curriculum's tasks and, last, of the task itself, with
        standard errors."""
        if self.expected is None and self.config.targets == "sampled":
            pairs = [
                evaluate.expected_entropy(task, seed=self.config.seed, device=self.device)
                for task in (*self.curriculum, self.task)
            ]
            self.expected = torch.tensor(pairs, device=self.device) * math.log(2)

    def _exact_entropy(self, batch: Batch, phase: Phase) -> Tensor:
        """Return the mean entropy of the exact posteriors in nats and its standard error [2]: of
        this batch where its posteriors are known, otherwise the expected one of its task."""
        if batch.posterior is None:
            assert self.expected is not None
            return self.expected[phase.easier]
        entropy = torch.special.entr(batch.posterior).sum(-1).mean()
        return torch.stack((entropy, torch.zeros_like(entropy)))

    # Weights

    def _masters(self) -> Weights:
        if self.config.precision != "bf16":
            return dict(self.model.named_parameters())
        masters = {}
        for name, p in self.model.named_parameters():
            masters[name] = p.detach().clone().requires_grad_(p.requires_grad)
            p.data = p.to(torch.bfloat16)
            self.used[name] = p.data
        return masters

    def _round(self) -> None:
        """Round the trained weights to what a model in bf16 computes with."""
        if self.config.precision == "bf16":
            with torch.no_grad():
                torch._foreach_copy_(list(self.used.values()), list(self.master.values()))

    def _collect_gradients(self) -> None:
        """Give the master weights the gradients of a model in bf16, in float32."""
        if self.config.precision == "bf16":
            for name, p in self.model.named_parameters():
                self.master[name].grad = None if p.grad is None else p.grad.float()

    def _averages(self) -> bool:
        """Return whether averaged weights are evaluated. Until a plateau the last steps are not
        known beforehand, and the falling rate does what their mean would."""
        config = self.config
        return bool(config.ema or (config.average and config.until == "steps"))

    @property
    def _average_start(self) -> int:
        """The first step whose weights are averaged: of all steps or, without ema, of the last."""
        begin = math.floor(self.config.steps * (1 - self.config.average))
        # The mean of a run that was extended may not have begun where it would have now.
        return 0 if self.config.ema else max(begin, *self.config.extended[-1:], 0)

    def _share(self, step: int) -> float:
        """Return the share of the weights after the step-th update (from 0) in their average; the
        first is the whole."""
        start = self._average_start
        if step < start:
            return 0.0
        share = 1 / (step + 1 - start)
        # A short memory at first, or the initial weights would linger.
        return max(1 - self.config.ema, share) if self.config.ema else share

    def _update_average(self, share: Tensor) -> None:
        mean, new = list(self.average.values()), list(self.master.values())
        # A lerp whose weight is on the device.
        change = torch._foreach_sub(new, mean)
        torch._foreach_mul_(change, share)
        torch._foreach_add_(mean, change)

    def best(self) -> Weights:
        """Return the weights to evaluate: the averaged ones as soon as there are any."""
        averaged = self._averages() and self.count > self._average_start
        return self.average if averaged else self.master

    @contextmanager
    def using(self, weights: Weights) -> Iterator[nn.Module]:
        """Yield the model with other weights, in float32."""
        for name, p in self.model.named_parameters():
            p.data = weights[name].detach()
        try:
            yield self.model
        finally:
            for name, p in self.model.named_parameters():
                p.data = self.used[name]

    # State

    def reschedule(self) -> None:
        """Fill in what is known of the learning rates of the next steps."""

        def factor(step: int) -> float:
            return lr_factor(step, self.config, self.plateau)

        self.schedule.fill(self.count, factor, self._share)

    def flops(self) -> float:
        """Return about how many floating-point operations a step takes in this process: six for
        each parameter and token."""
        parameters = sum(p.numel() for p in self.model.parameters())
        return 6.0 * parameters * self.task.seq_len * self.config.batch_size

    def tensors(self) -> dict[str, Tensor]:
        """Return what a resume needs, besides the random generators."""
        groups = {
            "weights": {**self.master, **dict(self.model.named_buffers())},
            "mean": self.average if self.best() is self.average else {},
            "optimizer": self.optimizer.state_dict(),
            "step": {"sums": self.sums}
            | ({} if self.expected is None else {"expected": self.expected}),
        }
        return {f"{group}/{name}": x for group, xs in groups.items() for name, x in xs.items()}

    def load(self, count: int, tensors: dict[str, Tensor]) -> None:
        """Go to where `tensors` were taken, after `count` updates.

        Raises:
            KeyError, RuntimeError: the tensors are not those of this step.
        """
        self.count, self.phase = count, None
        self.schedule.step.fill_(count)
        if "step/expected" in tensors:
            self.expected = tensors["step/expected"].to(self.device)
        with torch.no_grad():
            for key, x in self.tensors().items():
                x.copy_(tensors[key])
        self.reschedule()
