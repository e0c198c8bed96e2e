"""Loads, stores, atomics, asynchronous copies, fences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .errors import PTXError
from .formats import UNSIGNED, dtype_of
from .machine import parts_of
from .program import Address
from .registry import opcode
from .shared import Access

SPACES = ("global", "shared", "const", "param", "local")
VECTORS = {"v2": 2, "v4": 4}
# Ordering and caching do not change what a data-race-free kernel computes.
HARMLESS = (
    *("volatile", "relaxed", "acquire", "release", "acq_rel", "sc", "weak", "cta", "gpu", "sys"),
    *("nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt"),
    *("L1::evict_last", "L1::evict_first", "L1::evict_normal", "L1::evict_unchanged"),
    *("L1::no_allocate", "L2::evict_last", "L2::evict_first", "L2::evict_normal"),
    *("L2::cache_hint", "L2::64B", "L2::128B", "L2::256B"),
)
TYPES = (
    *("pred", "b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "s32", "b64", "u64", "s64"),
    *("f16", "bf16", "f32", "f64", "f16x2", "bf16x2"),
)


def state_space(instruction) -> str:
    return instruction.first_of(*SPACES, "shared::cta", default="generic").partition("::")[0]


def _checked_space(instruction) -> str:
    instruction.expect(*SPACES, "shared::cta", *VECTORS, *HARMLESS, *TYPES)
    space = state_space(instruction)
    if space == "local":
        raise PTXError("the kernel uses local memory")
    return space


@opcode("ld", "ldu")
def load(machine, instruction):
    space = _checked_space(instruction)
    kind = _storage_kind(instruction.kind)
    if space == "param":
        return _load_parameter(machine, instruction)
    target, place = instruction.operands[:2]
    address, writers = machine.address(place), machine.write_parts(target, kind)
    dtype, count = dtype_of(kind), len(writers)
    wide = [np.zeros(machine.lanes, dtype) for _ in writers]

    def run(mask):
        lanes = machine.active(mask)
        values = _load(machine, space, address()[lanes], lanes, dtype, count)
        for put, row, value in zip(writers, wide, values, strict=True):
            row[lanes] = value
            put(row, mask)

    return run


def _storage_kind(kind: str) -> str:
    """Packed halves are stored as words."""
    return {"f16x2": "b32", "bf16x2": "b32", "bf16": "b16"}.get(kind, kind)


def _load(machine, space, address, lanes, dtype, count):
    size = dtype.itemsize * count
    if space == "generic":
        space, address = _resolve_generic(machine, address)
    if space == "shared":
        machine.stats.count_shared(address, lanes, size)
        return machine.shared.load(machine.shared_access(address, lanes, size), dtype, count)
    values = machine.memory.load(address, dtype, count)
    if space == "global":
        machine.stats.count_global("load", address, machine.warp[lanes], size)
        machine.stats.note_load(address, machine.block[lanes])
    return values


def _resolve_generic(machine, address):
    """A generic address is shared if it lies in the window of shared memory."""
    window = machine.layout.shared_window
    inside = address >= window
    if inside.all():
        return "shared", address - window
    if inside.any():
        raise PTXError("one generic access to both shared and global memory is not implemented")
    return "global", address


def _load_parameter(machine, instruction):
    target, place = instruction.operands
    raw = machine.parameters.get(place.base.name)
    if raw is None:
        raise PTXError(f"unknown parameter {place.base.name}")
    kind = _storage_kind(instruction.kind)
    writers, dtype = machine.write_parts(target, kind), dtype_of(kind)
    if place.offset + len(writers) * dtype.itemsize > len(raw):
        raise PTXError(f"read beyond the end of parameter {place.base.name}")
    values = np.frombuffer(raw, dtype, len(writers), place.offset)

    def run(mask):
        for put, value in zip(writers, values, strict=True):
            put(value, mask)

    return run


@opcode("st")
def store(machine, instruction):
    space = _checked_space(instruction)
    if space in ("param", "const"):
        raise PTXError(f"st.{space} is not implemented here")
    kind = _storage_kind(instruction.kind)
    place, source = instruction.operands[:2]
    address = machine.address(place)
    sources = [np.broadcast_to(v, machine.lanes) for v in machine.read_parts(source, kind)]
    size = dtype_of(kind).itemsize * len(sources)

    def run(mask):
        lanes = machine.active(mask)
        where, values = address()[lanes], [row[lanes] for row in sources]
        target = space
        if space == "generic":
            target, where = _resolve_generic(machine, where)
        if target == "shared":
            machine.stats.count_shared(where, lanes, size)
            machine.shared.store(machine.shared_access(where, lanes, size), values)
        else:
            machine.memory.store(where, values)
            machine.stats.count_global("store", where, machine.warp[lanes], size)

    return run


ATOMIC_TYPES = ("b32", "u32", "s32", "b64", "u64", "s64", "f32", "f64")
ATOMIC_OPERATIONS = {
    "add": lambda old, x, _: old + x,
    "min": lambda old, x, _: min(old, x),
    "max": lambda old, x, _: max(old, x),
    "and": lambda old, x, _: old & x,
    "or": lambda old, x, _: old | x,
    "xor": lambda old, x, _: old ^ x,
    "exch": lambda old, x, _: x,
    "cas": lambda old, x, y: y if old == x else old,
    "inc": lambda old, x, _: type(old)(0) if old >= x else old + type(old)(1),
    "dec": lambda old, x, _: x if old == 0 or old > x else old - type(old)(1),
}


@opcode("atom", "red")
def atomic(machine, instruction):
    """The lanes take their turns one after the other."""
    instruction.expect(*SPACES[:2], "shared::cta", *HARMLESS, *ATOMIC_OPERATIONS, *ATOMIC_TYPES)
    kind, space = instruction.kind, state_space(instruction)
    operands = instruction.operands
    put = machine.write(operands[0], kind) if instruction.name == "atom" else None
    place, *inputs = operands[1:] if put else operands
    address = machine.address(place)
    rows = [np.broadcast_to(machine.read(operand, kind), machine.lanes) for operand in inputs]
    rows.append(rows[-1])  # only cas has a second input
    operation = ATOMIC_OPERATIONS[instruction.first_of(*ATOMIC_OPERATIONS)]
    dtype = dtype_of(kind)
    before = np.zeros(machine.lanes, dtype)

    def run(mask):
        lanes = machine.active(mask)
        views, places = _atomic_places(machine, space, address()[lanes], lanes, dtype)
        for lane, view, index in zip(lanes, views, places, strict=True):
            before[lane] = view[index]
            view[index] = operation(view[index], rows[0][lane], rows[1][lane])
        if put:
            put(before, mask)

    return run


def _atomic_places(machine, space, address, lanes, dtype):
    """The array and the index for every lane."""
    if space == "generic":
        space, address = _resolve_generic(machine, address)
    if space == "shared":
        access = machine.shared_access(address, lanes, dtype.itemsize)
        view, places = machine.shared.update(access, dtype)
        return [view] * lanes.size, places
    pairs = [machine.memory.element(int(a), dtype) for a in address]
    return [view for view, _ in pairs], [index for _, index in pairs]


@dataclass
class Copy:
    """A cp.async of some lanes that has not landed yet; `group` is the lane's commit number."""

    lanes: np.ndarray
    group: np.ndarray
    access: Access
    values: list[np.ndarray]


@opcode("cp")
def async_copy(machine, instruction):
    words = instruction.modifiers
    if words[:1] != ("async",) or "bulk" in words or "mbarrier" in words:
        raise PTXError("only cp.async without mbarriers is implemented")
    if "commit_group" in words:
        return _commit(machine)
    if "wait_all" in words:
        return _wait(machine, 0, everything=True)
    if "wait_group" in words:
        return _wait(machine, instruction.operands[0].bits, everything=False)
    instruction.expect("async", "ca", "cg", "shared", "shared::cta", "global", *HARMLESS)
    return _issue(machine, instruction)


def _issue(machine, instruction):
    target, source, size, *rest = instruction.operands
    if any(not isinstance(operand, Address) for operand in (target, source)):
        raise PTXError("cp.async needs two addresses")
    to, origin, size = machine.address(target), machine.address(source), size.bits
    hint = "L2::cache_hint" in instruction.modifiers
    given = rest[0] if len(rest) > (1 if hint else 0) else None
    bytes_wanted = np.full(machine.lanes, size, np.uint32)
    if given is not None:
        bytes_wanted = np.broadcast_to(machine.read(given, "u32"), machine.lanes)
    dtype = UNSIGNED[4]
    count = size // dtype.itemsize

    def run(mask):
        lanes = machine.active(mask)
        wanted = bytes_wanted[lanes]
        if ((wanted != 0) & (wanted != size)).any():
            raise PTXError("a cp.async that fills only a part with zeros is not implemented")
        values = [np.zeros(lanes.size, dtype) for _ in range(count)]
        reading = wanted != 0
        if reading.any():
            where = origin()[lanes][reading]
            for row, value in zip(values, machine.memory.load(where, dtype, count), strict=True):
                row[reading] = value
            machine.stats.count_global("load", where, machine.warp[lanes[reading]], size)
            machine.stats.note_load(where, machine.block[lanes[reading]])
        offset = to()[lanes]
        access = machine.shared_access(offset, lanes, size)
        machine.shared.begin_copy(access)
        machine.stats.count_shared(offset, lanes, size)
        machine.copies.append(Copy(lanes, machine.committed[lanes], access, values))

    return run


def _commit(machine):
    def run(mask):
        machine.committed[machine.active(mask)] += 1

    return run


def _wait(machine, keep: int, everything: bool):
    """Land all copies of the lanes, except those of the `keep` youngest groups."""

    def run(mask):
        waiting = np.ones(machine.lanes, bool) if mask is None else mask
        remaining = []
        for copy in machine.copies:
            done = waiting[copy.lanes]
            if not everything:
                done = done & (copy.group < machine.committed[copy.lanes] - keep)
            if done.any():
                machine.shared.finish_copy(
                    copy.access.select(done), [value[done] for value in copy.values]
                )
            if not done.all():
                left, values = ~done, [value[~done] for value in copy.values]
                remaining.append(
                    Copy(copy.lanes[left], copy.group[left], copy.access.select(left), values)
                )
        machine.copies[:] = remaining

    return run


@opcode("membar", "fence")
def fence(machine, instruction):
    """Every access is already visible when the next instruction runs."""
    return lambda mask: None


@opcode("prefetch", "prefetchu", "nanosleep")
def hint(machine, instruction):
    return lambda mask: None


@opcode("createpolicy")
def cache_policy(machine, instruction):
    """The policy is only ever passed on to loads and stores, which ignore it."""
    put = machine.write(parts_of(instruction.operands[0])[0], "b64")
    return lambda mask: put(np.uint64(0), mask)
