"""Instructions bound to a machine, with what the executor needs to know about them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from . import ops_bits, ops_compare, ops_float, ops_integer, ops_matrix, ops_memory, ops_warp
from .errors import PTXError
from .formats import scalar
from .machine import Machine
from .ops_compare import read_predicate
from .pipes import operations_of, pipe_of
from .program import SPECIAL_REGISTERS, Address, Immediate, Instruction, Pair, Register, Vector
from .registry import bind

# Importing these modules fills the opcode table.
HANDLER_MODULES = (
    ops_bits,
    ops_compare,
    ops_float,
    ops_integer,
    ops_matrix,
    ops_memory,
    ops_warp,
)
WITHOUT_RESULT = {
    *("st", "stmatrix", "red", "cp", "bar", "barrier", "bra", "brx", "exit", "ret", "trap"),
    *("membar", "fence", "prefetch", "prefetchu", "nanosleep"),
}
EVERYONE = Immediate(-1)
# The operand that holds the member mask; .aligned instructions name the whole warp.
MEMBER_OPERAND = {"shfl": -1, "vote": -1, "match": -1, "redux": -1}
MEMBER_OPERAND |= {"mma": None, "ldmatrix": None, "stmatrix": None}


class Step:
    """One instruction, ready to run."""

    def __init__(self, machine: Machine, instruction: Instruction):
        self.line = instruction.line
        self.text = instruction.text
        self.key = counter_key(instruction)
        self.pipe = pipe_of(instruction)
        self.operations = operations_of(instruction)
        self.run: Callable | None = None
        self.finish: Callable | None = None
        self.special = ""
        self.convergent = False  # may run in a straight line when its warps are whole
        self.targets: list[int] = []
        self.index = None
        self.members = None
        self.barrier_number = 0
        self.reads, self.writes = _register_use(instruction)
        self.guard = None
        if instruction.guard is not None:
            self.guard = machine.read(instruction.guard, "pred")
            self.negated = instruction.guard.negated
        BINDERS.get(instruction.name, _bind_ordinary)(self, machine, instruction)

    def active(self, mask: np.ndarray | None) -> np.ndarray:
        """The lanes of `mask` for which the guard holds."""
        if self.negated:
            return ~self.guard if mask is None else mask & ~self.guard
        # A copy, because the instruction may overwrite its own guard.
        return self.guard.copy() if mask is None else mask & self.guard

    def member_words(self, lanes: int) -> np.ndarray:
        return np.broadcast_to(self.members, lanes)


def bind_steps(machine: Machine) -> list[Step]:
    steps = []
    for instruction in machine.kernel.instructions:
        try:
            steps.append(Step(machine, instruction))
        except PTXError as error:
            text = f"{error}; line {instruction.line}: {instruction.text}"
            raise PTXError(text) from None
    _allow_undefined_halves(machine.kernel.instructions, steps)
    return steps


def _allow_undefined_halves(instructions: list[Instruction], steps: list[Step]) -> None:
    """A compiler that needs one half of a pair only packs it with a register that nothing writes.
    Such a register has all bits set, so that a use of it shows in results."""
    written = frozenset().union(*(step.writes for step in steps))
    for instruction, step in zip(instructions, steps, strict=True):
        if instruction.name == "mov" and isinstance(instruction.operands[-1], Vector):
            step.reads &= written


def counter_key(instruction: Instruction) -> str:
    """The name under which Stats.opcodes counts it: `mma.sync`, `ld.global`, `add`."""
    name = instruction.name
    if name in ("ld", "st", "atom", "red"):
        return f"{name}.{ops_memory.state_space(instruction)}"
    if name in ("cp", "bar", "barrier") or name in MEMBER_OPERAND:
        return f"{name}.{instruction.modifiers[0]}"
    return name


def _register_use(instruction: Instruction) -> tuple[frozenset, frozenset]:
    operands = instruction.operands
    has_result = instruction.name not in WITHOUT_RESULT and bool(operands)
    if instruction.name in ("bar", "barrier"):
        has_result = "red" in instruction.modifiers
    reads = set() if instruction.guard is None else {instruction.guard.name}
    for operand in operands[1:] if has_result else operands:
        reads |= _registers_in(operand)
    writes = _registers_in(operands[0]) if has_result else set()
    return frozenset(reads), frozenset(writes)


def _registers_in(operand) -> set[str]:
    if isinstance(operand, Register):
        special = operand.name.partition(".")[0] in SPECIAL_REGISTERS
        return set() if special else {operand.name}
    if isinstance(operand, Vector):
        return set().union(*(_registers_in(part) for part in operand.parts))
    if isinstance(operand, Pair):
        return _registers_in(operand.first) | _registers_in(operand.second)
    if isinstance(operand, Address):
        return _registers_in(operand.base)
    return set()


def _bind_ordinary(step: Step, machine: Machine, instruction: Instruction) -> None:
    step.run = bind(machine, instruction)


def _bind_collective(step: Step, machine: Machine, instruction: Instruction) -> None:
    step.special = "collective"
    place = MEMBER_OPERAND[instruction.name]
    members = EVERYONE if place is None else instruction.operands[place]
    step.members = machine.read(members, "u32")
    all_named = not isinstance(step.members, np.ndarray) and step.members == 0xFFFFFFFF
    step.convergent = all_named and instruction.guard is None
    step.run = bind(machine, instruction)


def _bind_branch(step: Step, machine: Machine, instruction: Instruction) -> None:
    instruction.expect("uni")
    step.special = "branch"
    step.targets = [_target(machine, instruction.operands[0].name)]


def _bind_branch_table(step: Step, machine: Machine, instruction: Instruction) -> None:
    instruction.expect("idx", "uni")
    step.special = "table"
    index, table = instruction.operands
    step.index = machine.read(index, "u32")
    if table.name not in machine.kernel.branch_targets:
        raise PTXError(f"unknown branch table {table.name}")
    step.targets = [_target(machine, n) for n in machine.kernel.branch_targets[table.name]]


def _target(machine: Machine, name: str) -> int:
    if name not in machine.kernel.labels:
        raise PTXError(f"unknown label {name}")
    return machine.kernel.labels[name]


def _bind_exit(step: Step, machine: Machine, instruction: Instruction) -> None:
    instruction.expect("uni")
    step.special = "exit"


def _bind_trap(step: Step, machine: Machine, instruction: Instruction) -> None:
    def run(mask):
        raise PTXError("the kernel executes trap")

    step.run = run


def _bind_barrier(step: Step, machine: Machine, instruction: Instruction) -> None:
    words = [word for word in instruction.modifiers if word not in ("cta", "aligned")]
    if words == ["warp", "sync"]:
        step.special = "collective"
        step.members = machine.read(instruction.operands[0], "u32")
        step.run = lambda mask: None
        return
    step.special = "barrier"
    step.members = scalar(-1, "u32")
    operands = list(instruction.operands)
    if words[0] == "red":
        _bind_barrier_reduction(step, machine, words, operands)
        operands = operands[1:-1]
    elif words != ["sync"]:
        raise PTXError("only bar.sync, bar.red and bar.warp.sync are implemented")
    if not all(isinstance(operand, Immediate) for operand in operands):
        raise PTXError("barriers with numbers in registers are not implemented")
    numbers = [operand.bits for operand in operands]
    step.barrier_number = numbers[0] if numbers else 0
    if len(numbers) > 1 and numbers[1] != machine.layout.lanes_per_block:
        raise PTXError("barriers for a part of the block are not implemented")


def _bind_barrier_reduction(step, machine, words, operands) -> None:
    """The predicates are collected on arrival and combined when the barrier opens."""
    operation, kind = words[1], words[2]
    flags = read_predicate(machine, operands[-1])
    put = machine.write(operands[0], kind)
    votes = np.zeros(machine.lanes, bool)

    def collect(mask):
        np.copyto(votes, flags(), where=mask)

    def finish(mask):
        blocks = machine.block
        yes = np.bincount(blocks, weights=votes & mask, minlength=machine.layout.blocks)
        everyone = np.bincount(blocks, weights=mask, minlength=machine.layout.blocks)
        results = {"popc": yes, "and": yes == everyone, "or": yes > 0}
        put(results[operation].astype(np.uint32 if kind == "u32" else bool)[blocks], mask)

    step.run, step.finish = collect, finish


BINDERS = {
    "bra": _bind_branch,
    "brx": _bind_branch_table,
    "exit": _bind_exit,
    "ret": _bind_exit,
    "trap": _bind_trap,
    "bar": _bind_barrier,
    "barrier": _bind_barrier,
    **dict.fromkeys(MEMBER_OPERAND, _bind_collective),
}
