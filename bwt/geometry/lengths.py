"""Beyond the length of training: the error by position."""

import torch
from torch import nn

from bwt.evaluate import evaluate, predictor
from bwt.records.geometry import Lengths, Skipped
from bwt.tasks import Task

STRETCH = 2.5  # the paper: trained on 20, tested on 50


def lengths(
    task: Task,
    model: nn.Module,
    sequences: int,
    *,
    seed: int,
    device: torch.device | str = "cpu",
) -> Lengths | Skipped:
    """KL and entropy error by position on longer sequences, or the reason why there are none."""
    if task.length_option is None:
        return Skipped(f"sequences of {task.name} have one length")
    trained = getattr(task, task.length_option)
    try:
        longer = task.with_length(round(STRETCH * trained))
        evaluation = evaluate(
            predictor(model),
            longer,
            num_sequences=sequences,
            batch_size=64,
            seed=seed,
            device=device,
        )
    except ValueError as error:  # the task has no longer sequences, or the model reads none
        return Skipped(str(error))
    curves = evaluation.model.per_position
    return Lengths(
        trained=trained,
        tested=round(STRETCH * trained),
        kl=curves["kl"],
        entropy_mae=curves["entropy_mae"],
        sequences=sequences,
    )
