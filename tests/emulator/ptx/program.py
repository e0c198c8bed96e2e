"""What the parser produces: operands, instructions, functions, modules."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from .errors import PTXError
from .formats import dtype_of

SPECIAL_REGISTERS = {
    *("%tid", "%ntid", "%ctaid", "%nctaid", "%laneid", "%warpid", "%nwarpid"),
    *(f"%lanemask_{relation}" for relation in ("eq", "lt", "le", "gt", "ge")),
    *("%dynamic_smem_size", "%total_smem_size"),
}


@dataclass(frozen=True)
class Register:
    name: str
    negated: bool = False


@dataclass(frozen=True)
class Immediate:
    """A literal: integers as Python ints, hexadecimal floats as their bits and width."""

    bits: int
    float_width: int = 0


@dataclass(frozen=True)
class Symbol:
    """A label, a variable, a parameter or a function."""

    name: str


@dataclass(frozen=True)
class Vector:
    parts: tuple


@dataclass(frozen=True)
class Address:
    base: Register | Symbol | Immediate
    offset: int


@dataclass(frozen=True)
class Pair:
    """Two destinations written `d|p`."""

    first: Register
    second: Register


@dataclass(frozen=True)
class Instruction:
    name: str
    modifiers: tuple[str, ...]
    operands: tuple
    guard: Register | None
    line: int
    text: str

    @property
    def kind(self) -> str:
        """The last modifier, which is the type for nearly every opcode."""
        return self.modifiers[-1] if self.modifiers else ""

    def expect(self, *known: str) -> None:
        """Refuse modifiers that the handler does not implement."""
        for modifier in self.modifiers:
            if modifier not in known:
                raise PTXError(f"modifier .{modifier} of {self.name} is not implemented")

    def first_of(self, *choices: str, default: str | None = None) -> str | None:
        """The first modifier that is one of `choices`."""
        return next((m for m in self.modifiers if m in choices), default)

    def with_changes(self, **changes) -> Instruction:
        return replace(self, **changes)


@dataclass(frozen=True)
class Label:
    name: str


@dataclass
class Parameter:
    name: str
    kind: str
    align: int
    count: int | None  # None for a scalar, bytes for a `.b8 name[count]` struct

    @property
    def size(self) -> int:
        return (self.count or 1) * dtype_of(self.kind).itemsize


@dataclass
class Variable:
    """A `.shared`, `.global` or `.const` array."""

    name: str
    space: str
    kind: str
    align: int
    count: int
    values: list | None = None


@dataclass
class Function:
    """An `.entry` or a `.func`."""

    name: str
    parameters: list[Parameter]
    results: list[Parameter]
    body: list[Instruction | Label] = field(default_factory=list)
    registers: dict[str, str] = field(default_factory=dict)
    branch_targets: dict[str, list[str]] = field(default_factory=dict)
    thread_limits: dict[str, int] = field(default_factory=dict)
    local_memory: str = ""  # its declaration; only kernels that need it are refused


@dataclass
class Module:
    entries: dict[str, Function] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)

    def entry(self, wanted: str | None) -> Function:
        """The entry named `wanted`, or the only one whose name contains it."""
        if wanted in self.entries:
            return self.entries[wanted]
        found = [name for name in self.entries if wanted is None or wanted in name]
        if len(found) == 1:
            return self.entries[found[0]]
        problem = "names no entry" if not found else "does not name one entry"
        raise PTXError(f"kernel={wanted!r} {problem}; the PTX has {sorted(self.entries)}")
