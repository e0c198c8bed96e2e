"""Opcodes that count, extract, insert and permute bits."""

from __future__ import annotations

import numpy as np

from .formats import UNSIGNED, dtype_of, is_signed
from .ops_integer import assign, sources
from .registry import opcode

BITS_IN_BYTE = np.array([f"{i:b}".count("1") for i in range(256)], np.uint8)
REVERSED_BYTES = np.array([int(f"{i:08b}"[::-1], 2) for i in range(256)], np.uint8)


def octets_of(x):
    """The bytes of every element, lowest first, as rows."""
    whole = np.array(x, ndmin=1)
    return whole.view(np.uint8).reshape(whole.size, -1)


def count_bits(x):
    return BITS_IN_BYTE[octets_of(x)].sum(axis=1, dtype=np.int32)


def highest_bit(x):
    """The position of the highest set bit of an unsigned array, -1 for zero."""
    x = x.copy() if isinstance(x, np.ndarray) else np.array([x])
    for step in (1, 2, 4, 8, 16, 32):
        if step < 8 * x.dtype.itemsize:
            x |= x >> x.dtype.type(step)
    return count_bits(x) - 1


@opcode("popc")
def population_count(machine, instruction):
    instruction.expect("b32", "b64")
    [x] = sources(machine, instruction, instruction.kind, 1)
    return assign(machine, instruction, "u32", lambda: count_bits(x))


@opcode("clz")
def count_leading_zeros(machine, instruction):
    instruction.expect("b32", "b64")
    [x] = sources(machine, instruction, instruction.kind, 1)
    top = 8 * x.dtype.itemsize - 1
    return assign(machine, instruction, "s32", lambda: top - highest_bit(x))


@opcode("bfind")
def find_highest(machine, instruction):
    """For signed types, the highest bit that differs from the sign."""
    instruction.expect("shiftamt", "u32", "s32", "u64", "s64")
    [x] = sources(machine, instruction, instruction.kind, 1)
    unsigned, top = UNSIGNED[x.dtype.itemsize], 8 * x.dtype.itemsize - 1
    shift_amount = "shiftamt" in instruction.modifiers

    def compute():
        bits = np.where(x < 0, ~x, x).view(unsigned)
        place = highest_bit(bits)
        return np.where(place >= 0, top - place, -1) if shift_amount else place

    return assign(machine, instruction, "s32", compute)


@opcode("brev")
def reverse_bits(machine, instruction):
    instruction.expect("b32", "b64")
    [x] = sources(machine, instruction, instruction.kind, 1)

    def compute():
        octets = np.ascontiguousarray(octets_of(x)[:, ::-1])
        return REVERSED_BYTES[octets].view(x.dtype).reshape(-1)

    return assign(machine, instruction, instruction.kind, compute)


def low_mask(length, dtype):
    """`length` ones, for lengths from 0 to the width of `dtype` and beyond."""
    bits = 8 * dtype.itemsize
    ones = dtype.type(np.iinfo(dtype).max)
    shift = np.clip(bits - length.astype(np.int64), 0, bits - 1).astype(dtype)
    return np.where(length == 0, dtype.type(0), ones >> shift)


def _fields(machine, operands):
    """Position and length: only the low eight bits count."""
    position, length = (machine.read(operand, "u32") for operand in operands)
    return lambda: (position & np.uint32(255), length & np.uint32(255))


@opcode("bfe")
def extract_field(machine, instruction):
    instruction.expect("u32", "s32", "u64", "s64")
    kind = instruction.kind
    x = machine.read(instruction.operands[1], kind)
    fields = _fields(machine, instruction.operands[2:])
    unsigned, bits = UNSIGNED[x.dtype.itemsize], 8 * x.dtype.itemsize

    def compute():
        position, length = fields()
        raw = x.view(unsigned)
        small = np.minimum(position, np.uint32(bits - 1)).astype(unsigned)
        mask = low_mask(length, unsigned)
        value = np.where(position >= bits, unsigned.type(0), raw >> small) & mask
        if not is_signed(kind):
            return value
        # The sign is the top bit of the field, or of the word when the field reaches beyond it.
        last = np.minimum(position.astype(np.int64) + length - 1, bits - 1)
        sign = (raw >> np.maximum(last, 0).astype(unsigned)) & unsigned.type(1)
        present = np.where(position >= bits, 0, np.minimum(length, bits - position))
        filled = value | ~low_mask(present, unsigned)
        return np.where((sign == 1) & (length > 0), filled, value).view(x.dtype)

    return assign(machine, instruction, kind, compute)


@opcode("bfi")
def insert_field(machine, instruction):
    instruction.expect("b32", "b64")
    kind = instruction.kind
    x, y = (machine.read(operand, kind) for operand in instruction.operands[1:3])
    fields = _fields(machine, instruction.operands[3:])
    dtype = dtype_of(kind)
    bits = 8 * dtype.itemsize

    def compute():
        position, length = fields()
        small = np.minimum(position, np.uint32(bits - 1)).astype(dtype)
        mask = np.where(position >= bits, dtype.type(0), low_mask(length, dtype) << small)
        return (y & ~mask) | ((x << small) & mask)

    return assign(machine, instruction, kind, compute)


SELECTIONS = {
    "f4e": [[i, i + 1, i + 2, i + 3] for i in range(4)],
    "b4e": [[i, (i - 1) % 8, (i - 2) % 8, (i - 3) % 8] for i in range(4)],
    "rc8": [[i] * 4 for i in range(4)],
    "ecl": [[max(i, j) for j in range(4)] for i in range(4)],
    "ecr": [[min(i, j) for j in range(4)] for i in range(4)],
    "rc16": [[0, 1, 0, 1], [2, 3, 2, 3], [0, 1, 0, 1], [2, 3, 2, 3]],
}


@opcode("prmt")
def permute_bytes(machine, instruction):
    """Four bytes out of eight; a selector's high bit replicates the sign of its byte."""
    instruction.expect("b32", *SELECTIONS)
    x, y, selector = sources(machine, instruction, "u32", 3)
    mode = instruction.first_of(*SELECTIONS)
    table = np.array(SELECTIONS[mode], np.uint64) if mode else None
    octet = np.uint64(255)

    def compute():
        both = x.astype(np.uint64) | (y.astype(np.uint64) << np.uint64(32))
        choice = selector.astype(np.uint64)
        result = np.uint64(0)
        for i in range(4):
            nibble = (choice >> np.uint64(4 * i)) & np.uint64(15)
            if table is not None:
                nibble = table[(choice & np.uint64(3)).astype(np.intp), i]
            byte = (both >> ((nibble & np.uint64(7)) * np.uint64(8))) & octet
            sign = np.where(byte & np.uint64(128), octet, np.uint64(0))
            byte = np.where(nibble & np.uint64(8), sign, byte)
            result = result | (byte << np.uint64(8 * i))
        return result.astype(np.uint32)

    return assign(machine, instruction, "u32", compute)
