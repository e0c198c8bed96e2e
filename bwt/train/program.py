"""What an update computes, for one run or for several at once: sampling, forward, backward,
clipping, optimizer, averages. All of it happens on the device and depends on nothing that the host
knows but the phase of the training, so that it can be captured once and replayed."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn import functional

from bwt.runs.config import TrainConfig
from bwt.tasks import Batch
from bwt.train import distributed
from bwt.train.averaging import Averaged
from bwt.train.freezing import Frozen
from bwt.train.graphs import Graphs
from bwt.train.optim import Optimizer
from bwt.train.schedule import BLOCK, Timetable, lr_factor
from bwt.train.weights import Weights

Named = dict[str, Tensor]
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}


class Phase(NamedTuple):
    """What distinguishes the updates of a run from each other, on the device."""

    easier: int | None  # which task of a curriculum
    frozen: bool
    averaged: bool


def losses_of(logits: Tensor, batch: Batch, targets: str, models: int = 1) -> Tensor:
    """[M]: mean cross-entropy in nats, for a batch whose sequences belong to M models in turn."""
    wanted = batch.targets if targets == "sampled" else batch.exact
    each = functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]).float(), wanted.flatten(0, 1), reduction="none"
    )
    return each.view(models, -1).mean(1)


def joined(batches: Sequence[Batch]) -> Batch:
    """One batch of all their sequences."""
    tokens, targets = (torch.cat([getattr(x, n) for x in batches]) for n in ("tokens", "targets"))
    headers = [x.features for x in batches if x.features is not None]
    features = torch.cat(headers) if headers else None
    return batches[0]._replace(tokens=tokens, features=features, targets=targets)


class Program:
    """Of trainers whose models have one structure, and whose settings differ in numbers only. Each
    has a row of every buffer."""

    def __init__(self, trainers: Sequence):
        first = trainers[0]
        self.trainers, self.config, self.device = trainers, first.config, first.device
        configs = [x.config for x in trainers]
        muon = self.config.optimizer == "muon"
        dtype = DTYPES[self.config.precision]
        self.weights = Weights([x.model for x in trainers], muon=muon, dtype=dtype)
        self.optimizer = Optimizer(self.weights, configs)
        self.averaged = Averaged(self.weights.master, self.config)
        self.frozen = Frozen(first.model, self.weights, self.config)
        count = len(trainers)
        self.timetable = Timetable(count, self.device)
        self.losses = torch.zeros(count, BLOCK, device=self.device)  # of the last steps
        # Since the last log line, in nats: losses, their exact entropies, the errors of these.
        self.sums = torch.zeros(count, 3, device=self.device)
        if count == 1:
            self.leaves = dict(first.model.named_parameters())
        else:
            self.leaves = self.weights.leaves()
            self.buffers = _stacked([dict(x.model.named_buffers()) for x in trainers])
        many = distributed.world_size() > 1
        trained = {name: x for name, x in self.leaves.items() if x.requires_grad}
        self.buckets = distributed.Buckets(trained) if many else None
        self.entered: Phase | None = None
        self.graphs = None
        if graphed(self.config, self.device):
            generators = [x.generator for x in trainers]
            self.graphs = Graphs(self.run, generators, required=self.config.graph == "on")
        self.taken = 0  # steps
        for row, trainer in enumerate(trainers):
            trainer.join(self, row)
        self.reschedule()

    def step(self) -> None:
        """One update of every model. The host does not wait for the device."""
        step = self.taken
        phase = self.phase(step)
        if phase.frozen and not (self.entered and self.entered.frozen):
            self.frozen.begin(self.optimizer)
        self.entered = phase
        for trainer in self.trainers:
            trainer.expect()
        if step and step % BLOCK == 0:
            self.reschedule()
        if self.graphs is None:
            self.run(phase)
        else:
            self.graphs.run(phase)
        self.taken += 1
        for trainer in self.trainers:
            if not trainer.ended:
                trainer.step += 1
                trainer.loss_count += 1

    def phase(self, step: int) -> Phase:
        easier = self.trainers[0].easier_at(step)
        return Phase(easier, self.frozen.applies(step), self.averaged.applies(step))

    def reschedule(self) -> None:
        """Fill in what is known of the learning rates of the next steps."""
        factors = [partial(lr_factor, config=x.config, plateau=x.plateau) for x in self.trainers]
        self.timetable.fill(self.taken, factors, self.averaged.share)

    def go_to(self, step: int) -> None:
        """As after so many updates; weights and the like are filled in by whoever restores them."""
        self.timetable.step.fill_(step)
        self.taken, self.entered = step, None
        self.reschedule()

    def run(self, phase: Phase) -> None:
        """What happens on the device."""
        self.weights.refresh()
        loss, exact, added = self._losses(phase)
        found = torch.cat((loss.detach()[:, None], exact), 1)
        for leaf in self.leaves.values():
            leaf.grad = None
        if self.buckets:
            self.buckets.announce(found)
        (loss.sum() if added is None else loss.sum() + added).backward()
        with torch.no_grad():
            self._update(phase, found)

    def _update(self, phase: Phase, found: Tensor) -> None:
        if self.buckets:
            found = self.buckets.mean()
            self.weights.collect(self.buckets.gradients)
        else:
            self.weights.collect({name: leaf.grad for name, leaf in self.leaves.items()})
        if phase.frozen:
            self.frozen.hold()
        self.optimizer.clip()
        self.optimizer.step(self.timetable.factor())
        if phase.averaged:
            self.averaged.update(self.timetable.share())
        if phase.frozen:
            self.frozen.put_back(self.averaged.mean)
        self.losses.index_copy_(1, self.timetable.place(), found[:, :1])
        self.timetable.step += 1
        self.sums += found

    def _losses(self, phase: Phase) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the cross-entropies [M], their exact entropies with standard errors [M, 2], and
        the auxiliary loss, if there is one."""
        if len(self.trainers) == 1:
            trainer = self.trainers[0]
            batch = trainer.sample()
            loss, added = trainer.losses(batch)
            return loss, self._exact(batch, phase), added
        task = self.trainers[0].task_at(self.taken)
        batch = joined([x.draw(task) for x in self.trainers])
        if self.config.targets == "posterior":  # of all models at once
            batch = batch._replace(posterior=task.posterior(batch, check=False))
        logits = self._logits(batch)
        loss = losses_of(logits, batch, self.config.targets, len(self.trainers))
        return loss, self._exact(batch, phase), None

    def _exact(self, batch: Batch, phase: Phase) -> Tensor:
        """Return the entropies of the exact posteriors [M, 2], in nats, with standard errors: of
        this batch where its posteriors are there, otherwise what is expected of its task."""
        if batch.posterior is None:
            easier = -1 if phase.easier is None else phase.easier
            return torch.stack([x.expected[easier] for x in self.trainers])
        entropy = torch.special.entr(batch.posterior).sum(-1)
        mean = entropy.view(len(self.trainers), -1).mean(1)
        return torch.stack((mean, torch.zeros_like(mean)), 1)

    def _logits(self, batch: Batch) -> Tensor:
        """[M, B, P, O] of a batch of M * B sequences."""
        model, count = self.trainers[0].model, len(self.trainers)

        def one(weights: Named, buffers: Named, tokens: Tensor, features: Tensor | None) -> Tensor:
            return functional_call(model, (weights, buffers), (tokens, features, batch.positions))

        tokens = batch.tokens.unflatten(0, (count, -1))
        features = None if batch.features is None else batch.features.unflatten(0, (count, -1))
        axes = (0, 0, 0, None if features is None else 0)
        return vmap(one, in_dims=axes)(self.leaves, self.buffers, tokens, features)


def _stacked(buffers: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([x[name] for x in buffers]) for name in buffers[0]}


def graphed(config: TrainConfig, device: torch.device) -> bool:
    """Whether steps are captured and replayed.

    Raises:
        ValueError: that was asked for and cannot be.
    """
    if config.graph == "off":
        return False
    reason = why_no_graph(config, device)
    if reason is not None and config.graph == "on":
        raise ValueError(f"graph on: {reason}")
    return reason is None


def why_no_graph(config: TrainConfig, device: torch.device) -> str | None:
    """Why steps cannot be captured as a CUDA graph, or None."""
    if device.type != "cuda":
        return f"CUDA graphs need a GPU, and this runs on {device.type}"
    if distributed.world_size() > 1:
        return "several processes exchange gradients in each step, which is not captured"
    if config.compile != "off":
        return "compiled code is captured by torch itself: --compile graphs"
    return None
