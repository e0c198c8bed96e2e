"""Other tasks at first, of the same kind as the one that is measured."""

import dataclasses

from bwt.options import kind_of
from bwt.runs.config import TrainConfig
from bwt.tasks import Task


def curriculum(config: TrainConfig, task: Task) -> list[Task]:
    """The tasks that take turns in the first `curriculum_steps` steps; none without a curriculum.

    Raises:
        ValueError: what is asked for is not an option of the task, or does not fit the model.
    """
    if not config.curriculum:
        return []
    name, _, values = config.curriculum.partition("=")
    fields = {field.name: field for field in dataclasses.fields(task)}
    if name not in fields or not values:
        known = ", ".join(fields)
        raise ValueError(
            f"curriculum {config.curriculum!r} is not OPTION=VALUE[,VALUE] with an option of task "
            f"{task.name}: {known}"
        )
    kind = kind_of(fields[name])
    easier = [dataclasses.replace(task, **{name: _value(kind, word)}) for word in values.split(",")]
    for other in easier:
        _check_fits(other, task, config.curriculum)
    return easier


def _value(kind: type, word: str) -> object:
    if kind is bool:
        if word not in ("true", "false"):
            raise ValueError(f"curriculum: {word!r} is neither true nor false")
        return word == "true"
    try:
        return kind(word)
    except ValueError:
        raise ValueError(f"curriculum: {word!r} is not a value of type {kind.__name__}") from None


def _check_fits(other: Task, task: Task, text: str) -> None:
    """The model is built for the task: its vocabularies, and at most its positions."""
    for size in ("vocab_size", "num_outcomes", "num_features", "feature_width"):
        if getattr(other, size) != getattr(task, size):
            raise ValueError(
                f"curriculum {text!r}: its {size} is {getattr(other, size)}, that of the task "
                f"{getattr(task, size)}; a model has one"
            )
    if other.seq_len > task.seq_len:
        raise ValueError(f"curriculum {text!r} has longer sequences than the task itself")
