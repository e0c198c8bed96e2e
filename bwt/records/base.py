"""Frozen dataclasses as JSON and back, by their type hints.

A record is written as an object of its fields; an optional field that is None and may be missing is
left out. A number that is not finite is written as null and read as nan, or as None where None is
allowed. What does not fit is a RecordError that names the field:

    model.overall.kl.mean is 'x', not a number
"""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

R = TypeVar("R", bound="Record")
D = TypeVar("D", bound="Document")
Reader = Callable[[Any], Any]
LARGEST = 2**63  # nothing that is counted here comes near it, and a float can hold it


class RecordError(ValueError):
    """A value does not fit a record; the message is one line."""

    def __init__(self, fault: str, place: str = ""):
        super().__init__(f"{place} {fault}".strip())
        self.fault, self.place = fault, place

    def inside(self, outer: str) -> "RecordError":
        joint = "." if self.place and not self.place.startswith("[") else ""
        return RecordError(self.fault, f"{outer}{joint}{self.place}")


class Record:
    """A frozen dataclass that can be written as JSON and read again."""

    def to_json(self) -> dict[str, Any]:
        return plain(self)

    @classmethod
    def from_json(cls: type[R], value: Any) -> R:
        """
        Raises:
            RecordError: the value does not fit; the message names the field.
        """
        kind: Any = cls
        return _reader(kind)(value)


class Document(Record):
    """What a whole file holds, or a line of it. SCHEMA grows when its fields change meaning."""

    SCHEMA: ClassVar[int]
    # What a file without a schema is, of the time before there were schemas.
    UNMARKED: ClassVar[int] = 1
    REMEDY: ClassVar[str]  # of a file that does not fit; {run} is its folder

    def to_json(self) -> dict[str, Any]:
        return {"schema": self.SCHEMA, **super().to_json()}

    @classmethod
    def from_json(cls: type[D], value: Any) -> D:
        fields = dict(_object(value))
        schema = fields.pop("schema", cls.UNMARKED)
        if schema != cls.SCHEMA:
            raise RecordError(f"has schema {_short(schema)}, and this bwt reads {cls.SCHEMA}")
        return super().from_json(fields)


def plain(value: Any) -> Any:
    """Records as JSON objects, and null for numbers that are not finite."""
    if dataclasses.is_dataclass(value):
        fields = ((f, getattr(value, f.name)) for f in dataclasses.fields(value))
        return {f.name: plain(x) for f, x in fields if x is not None or f.default is not None}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@functools.cache
def _reader(kind: Any) -> Reader:
    """What makes a value of this type out of JSON."""
    if dataclasses.is_dataclass(kind):
        return lambda value: _read_record(kind, value)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _union_reader(arguments)
    if origin is list:
        return functools.partial(_read_list, _reader(arguments[0]))
    if origin is dict:
        return functools.partial(_read_dict, _reader(arguments[1]))
    return SIMPLE[kind]


def _union_reader(kinds: tuple[Any, ...]) -> Reader:
    """None and one other type, or records of which the names of their fields tell one."""
    others = [kind for kind in kinds if kind is not types.NoneType]

    def read(value: Any) -> Any:
        if value is None and types.NoneType in kinds:
            return None
        if len(others) == 1:
            return _reader(others[0])(value)
        names = set(_object(value))
        fitting = (kind for kind in others if _required(kind) <= names)
        return _reader(next(fitting, others[0]))(value)

    return read


@functools.cache
def _required(kind: type) -> set[str]:
    missing = dataclasses.MISSING
    return {
        f.name
        for f in dataclasses.fields(kind)
        if f.default is missing and f.default_factory is missing
    }


@functools.cache
def _field_readers(kind: type) -> dict[str, Reader]:
    hints = typing.get_type_hints(kind)
    return {f.name: _reader(hints[f.name]) for f in dataclasses.fields(kind)}


def _read_record(kind: Any, value: Any) -> Any:
    readers = _field_readers(kind)
    fields = _object(value)
    for name in fields:
        if name not in readers:
            raise RecordError(f"has no place for {_short(name)}")
    for name in _required(kind) - set(fields):
        raise RecordError(f"lacks {name!r}")
    return kind(**{name: _read_at(readers[name], name, item) for name, item in fields.items()})


def _read_at(reader: Reader, place: str, value: Any) -> Any:
    try:
        return reader(value)
    except RecordError as error:
        raise error.inside(place) from error


def _read_list(reader: Reader, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise RecordError(f"is {_short(value)}, not a list")
    return [_read_at(reader, f"[{i}]", item) for i, item in enumerate(value)]


def _read_dict(reader: Reader, value: Any) -> dict[str, Any]:
    return {name: _read_at(reader, name, item) for name, item in _object(value).items()}


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RecordError(f"is {_short(value)}, not an object")
    return value


def _number(value: Any) -> float:
    if value is None:
        return math.nan
    if type(value) is float:
        return value if math.isfinite(value) else math.nan
    if type(value) is not int or abs(value) > LARGEST:
        raise RecordError(f"is {_short(value)}, not a number")
    return value


def _whole_number(value: Any) -> int:
    if type(value) is not int or abs(value) > LARGEST:
        raise RecordError(f"is {_short(value)}, not a whole number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise RecordError(f"is {_short(value)}, not a text")
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise RecordError(f"is {_short(value)}, neither true nor false")
    return value


SIMPLE: dict[Any, Reader] = {
    int: _whole_number,
    float: _number,
    str: _text,
    bool: _truth,
    Any: lambda value: value,
}


def check_lengths(record: Any, *names: str) -> None:
    """
    Raises:
        RecordError: the fields of these names, which belong together, are not equally long.
    """
    lengths = {name: len(getattr(record, name)) for name in names}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{n} of {name}" for name, n in lengths.items())
        raise RecordError(f"is not whole: it has {shown}")


def check_names(given: typing.Iterable[str], wanted: typing.Iterable[str], what: str) -> None:
    """
    Raises:
        RecordError: one of the wanted names is not among those given.
    """
    missing = [name for name in wanted if name not in set(given)]
    if missing:
        raise RecordError(f"lacks {what} {missing[0]!r}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
