"""An entry made ready for execution: calls inlined, labels resolved, variables placed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .errors import PTXError
from .formats import dtype_of, number_to_bytes
from .inline import Inliner
from .ops_memory import VECTORS, state_space
from .parser import parse
from .program import (
    Address,
    Immediate,
    Instruction,
    Label,
    Parameter,
    Symbol,
    Variable,
    Vector,
)


@dataclass
class Kernel:
    name: str
    parameters: list[Parameter]
    instructions: list[Instruction]
    thread_limits: dict[str, int]
    registers: dict[str, str]
    labels: dict[str, int]
    branch_targets: dict[str, list[str]]
    shared_offsets: dict[str, int]
    static_shared: int
    data: list[Variable]
    granule: int
    communicates: bool  # whether the warps of a block can see each other's work


@lru_cache(maxsize=64)
def prepare(text: str, wanted: str | None) -> Kernel:
    module = parse(text)
    entry = module.entry(wanted)
    inliner = Inliner(module, entry)
    inliner.run()
    instructions, labels = _resolve_labels(inliner.body)
    used = [v for name, v in module.variables.items() if name in _symbols(instructions)]
    offsets, static = _place_shared(used)
    return Kernel(
        name=entry.name,
        parameters=entry.parameters,
        instructions=instructions,
        thread_limits=entry.thread_limits,
        registers=inliner.registers,
        labels=labels,
        branch_targets=inliner.branch_targets,
        shared_offsets=offsets,
        static_shared=static,
        data=[v for v in used if v.space != "shared"],
        granule=_granule(instructions),
        communicates=bool(offsets) or any(i.name in ("bar", "barrier") for i in instructions),
    )


def _resolve_labels(body) -> tuple[list[Instruction], dict[str, int]]:
    instructions, labels = [], {}
    for item in body:
        if isinstance(item, Label):
            if item.name in labels:
                raise PTXError(f"label {item.name} is defined twice")
            labels[item.name] = len(instructions)
        else:
            instructions.append(item)
    return instructions, labels


def _symbols(instructions) -> set[str]:
    """All names that occur in operands."""
    found = set()
    pending = [operand for instruction in instructions for operand in instruction.operands]
    while pending:
        operand = pending.pop()
        if isinstance(operand, Vector):
            pending.extend(operand.parts)
        elif isinstance(operand, Address):
            pending.append(operand.base)
        elif isinstance(operand, Symbol):
            found.add(operand.name)
    return found


def _place_shared(variables: list[Variable]) -> tuple[dict[str, int], int]:
    """Static arrays one after the other, then everything dynamic at one common place."""
    offsets, end = {}, 0
    shared = [v for v in variables if v.space == "shared"]
    for variable in sorted(shared, key=lambda v: v.count == 0):
        size = dtype_of(variable.kind).itemsize
        align = variable.align or size
        end = -(-end // align) * align
        offsets[variable.name] = end
        end += variable.count * size
    return offsets, end


def _granule(instructions) -> int:
    """The smallest access to shared memory, in bytes: all others are multiples of it."""
    sizes = [16]
    for instruction in instructions:
        if instruction.name == "cp":
            sizes += [o.bits for o in instruction.operands[2:3] if isinstance(o, Immediate)]
        elif instruction.name in ("ld", "st", "atom", "red") and state_space(instruction) in (
            "shared",
            "generic",
        ):
            count = VECTORS.get(instruction.first_of(*VECTORS, default=""), 1)
            sizes.append(dtype_of(instruction.kind).itemsize * count)
    return min(sizes)


def initial_bytes(variable: Variable) -> np.ndarray:
    """The contents of a `.global` or `.const` array; what is not given is zero."""
    size = dtype_of(variable.kind).itemsize
    data = b""
    for literal in variable.values or []:
        if literal.float_width:
            data += literal.bits.to_bytes(size, "little")
        else:
            data += number_to_bytes(literal.bits, f"b{8 * size}")
    return np.frombuffer(data.ljust(variable.count * size, b"\0"), np.uint8).copy()
