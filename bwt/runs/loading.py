"""A trained model back from its run directory."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from bwt import models, registry, tasks
from bwt.runs import checkpoints
from bwt.runs.config import TrainConfig
from bwt.runs.directory import RunDirectory
from bwt.runs.files import RunError
from bwt.tasks import Task


def build_model(config: TrainConfig, task: Task) -> models.Model:
    """With weights that follow from the seed alone. They are drawn on the CPU, and the generators
    of GPUs are left alone: to ask for them would take memory on every GPU."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.seed)
        return models.build_for(task, config.model, **config.model_options)


class Loaded(NamedTuple):
    task: Task
    model: nn.Module  # in evaluation mode
    config: TrainConfig


def load(path: str | Path, step: int | None = None, device: str | torch.device = "cpu") -> Loaded:
    """What a run has trained: its task, its model and its configuration.

    Args:
        path: the run directory.
        step: of the weights, by default the last one that was saved.
        device: where the model goes.

    Raises:
        RunError: it is not a run directory, or one that is damaged.

    >>> import bwt, tempfile
    >>> out = tempfile.mkdtemp() + "/run"
    >>> settings = dict(steps=2, evaluations=1, eval_sequences=8)
    >>> config = bwt.train.TrainConfig("bijection", task_options={"num_symbols": 4}, **settings)
    >>> result = bwt.train.train(config, out)
    >>> task, model, config = bwt.load(out)
    >>> task.name, task.num_symbols, config.steps
    ('bijection', 4, 2)
    """
    run = RunDirectory.open(path)
    config, task = read_config(run)
    model = build_model(config, task).to(device)
    checkpoints.fill(run, model, checkpoints.load_weights(run, step, device))
    return Loaded(task, model.eval(), config)


def read_config(run: RunDirectory) -> tuple[TrainConfig, Task]:
    """
    Raises:
        RunError: there is something in config.json that cannot be.
    """
    try:
        config = TrainConfig.from_json(run.read_config())
        _check_known(run, config)
        task = tasks.get(config.task, **config.task_options)
        models.check_memory(task, config.model, config.model_options)
        return config, task
    except RunError:
        raise
    except ValueError as error:
        raise RunError(f"{run.path / 'config.json'}: {error}") from error


def _check_known(run: RunDirectory, config: TrainConfig) -> None:
    """
    Raises:
        ValueError: the task or the model is not registered; it says what to import.
    """
    for kind, name, known in (
        ("task", config.task, tasks.TASKS),
        ("model", config.model, models.MODELS),
    ):
        source = run.registered().get(kind) if name not in known else None
        if source is not None:
            raise ValueError(
                f"{kind} {name!r} is not known here; it was registered by {source}: import that "
                f"first, or set {registry.VARIABLE}={source}"
            )
