"""A trained model back from its run directory."""

from pathlib import Path

import torch
from torch import nn

from bwt import models, tasks
from bwt.runs import checkpoints
from bwt.runs.config import TrainConfig
from bwt.runs.directory import RunDirectory
from bwt.runs.files import RunError
from bwt.tasks import Task


def build_model(config: TrainConfig, task: Task) -> nn.Module:
    """With weights that follow from the seed alone. They are drawn on the CPU, and the generators
    of GPUs are left alone: to ask for them would take memory on every GPU."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.seed)
        return models.build_for(task, config.model, **config.model_options)


def load(path: str | Path, step: int | None = None, device: str | torch.device = "cpu"):
    """(task, model, config) of a run, with the weights of a step, by default the last one."""
    run = RunDirectory.open(path)
    config, task = read_config(run)
    model = build_model(config, task).to(device)
    checkpoints.fill(run, model, checkpoints.load_weights(run, step, device))
    return task, model.eval(), config


def read_config(run: RunDirectory) -> tuple[TrainConfig, Task]:
    """
    Raises:
        RunError: there is something in config.json that cannot be.
    """
    try:
        config = TrainConfig.from_json(run.read_config())
        task = tasks.get(config.task, **config.task_options)
        models.check_memory(task, config.model, config.model_options)
        return config, task
    except RunError:
        raise
    except ValueError as error:
        raise RunError(f"{run.path / 'config.json'}: {error}") from error
