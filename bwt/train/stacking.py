"""Runs that train together, stacked in one program: those that differ only in their seeds, their
learning rates and other numbers. Each product of a step is one for all of them, each kernel is
launched once; every run keeps its own data, weights, records and end.

A run trained in a stack is the run trained alone up to rounding: sums may be taken in another
order. One that diverges does not touch the others, as nothing is summed over runs.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bwt import models
from bwt.runs.config import TrainConfig
from bwt.runs.device import local_device
from bwt.runs.directory import RunDirectory
from bwt.runs.files import RunError
from bwt.train import distributed
from bwt.train.extending import extended
from bwt.train.program import Program
from bwt.train.run import open_again, record_extension, run_all, start_or_restore
from bwt.train.settings import set_threads, torch_settings
from bwt.train.trainer import Result, Trainer

# What may differ between runs of a stack.
NUMBERS = {"seed", "lr", "muon_lr", "beta1", "beta2", "weight_decay", "clip", "warmup", "decay"}
# Heads in a tile of an attention kernel, at most: a tile must not hold two runs.
TILE = 4
UNSTACKED = {"lstm": "torch's LSTM has one set of weights"}


def why_not_stacked(config: TrainConfig) -> str | None:
    """Why a run has to train by itself, or None."""
    if config.model in UNSTACKED:
        return UNSTACKED[config.model]
    if config.model not in models.OWN:
        return f"{config.model} is not one of our models, which are known to stack"
    if config.key_penalty:
        return "key_penalty looks into the model"
    if config.compile != "off":
        return "compiled models are not stacked"
    if config.batch_size % TILE and config.device != "cpu":
        return f"batch_size is no multiple of {TILE}, so that runs would share tiles of a kernel"
    return None


def alike(config: TrainConfig) -> dict[str, Any]:
    """What runs must have in common to be stacked."""
    return {name: value for name, value in config.to_json().items() if name not in NUMBERS}


def resume_together(
    outs: Sequence[str | Path],
    *,
    extend: int | None = None,
    say: Callable[[str], None] = lambda text: None,
    quiet: bool = False,
) -> list[Result]:
    """Continues runs from their last saved step, which must be the same, or begins those that have
    a config.json and nothing else. Finished ones can be extended by some steps.

    Raises:
        RunError: they cannot be stacked; it says why.
    """
    opened = [open_again(out) for out in outs]
    runs = [run for run, _ in opened]
    before = [config for _, config in opened]
    configs = before
    if extend is not None:
        configs = [extended(run, x, extend) for run, x in opened]
    _check(runs, configs)
    device = local_device(configs[0].device)
    with torch_settings(configs[0]), ExitStack() as locks:
        for run in runs:
            locks.enter_context(run.locked())
        trainers = [
            Trainer(config, run, device, _named(say, run), quiet)
            for config, run in zip(configs, runs, strict=True)
        ]
        Program(trainers)  # takes them in
        set_threads(configs[0].threads, sum(x.flops() for x in trainers))
        for trainer in trainers:
            start_or_restore(trainer, stacked=len(trainers))
        if extend is not None:
            for trainer, config in zip(trainers, before, strict=True):
                record_extension(trainer, config)
        say(f"{len(trainers)} runs together, from step {trainers[0].step} of {trainers[0].last}")
        return run_all(trainers)


def _named(say: Callable[[str], None], run: RunDirectory) -> Callable[[str], None]:
    return lambda text: say(f"{run.path.name}: {text}")


def _check(runs: Sequence[RunDirectory], configs: Sequence[TrainConfig]) -> None:
    if distributed.announced():
        raise RunError("a stack is trained by one process; leave out torchrun")
    for run, config in zip(runs, configs, strict=True):
        if reason := why_not_stacked(config):
            raise RunError(f"{run.path} cannot be trained with others: {reason}")
        for name, value in alike(config).items():
            if value != alike(configs[0])[name]:
                raise RunError(
                    f"{run.path} cannot be trained with {runs[0].path}: its {name} is {value!r}, "
                    f"not {alike(configs[0])[name]!r}"
                )
    steps = [max(run.resumable_steps(), default=0) for run in runs]
    if len(set(steps)) > 1:
        told = ", ".join(f"{run.path.name} {step}" for run, step in zip(runs, steps, strict=True))
        raise RunError(f"runs that train together must be at one step, and are at: {told}")
    if len({run.path.resolve() for run in runs}) < len(runs):
        raise RunError("a run is named twice")
