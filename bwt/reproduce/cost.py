"""What a scale costs before it is run: from steps timed here, or from counted operations."""

import dataclasses
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from bwt import models, tasks, train
from bwt.reproduce import plan
from bwt.reproduce.scales import Scale
from bwt.runs.config import TrainConfig
from bwt.runs.directory import RunDirectory

Sizes = Sequence[int]  # of a tensor

START = 6.0  # seconds until a process trains: imports, building


def configs(scale: Scale, seeds: int | None) -> Iterator[tuple[str, TrainConfig, float]]:
    """(name, config, how many runs of its full length there are). Of a run until a plateau, and of
    a range of rates that may be extended, it is taken as planned."""
    for study, variant in plan.wanted(scale, ()):
        count = float(seeds or study.seeds or scale.seeds)
        if study.tuned:
            tried = len(scale.rates) * plan.TRIED  # at most: some second seeds are not needed
            # Tried on the whole budget, the runs of the chosen rate are those of the tables.
            count += scale.trial * tried if scale.trial < 1 else tried - min(plan.TRIED, count)
        cell = plan.plan_cell(scale, Path("."), study, variant, 0).cell
        yield "-".join(plan.key_of(study, variant)), cell.config, count


def step_seconds(config: TrainConfig, steps: int = 6) -> tuple[float, float]:
    """Of a training step on this CPU with one thread, and of an evaluation."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        enough = dataclasses.replace(config, steps=max(config.steps, steps + 2))
        step = train.build_step(enough, torch.device("cpu"))
        run = train.Run(RunDirectory("."), enough, step)
        for _ in range(2):
            step.update()
        start = time.perf_counter()
        for _ in range(steps):
            step.update()
        trained = time.perf_counter()
        run.evaluate()
        return (trained - start) / steps, time.perf_counter() - trained
    finally:
        torch.set_num_threads(before)


def _attention(q: Sizes, k: Sizes, *rest: object, **options: object) -> int:
    """Forward and backward: two and five products, of which the causal mask leaves half."""
    B, H, T, D = q
    return 7 * B * H * T * k[2] * D


def _scan(u: Sizes, delta: Sizes, A: Sizes, *rest: object, **options: object) -> int:
    """Forward and backward: about 6 and 14 operations for each channel, state and step."""
    B, L, E = u
    return 20 * B * L * E * A[1]


def sequence_flops(config: TrainConfig) -> int:
    """Floating-point operations of one sequence in training, forward and backward: products as
    torch counts them in a real step, ours by the formulas above."""
    task = tasks.get(config.task, **config.task_options)
    model = models.build_for(task, config.model, **config.model_options)
    batch = task.sample(2, generator=torch.Generator().manual_seed(0))
    formulas: dict[str, Callable[..., int]] = {"attention": _attention, "selective_scan": _scan}
    known = {op: f for name, f in formulas.items() if (op := getattr(torch.ops.bwt, name, None))}
    # oneDNN's LSTM is one opaque call; without it torch counts its products. Turning it off
    # and on again makes torch speak of Intel GPUs.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _count(model, batch, known)


def _count(model: nn.Module, batch: tasks.Batch, known: dict[Any, Callable[..., int]]) -> int:
    with (
        torch.backends.mkldnn.flags(enabled=False),
        FlopCounterMode(display=False, custom_mapping=known) as counter,
    ):
        model(batch.tokens, batch.features, batch.positions).sum().backward()
    return counter.get_total_flops() // len(batch.tokens)


def measured(scale: Scale, seeds: int | None) -> dict[str, float]:
    """Seconds of one core by task and row, from steps timed now."""
    costs = {}
    for name, config, count in configs(scale, seeds):
        step, evaluation = step_seconds(config)
        each = START + step * config.steps + evaluation * config.evaluations
        costs[name] = count * each
    return costs


def counted(scale: Scale, seeds: int | None) -> dict[str, float]:
    """Floating-point operations of training by task and row."""
    return {
        name: float(count) * sequence_flops(config) * config.steps * config.batch_size
        for name, config, count in configs(scale, seeds)
    }
