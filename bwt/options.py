"""Fields of options dataclasses, from which flags of the `bwt` command are made."""

import dataclasses
import math
from collections.abc import Collection
from typing import Any

# Of any option of that name, unless it has a maximum of its own: nobody means more, and a slip of
# the keyboard or a damaged file should not fill the memory or take for ever.
LARGEST = {
    "steps": 10**9,
    "batch_size": 2**20,
    "evaluations": 10**5,
    "eval_sequences": 10**7,
    "seed": 2**62,
    "threads": 4096,
    **dict.fromkeys(("layers", "heads", "expansion", "kernel", "shift_span"), 1024),
    **dict.fromkeys(("width", "hidden", "embed", "rank", "state"), 2**17),
    **dict.fromkeys(("length", "num_pairs", "num_queries", "filler"), 10**6),
    **dict.fromkeys(("num_keys", "num_values"), 10**6),
    "position_table": 10**7,
}


def option(
    default: Any,
    help: str,
    choices: Collection[str] | None = None,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    below: float | None = None,
) -> Any:
    """The metadata is the help of the flag and what a value is checked by. `minimum` and `maximum`
    are allowed themselves, `below` is not."""
    bounds = {"minimum": minimum, "maximum": maximum, "below": below}
    return dataclasses.field(default=default, metadata={"help": help, "choices": choices, **bounds})


def build(cls: type, values: dict[str, Any], owner: str) -> Any:
    """An options dataclass from names and values, as a file or a caller has them.

    Raises:
        ValueError: it has no option of such a name, or a value is refused.
    """
    known = [field.name for field in dataclasses.fields(cls)]
    for name in values:
        if name not in known:
            raise ValueError(f"{owner}: no option {name!r}; its options are {', '.join(known)}")
    return cls(**values)


def kind_of(field: dataclasses.Field) -> type:
    """The type of a field's values. One whose default is None is a number that follows from
    others."""
    return int if field.default is None else type(field.default)


def check_options(options: Any, owner: str = "") -> None:
    """
    Raises:
        ValueError: an option has the wrong type or is out of range; the message names it.
    """
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if "help" in field.metadata and not (value is None and field.default is None):
            _check(owner + field.name, field, value)


def _check(name: str, field: dataclasses.Field, value: Any) -> None:
    wanted = kind_of(field)
    right = isinstance(value, (int, float) if wanted is float else wanted)
    if not right or (isinstance(value, bool) and wanted is not bool):
        raise ValueError(f"{name} must be {wanted.__name__}, got {_short(value)}")
    lowest, highest, below, choices = (
        field.metadata[key] for key in ("minimum", "maximum", "below", "choices")
    )
    if choices is not None and value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {_short(value)}")
    if highest is None:
        highest = LARGEST.get(field.name)
    if wanted is float and not math.isfinite(value):
        raise ValueError(f"{name} must be a number, got {value}")
    if below is not None and not lowest <= value < below:
        raise ValueError(f"{name} must be in [{lowest}, {below}), got {value}")
    if lowest is not None and value < lowest:
        raise ValueError(f"{name} must be at least {lowest}, got {value}")
    if highest is not None and value > highest:
        raise ValueError(f"{name} must be at most {highest}, got {value}")
    if wanted is int and value < 0:
        raise ValueError(f"{name} must not be negative, got {value}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def check_sequences(command: str, count: int) -> None:
    """Of the flag --sequences."""
    most = LARGEST["eval_sequences"]
    if not 1 <= count <= most:
        raise ValueError(f"{command}: --sequences must be at least 1, at most {most}, got {count}")
