"""The models: `build` one by name. A model knows nothing of tasks.

A model is called as `model(tokens [B, L], features [B, F, W] | None, positions [P] | None)` and
returns logits [B, P, num_outcomes] (P = F + L if no positions are given). Features come before the
tokens; positions count both. Position t sees positions 0..t only.

>>> import bwt
>>> task = bwt.tasks.get("bijection", num_symbols=4)
>>> model = bwt.models.build_for(task, "lstm", width=16)
>>> list(bwt.models.MODELS)[:4], model.num_parameters
(['transformer', 'mamba', 'lstm', 'mlp'], 2384)

`register` adds one: see `Model` for what it has to define, and examples/own_model.py for a whole
one.
"""

import dataclasses
import os
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, overload

import torch

from bwt import options as option_values
from bwt.models.parts import Model, Shape
from bwt.registry import Registry

__all__ = [
    "MODELS",
    "OWN",
    "Model",
    "Shape",
    "build",
    "build_for",
    "check_memory",
    "match_parameters",
    "matchable",
    "options_class",
    "register",
]


class Sizes(Protocol):
    """What a model has to know of a task."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def num_outcomes(self) -> int: ...
    @property
    def seq_len(self) -> int: ...
    @property
    def feature_width(self) -> int: ...
    @property
    def num_features(self) -> int: ...


ModelClass = TypeVar("ModelClass", bound=type[Model])


def _check(name: str, cls: type) -> None:
    if not (isinstance(cls, type) and issubclass(cls, Model)):
        raise ValueError(f"model {name}: {cls!r} is not a subclass of bwt.models.Model")
    options = getattr(cls, "options_class", None)
    if not (isinstance(options, type) and dataclasses.is_dataclass(options)):
        raise ValueError(
            f"model {name}: {cls.__name__}.options_class is not a dataclass of options"
        )
    if any(
        field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        for field in dataclasses.fields(options)
    ):
        raise ValueError(f"model {name}: every option needs a default (bwt.options.option)")


OWN = ("transformer", "mamba", "lstm", "mlp")
# Loaded when they are asked for. Those of packages and those that are registered are found in it
# as well.
MODELS = Registry("model", {name: f"bwt.models.{name}:Model" for name in OWN}, _check)


@overload
def register(name: str, cls: ModelClass) -> ModelClass: ...
@overload
def register(name: str, cls: None = None) -> Callable[[ModelClass], ModelClass]: ...
def register(name: str, cls: Any = None) -> Any:
    """Makes a model known by a name, to `bwt train --model` and all that follows. Also as a
    decorator: `@bwt.models.register("gru")`. An installed package needs no call, see
    bwt/registry.py.

    Raises:
        ValueError: the name is taken, or the class is not a model.

    >>> import bwt
    >>> from bwt.models.mlp import Model
    >>> class Narrow(Model):
    ...     pass
    >>> _ = bwt.models.register("narrow-mlp", Narrow)
    >>> bwt.models.build("narrow-mlp", vocab_size=4, num_outcomes=2, seq_len=3, width=8).__class__
    <class 'bwt.models.Narrow'>
    """
    return MODELS.register(name, cls)


def options_class(name: str) -> Any:
    """The dataclass of a model's options.

    Raises:
        ValueError: there is no such model.
    """
    model: type[Model] = MODELS[name]
    return model.options_class


def build(
    name: str,
    *,
    vocab_size: int,
    num_outcomes: int,
    seq_len: int,
    feature_width: int = 0,
    num_features: int = 0,
    **options: Any,
) -> Model:
    """The model `name`, with random weights from torch's global generator.

    Args:
        seq_len: positions, features included.
        feature_width, num_features: of the continuous header, 0 if there is none.
        options: of the model, see `options_class(name)`.

    Raises:
        ValueError: an unknown model or option, or sizes that do not fit.

    >>> import torch, bwt
    >>> model = bwt.models.build("transformer", vocab_size=4, num_outcomes=2, seq_len=3)
    >>> model(torch.tensor([[0, 1, 2]])).shape
    torch.Size([1, 3, 2])
    """
    chosen = option_values.build(options_class(name), options, f"model {name}")
    shape = Shape(vocab_size, num_outcomes, seq_len, feature_width, num_features)
    return MODELS[name](shape, chosen)


def build_for(task: Sizes, name: str, **options: Any) -> Model:
    """`build` with the sizes of a task."""
    return build(
        name,
        vocab_size=task.vocab_size,
        num_outcomes=task.num_outcomes,
        seq_len=task.seq_len,
        feature_width=task.feature_width,
        num_features=task.num_features,
        **options,
    )


def check_memory(task: Sizes, name: str, options: dict[str, Any]) -> None:
    """
    Raises:
        ValueError: the weights of the model alone are more than the machine has memory for.
    """
    with torch.device("meta"):
        count = build_for(task, name, **options).num_parameters
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if 4 * count > memory:
        raise ValueError(
            f"a {name} of {count:,} parameters does not fit into the {memory / 1e9:.0f} GB of this "
            "machine; take fewer layers or less width"
        )


def matchable(name: str) -> bool:
    """Whether `match_parameters` knows what it may change: a model of another package need not have
    such options."""
    options = options_class(name)
    wanted = ("width", "width_step", "SECOND_SIZE", "second_size")
    return all(hasattr(options, attribute) for attribute in wanted)


def match_parameters(name: str, task: Sizes, target: int, **options: Any) -> dict[str, Any]:
    """The options with which model `name` has `target` parameters on this task, within 1%.

    The width is the largest that does not exceed the target; the rest goes to the model's second
    size (hidden units or embedding), which has finer steps. A model that has none (attention only)
    takes the nearest width.

    Raises:
        ValueError: no size comes that near.
    """
    fine = options_class(name).SECOND_SIZE

    def count(**sizes: int) -> int:
        with torch.device("meta"):
            return build_for(task, name, **{**options, **sizes}).num_parameters

    step = options_class(name)(**options).width_step
    if count(width=step) > target:
        raise ValueError(f"{name} cannot be as small as {target:,} parameters")
    width = step * _largest(lambda n: count(width=step * n) <= target, 1)
    default = build_size(name, width, options)
    # The last step may overshoot by less than it falls short.
    if count(width=width, **{fine: default}) == count(width=width, **{fine: default + 1}):
        choices = [dict(width=width), dict(width=width + step)]
    else:
        size = _largest(lambda n: count(width=width, **{fine: n}) <= target, default)
        choices = [{"width": width, fine: n} for n in (size, size + 1)]
    best = min(choices, key=lambda sizes: abs(count(**sizes) - target))
    reached = count(**best)
    if abs(reached - target) > 0.01 * target:
        raise ValueError(f"{name} has {reached:,} parameters at best, wanted {target:,} within 1%")
    return {**options, **best}


def build_size(name: str, width: int, options: dict[str, Any]) -> int:
    """What a second size of 0 stands for at this width."""
    return options_class(name)(**{**options, "width": width}).second_size


def _largest(holds: Callable[[int], bool], start: int) -> int:
    """The largest n >= start for which `holds`: it holds at the start, and not from some n on."""
    high = start + 1
    while holds(high):
        high = start + 2 * (high - start)
    low = start
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
