"""Calls of device functions are expanded in place.

Device functions are not recursive in the kernels under test, so a call is a copy of the body
with its own registers, and the `.param` space of a call becomes registers too. The executor
then knows neither calls nor return addresses.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import PTXError
from .formats import dtype_of
from .program import (
    SPECIAL_REGISTERS,
    Address,
    Function,
    Instruction,
    Label,
    Module,
    Pair,
    Register,
    Symbol,
    Vector,
)

MAX_DEPTH = 16


@dataclass
class Frame:
    """One copy of a function body."""

    function: Function
    suffix: str  # of all registers and labels of this copy
    arguments: dict[str, str]  # names of the function's parameters -> those of the caller
    end: str | None  # the label to which `ret` jumps; None in the entry
    depth: int

    def labels(self) -> set[str]:
        found = {item.name for item in self.function.body if isinstance(item, Label)}
        return found | set(self.function.branch_targets)


class Inliner:
    """Builds the straight list of instructions of one entry."""

    def __init__(self, module: Module, entry: Function):
        self.module = module
        self.entry = entry
        self.entry_parameters = {parameter.name for parameter in entry.parameters}
        self.registers = dict(entry.registers)
        self.branch_targets: dict[str, list[str]] = {}
        self.body: list[Instruction | Label] = []
        self.calls = 0

    def run(self) -> None:
        self._expand(Frame(self.entry, "", {}, None, 0))

    def _expand(self, frame: Frame) -> None:
        """Append the body of a function."""
        function, suffix = frame.function, frame.suffix
        if frame.depth > MAX_DEPTH:
            raise PTXError(f"calls are nested deeper than {MAX_DEPTH}: recursion?")
        if function.local_memory:
            raise PTXError(f"{function.name} uses local memory: {function.local_memory}")
        for table, targets in function.branch_targets.items():
            self.branch_targets[table + suffix] = [target + suffix for target in targets]
        for name, kind in function.registers.items():
            self.registers[name + suffix] = kind
        labels = frame.labels()
        for item in function.body:
            if isinstance(item, Label):
                self.body.append(Label(item.name + suffix))
                continue
            try:
                self._instruction(_renamed(item, suffix, labels), frame)
            except PTXError as error:
                raise PTXError(f"line {item.line}: {error}") from None
        if frame.end is not None:
            self.body.append(Label(frame.end))

    def _instruction(self, item: Instruction, frame: Frame) -> None:
        if item.name == "call":
            self._call(item, frame)
        elif item.name == "ret" and frame.end is not None:
            target = (Symbol(frame.end),)
            self.body.append(item.with_changes(name="bra", modifiers=(), operands=target))
        elif item.name in ("ld", "st") and "param" in item.modifiers:
            place = item.operands[1] if item.name == "ld" else item.operands[0]
            name = place.base.name
            if name in self.entry_parameters:
                self.body.append(item)
            else:
                owner = frame.arguments.get(name, f"{frame.suffix}/{name}")
                self._parameter_moves(item, place, owner)
        else:
            self.body.append(item)

    def _parameter_moves(self, item: Instruction, place: Address, owner: str) -> None:
        """`ld.param` and `st.param` of a call become moves between registers."""
        kind = item.kind
        value = item.operands[0] if item.name == "ld" else item.operands[1]
        parts = value.parts if isinstance(value, Vector) else (value,)
        for i, part in enumerate(parts):
            offset = place.offset + i * dtype_of(kind).itemsize
            slot = Register(f"{owner}+{offset}")
            self.registers.setdefault(slot.name, f"b{8 * dtype_of(kind).itemsize}")
            operands = (part, slot) if item.name == "ld" else (slot, part)
            self.body.append(item.with_changes(name="mov", modifiers=(kind,), operands=operands))

    def _call(self, item: Instruction, frame: Frame) -> None:
        if item.guard is not None:
            raise PTXError("a predicated call is not implemented")
        vectors = [operand.parts for operand in item.operands if isinstance(operand, Vector)]
        target = next((o.name for o in item.operands if isinstance(o, Symbol)), None)
        if target not in self.module.functions:
            raise PTXError(f"call of {target or 'a pointer'}, which has no body in this PTX")
        function = self.module.functions[target]
        formal = [*function.results, *function.parameters]
        actual = [symbol for parts in vectors for symbol in parts]
        if len(formal) != len(actual):
            raise PTXError(f"call of {target} with {len(actual)} of {len(formal)} parameters")
        pairs = zip(formal, actual, strict=True)
        arguments = {f.name: f"{frame.suffix}/{a.name}" for f, a in pairs}
        self.calls += 1
        suffix = f"@call{self.calls}"
        self._expand(Frame(function, suffix, arguments, f"end{suffix}", frame.depth + 1))


def _renamed(item: Instruction, suffix: str, labels: set[str]) -> Instruction:
    if not suffix:
        return item
    operands = tuple(_rename(operand, suffix, labels) for operand in item.operands)
    return item.with_changes(operands=operands, guard=_rename(item.guard, suffix, labels))


def _rename(operand, suffix: str, labels: set[str]):
    """The operand as seen in a copy of its function whose names end with `suffix`."""
    if isinstance(operand, Register):
        special = operand.name.partition(".")[0] in SPECIAL_REGISTERS
        return operand if special else Register(operand.name + suffix, operand.negated)
    if isinstance(operand, Symbol):
        return Symbol(operand.name + suffix) if operand.name in labels else operand
    if isinstance(operand, Vector):
        return Vector(tuple(_rename(part, suffix, labels) for part in operand.parts))
    if isinstance(operand, Pair):
        return Pair(*(_rename(part, suffix, labels) for part in (operand.first, operand.second)))
    if isinstance(operand, Address):
        return Address(_rename(operand.base, suffix, labels), operand.offset)
    return operand  # an immediate, or no guard
