"""Wind tunnels: families of sequences whose exact posterior is known."""

from bwt.options import build
from bwt.tasks._base import Addresses, Batch, Task, statement
from bwt.tasks.bijection import Bijection
from bwt.tasks.hmm import HMM
from bwt.tasks.recall import Recall

__all__ = [
    "HMM",
    "TASKS",
    "Addresses",
    "Batch",
    "Bijection",
    "Recall",
    "Task",
    "get",
    "statement",
]

TASKS: dict[str, type[Task]] = {task.name: task for task in (Bijection, HMM, Recall)}


def get(name: str, **options) -> Task:
    """The task of that name.

    Raises:
        ValueError: there is no such task or option, or an option's value is out of range.
    """
    if name not in TASKS:
        raise ValueError(f"no task {name!r}; choose one of {', '.join(TASKS)}")
    return build(TASKS[name], options, f"task {name}")
