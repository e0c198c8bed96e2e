"""Fields of options dataclasses, from which flags of the `bwt` command are made."""

import dataclasses
from typing import Any


def option(default: Any, help: str, choices=None, *, minimum=None, maximum=None) -> Any:
    """The metadata is the help of the flag and what a value is checked by. minimum belongs to the
    range, maximum too."""
    metadata = {"help": help, "choices": choices, "minimum": minimum, "maximum": maximum}
    return dataclasses.field(default=default, metadata=metadata)


def check_choices(options: Any) -> None:
    for field in dataclasses.fields(options):
        choices, value = field.metadata.get("choices"), getattr(options, field.name)
        if choices and value not in choices:
            raise ValueError(f"{field.name} must be one of {', '.join(choices)}, got {value!r}")
        if isinstance(value, int) and not isinstance(value, bool) and value < 0:
            raise ValueError(f"{field.name} must not be negative, got {value}")
