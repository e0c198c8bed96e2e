"""Wind tunnels: families of sequences whose exact posterior is known."""

import dataclasses

from bwt.tasks._base import Batch, Task, statement
from bwt.tasks.bijection import Bijection
from bwt.tasks.hmm import HMM
from bwt.tasks.recall import Recall

__all__ = ["HMM", "TASKS", "Batch", "Bijection", "Recall", "Task", "get", "statement"]

TASKS: dict[str, type[Task]] = {task.name: task for task in (Bijection, HMM, Recall)}


def get(name: str, **options) -> Task:
    """The task of that name.

    Raises:
        ValueError: there is no such task or option, or an option's value is out of range.
    """
    if name not in TASKS:
        raise ValueError(f"no task {name!r}; choose one of {', '.join(TASKS)}")
    known = [field.name for field in dataclasses.fields(TASKS[name])]
    for option in options:
        if option not in known:
            raise ValueError(
                f"task {name}: no option {option!r}; its options are {', '.join(known)}"
            )
    return TASKS[name](**options)
