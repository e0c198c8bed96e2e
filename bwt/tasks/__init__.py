"""Wind tunnels: families of sequences whose exact posterior is known.

`get` gives one by its name, `register` adds one: see `Task` for what it has to define, and
examples/own_task.py for a whole one.

>>> import bwt
>>> list(bwt.tasks.TASKS)[:3]
['bijection', 'hmm', 'recall']
>>> bwt.tasks.get("hmm", num_states=3).options()["num_states"]
3
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, overload

from bwt.options import build
from bwt.registry import Registry
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
    "register",
    "statement",
]

TaskClass = TypeVar("TaskClass", bound=type[Task])


def _check(name: str, cls: type) -> None:
    if not (isinstance(cls, type) and issubclass(cls, Task)):
        raise ValueError(f"task {name}: {cls!r} is not a subclass of bwt.tasks.Task")
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise ValueError(f"task {name}: {cls.__name__} does not define {missing}")
    undecorated = [key for key, x in vars(cls).items() if isinstance(x, dataclasses.Field)]
    if undecorated:
        raise ValueError(
            f"task {name}: its options ({', '.join(undecorated)}) need @dataclass(frozen=True) "
            f"above class {cls.__name__}"
        )
    if vars(cls).get("name", name) != name:
        raise ValueError(f"task {name}: {cls.__name__} says that its name is {cls.name!r}")
    cls.name = name


# Those of packages and those that are registered are found in it as well.
TASKS = Registry("task", {task.name: task for task in (Bijection, HMM, Recall)}, _check)


@overload
def register(name: str, cls: TaskClass) -> TaskClass: ...
@overload
def register(name: str, cls: None = None) -> Callable[[TaskClass], TaskClass]: ...
def register(name: str, cls: Any = None) -> Any:
    """Makes a task known by a name, to `bwt train` and all that follows. Also as a decorator:
    `@bwt.tasks.register("coin")`. An installed package needs no call, see bwt/registry.py.

    Raises:
        ValueError: the name is taken, or the class is not a task.

    >>> import bwt
    >>> class Short(bwt.tasks.Bijection):
    ...     pass
    >>> _ = bwt.tasks.register("short-bijection", Short)
    >>> bwt.tasks.get("short-bijection", num_symbols=4).seq_len
    5
    """
    return TASKS.register(name, cls)


def get(name: str, **options: Any) -> Task:
    """The task of that name.

    Raises:
        ValueError: there is no such task or option, or an option's value is out of range.

    >>> import torch, bwt
    >>> task = bwt.tasks.get("bijection", num_symbols=4)
    >>> batch = task.sample(2, generator=torch.Generator().manual_seed(0))
    >>> batch.tokens.shape, batch.posterior.shape
    (torch.Size([2, 5]), torch.Size([2, 3, 4]))
    >>> batch.posterior[0, 0]  # before anything is seen
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    return build(TASKS[name], options, f"task {name}")
