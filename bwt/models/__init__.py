"""The models: `build` one by name. A model knows nothing of tasks.

A model is called as `model(tokens [B, L], features [B, F, W] | None, positions [P] | None)` and
returns logits [B, P, num_outcomes] (P = F + L if no positions are given). Features come before the
tokens; positions count both. Position t sees positions 0..t only.
"""

import importlib
import os
from typing import Any

import torch
from torch import nn

from bwt import options as option_values

# name -> module in this package; each has `Options` (a frozen dataclass) and `Model`.
MODELS = ("transformer", "mamba", "lstm", "mlp")


def _module(name: str):
    if name not in MODELS:
        raise ValueError(f"no model {name!r}; choose one of {', '.join(MODELS)}")
    return importlib.import_module(f"bwt.models.{name}")


def options_class(name: str) -> type:
    """The dataclass of a model's options."""
    return _module(name).Options


def build(
    name: str,
    *,
    vocab_size: int,
    num_outcomes: int,
    seq_len: int,
    feature_width: int = 0,
    num_features: int = 0,
    **options: Any,
) -> nn.Module:
    """The model `name`, with random weights from torch's global generator.

    Args:
        seq_len: positions, features included.
        feature_width, num_features: of the continuous header, 0 if there is none.
        options: of the model, see `options_class(name)`.

    Raises:
        ValueError: an unknown model or option, or sizes that do not fit.
    """
    module = _module(name)
    chosen = option_values.build(module.Options, options, f"model {name}")
    from bwt.models.parts import Shape

    shape = Shape(vocab_size, num_outcomes, seq_len, feature_width, num_features)
    return module.Model(shape, chosen)


def build_for(task, name: str, **options: Any) -> nn.Module:
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


def check_memory(task, name: str, options: dict[str, Any]) -> None:
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


def match_parameters(name: str, task, target: int, **options: Any) -> dict[str, Any]:
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


def _largest(holds, start: int) -> int:
    """The largest n >= start for which `holds`: it holds at the start, and not from some n on."""
    high = start + 1
    while holds(high):
        high = start + 2 * (high - start)
    low = start
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
