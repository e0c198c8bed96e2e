"""Opcodes in which the lanes of a warp exchange values.

The executor has made sure that all lanes of the member mask are here before it runs these.
"""

from __future__ import annotations

import numpy as np

from .errors import PTXError
from .machine import WARP
from .ops_compare import read_predicate
from .program import Pair
from .registry import opcode

LANES = np.arange(WARP)
BITS = np.uint64(1) << LANES.astype(np.uint64)


def by_warp(row):
    return np.asarray(row).reshape(-1, WARP)


def full_mask(machine, mask):
    return np.ones(machine.lanes, bool) if mask is None else mask


def ballot(flags):
    """Per lane, the bit mask of its warp's flags."""
    words = (by_warp(flags) * BITS).sum(axis=1, dtype=np.uint64).astype(np.uint32)
    return np.repeat(words, WARP)


@opcode("shfl")
def shuffle(machine, instruction):
    instruction.expect("sync", "up", "down", "bfly", "idx", "b32")
    if instruction.modifiers[0] != "sync":
        raise PTXError("shfl without .sync is not available on sm_80")
    target, source, distance, limits = instruction.operands[:4]
    value = np.broadcast_to(machine.read(source, "u32"), machine.lanes)
    distance, limits = machine.read(distance, "s32"), machine.read(limits, "s32")
    put = machine.write(target, "u32")
    put_valid = machine.write(target.second, "pred") if isinstance(target, Pair) else None
    mode = instruction.modifiers[1]
    lane, first = machine.lane, machine.thread - machine.lane

    def run(mask):
        source_lane, valid = _shuffle_source(mode, lane, distance, limits)
        place = first + source_lane
        if mask is not None and not mask[place[mask]].all():
            raise PTXError("shfl.sync reads from an inactive lane")
        put(value[place], mask)
        if put_valid:
            put_valid(valid, mask)

    return run


def _shuffle_source(mode, lane, distance, limits):
    """The lane that each lane reads (itself when out of range), and whether it is in range."""
    distance, clamp, segment = distance & 31, limits & 31, (limits >> 8) & 31
    highest = (lane & segment) | (clamp & ~segment)
    if mode == "up":
        source = lane - distance
        valid = source >= highest
    else:
        lowest = lane & segment
        choices = {
            "down": lane + distance,
            "bfly": lane ^ distance,
            "idx": lowest | (distance & ~segment),
        }
        source = choices[mode]
        valid = source <= highest
    return np.where(valid, source, lane), valid


@opcode("vote")
def vote(machine, instruction):
    instruction.expect("sync", "ballot", "any", "all", "uni", "pred", "b32")
    if instruction.modifiers[0] != "sync":
        raise PTXError("vote without .sync is not available on sm_80")
    mode = instruction.modifiers[1]
    flags = read_predicate(machine, instruction.operands[1])
    members = machine.read(instruction.operands[2], "u32")
    put = machine.write(instruction.operands[0], "u32" if mode == "ballot" else "pred")

    def run(mask):
        active = full_mask(machine, mask)
        yes = ballot(active & flags()) & members
        if mode == "ballot":
            put(yes, mask)
            return
        everyone = ballot(active) & members
        results = {
            "any": yes != 0,
            "all": yes == everyone,
            "uni": (yes == everyone) | (yes == 0),
        }
        put(results[mode], mask)

    return run


@opcode("activemask")
def active_mask(machine, instruction):
    instruction.expect("b32")
    put = machine.write(instruction.operands[0], "u32")
    return lambda mask: put(ballot(full_mask(machine, mask)), mask)


@opcode("match")
def match(machine, instruction):
    instruction.expect("any", "all", "sync", "b32", "b64")
    target = instruction.operands[0]
    value = np.broadcast_to(machine.read(instruction.operands[1], instruction.kind), machine.lanes)
    members = machine.read(instruction.operands[2], "u32")
    put = machine.write(target, "u32")
    put_all = machine.write(target.second, "pred") if isinstance(target, Pair) else None
    needs_all = "all" in instruction.modifiers

    def run(mask):
        active = by_warp(full_mask(machine, mask))
        rows = by_warp(value)
        same = (rows[:, :, None] == rows[:, None, :]) & active[:, None, :]
        words = (same * BITS).sum(axis=2, dtype=np.uint64).astype(np.uint32)
        words = words.reshape(-1) & members
        if needs_all:
            agree = words == ballot(active) & members
            words = np.where(agree, words, np.uint32(0))
            if put_all:
                put_all(agree, mask)
        put(words, mask)

    return run


REDUCTIONS = {
    "add": (np.add, lambda dtype: 0),
    "min": (np.minimum, lambda dtype: np.iinfo(dtype).max),
    "max": (np.maximum, lambda dtype: np.iinfo(dtype).min),
    "and": (np.bitwise_and, lambda dtype: np.iinfo(dtype).max),
    "or": (np.bitwise_or, lambda dtype: 0),
    "xor": (np.bitwise_xor, lambda dtype: 0),
}


@opcode("redux")
def reduce_warp(machine, instruction):
    instruction.expect("sync", *REDUCTIONS, "u32", "s32", "b32")
    function, neutral = REDUCTIONS[instruction.modifiers[1]]
    kind = instruction.kind
    value = np.broadcast_to(machine.read(instruction.operands[1], kind), machine.lanes)
    nothing = value.dtype.type(neutral(value.dtype))
    members = machine.read(instruction.operands[2], "u32")
    put = machine.write(instruction.operands[0], kind)

    def run(mask):
        here = ballot(full_mask(machine, mask))
        if ((here & ~members) != 0)[machine.active(mask)].any():
            raise PTXError("redux.sync with several member masks in one warp is not implemented")
        rows = by_warp(np.where(full_mask(machine, mask), value, nothing))
        put(np.repeat(function.reduce(rows, axis=1, dtype=value.dtype), WARP), mask)

    return run
