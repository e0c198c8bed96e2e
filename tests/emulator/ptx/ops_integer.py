"""Integer and bit-wise opcodes, and moves."""

from __future__ import annotations

import numpy as np

from .errors import PTXError
from .formats import SIGNED, UNSIGNED, dtype_of, is_signed
from .ops_float import float_binary, float_fma, float_unary
from .program import Vector
from .registry import opcode

INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")
FLOATS = ("f16", "bf16", "f32", "f64", "f16x2", "bf16x2")
BITS = ("b16", "b32", "b64", "pred")


def assign(machine, instruction, kind, compute):
    """Run `compute` and write its result to the first operand."""
    put = machine.write(instruction.operands[0], kind)
    return lambda mask: put(compute(), mask)


def sources(machine, instruction, kind, count):
    if len(instruction.operands) != count + 1:
        raise PTXError(f"{instruction.name} needs {count + 1} operands")
    return [machine.read(operand, kind) for operand in instruction.operands[1:]]


def wider(kind: str) -> str:
    return f"{kind[0]}{2 * int(kind[1:])}"


@opcode("add", "sub")
def add(machine, instruction):
    if instruction.kind in FLOATS:
        return float_binary(machine, instruction)
    if "cc" in instruction.modifiers:
        return add_with_carry(machine, instruction)
    kind = instruction.kind
    instruction.expect("sat", *INTEGERS)
    x, y = sources(machine, instruction, kind, 2)
    if "sat" in instruction.modifiers:
        return assign(machine, instruction, kind, _saturating(instruction.name, x, y, kind))
    function = np.add if instruction.name == "add" else np.subtract
    return assign(machine, instruction, kind, lambda: function(x, y))


def _saturating(name, x, y, kind):
    if kind != "s32":
        raise PTXError(f"{name}.sat.{kind} is not implemented")
    sign = 1 if name == "add" else -1
    limits = np.iinfo(np.int32)
    return lambda: np.clip(x.astype(np.int64) + sign * y.astype(np.int64), limits.min, limits.max)


@opcode("addc", "subc")
def add_with_carry(machine, instruction):
    """The carry of `add.cc` is a carry out, that of `sub.cc` a borrow."""
    instruction.expect("cc", *INTEGERS)
    kind = instruction.kind
    x, y = (v.view(UNSIGNED[v.dtype.itemsize]) for v in sources(machine, instruction, kind, 2))
    put = machine.write(instruction.operands[0], f"u{kind[1:]}")
    carry = machine.carry
    takes, gives = instruction.name.endswith("c"), "cc" in instruction.modifiers
    function = np.add if instruction.name.startswith("add") else np.subtract

    def run(mask):
        first = function(x, y)
        out = first < x if function is np.add else x < y
        if takes:
            step = carry.astype(first.dtype)
            total = function(first, step)
            out = out | (total < first if function is np.add else first < step)
            first = total
        put(first, mask)
        if gives:
            np.copyto(carry, out, where=True if mask is None else mask)

    return run


def multiply_high(x, y):
    """The upper half of the exact product."""
    size = x.dtype.itemsize
    if size < 8:
        wide = (SIGNED if x.dtype.kind == "i" else UNSIGNED)[2 * size].type
        return ((x.astype(wide) * y.astype(wide)) >> wide(8 * size)).astype(x.dtype)
    a, b = x.view(np.uint64), y.view(np.uint64)
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
    middle = a1 * b0 + ((a0 * b0) >> half)
    cross = a0 * b1 + (middle & low)
    high = a1 * b1 + (middle >> half) + (cross >> half)
    if x.dtype.kind == "i":
        high = high - np.where(x < 0, b, np.uint64(0)) - np.where(y < 0, a, np.uint64(0))
    return high.view(x.dtype)


@opcode("mul")
def multiply(machine, instruction):
    kind = instruction.kind
    if kind in FLOATS:
        return float_binary(machine, instruction)
    instruction.expect("lo", "hi", "wide", *INTEGERS)
    x, y = sources(machine, instruction, kind, 2)
    if "wide" in instruction.modifiers:
        large = dtype_of(wider(kind))
        # Both factors are read when the instruction runs, because rows are live views.
        return assign(machine, instruction, wider(kind), lambda: np.multiply(x, y, dtype=large))
    if "hi" in instruction.modifiers:
        return assign(machine, instruction, kind, lambda: multiply_high(x, y))
    return assign(machine, instruction, kind, lambda: np.multiply(x, y))


@opcode("mad")
def multiply_add(machine, instruction):
    kind = instruction.kind
    if kind in FLOATS:
        return float_fma(machine, instruction)
    instruction.expect("lo", "hi", "wide", *INTEGERS)
    x, y = (machine.read(operand, kind) for operand in instruction.operands[1:3])
    if "wide" in instruction.modifiers:
        large = dtype_of(wider(kind))
        z = machine.read(instruction.operands[3], wider(kind))
        return assign(machine, instruction, wider(kind), lambda: np.multiply(x, y, dtype=large) + z)
    z = machine.read(instruction.operands[3], kind)
    if "hi" in instruction.modifiers:
        return assign(machine, instruction, kind, lambda: multiply_high(x, y) + z)
    return assign(machine, instruction, kind, lambda: x * y + z)


def divide(x, y):
    """Quotient and remainder, truncated towards zero; division by zero gives all ones."""
    unsigned = UNSIGNED[x.dtype.itemsize]
    a, b = magnitude(x), magnitude(y)
    zero = b == 0
    safe = np.where(zero, unsigned.type(1), b)
    quotient = a // safe
    remainder = a - quotient * safe
    if x.dtype.kind == "i":
        quotient = np.where((x < 0) != (y < 0), 0 - quotient, quotient)
        remainder = np.where(x < 0, 0 - remainder, remainder)
    quotient = np.where(zero, unsigned.type(np.iinfo(unsigned).max), quotient)
    remainder = np.where(zero, x.view(unsigned), remainder)
    return quotient.view(x.dtype), remainder.view(x.dtype)


def magnitude(x):
    """The absolute value as unsigned, which also holds the most negative number."""
    bits = x.view(UNSIGNED[x.dtype.itemsize])
    return np.where(x < 0, 0 - bits, bits) if x.dtype.kind == "i" else bits


@opcode("div", "rem")
def divide_or_remainder(machine, instruction):
    if instruction.kind in FLOATS:
        return float_binary(machine, instruction)
    instruction.expect(*INTEGERS)
    x, y = sources(machine, instruction, instruction.kind, 2)
    which = 0 if instruction.name == "div" else 1
    return assign(machine, instruction, instruction.kind, lambda: divide(x, y)[which])


@opcode("min", "max")
def minimum_or_maximum(machine, instruction):
    if instruction.kind in FLOATS:
        return float_binary(machine, instruction)
    instruction.expect(*INTEGERS)
    x, y = sources(machine, instruction, instruction.kind, 2)
    function = np.minimum if instruction.name == "min" else np.maximum
    return assign(machine, instruction, instruction.kind, lambda: function(x, y))


@opcode("neg", "abs")
def negate_or_absolute(machine, instruction):
    if instruction.kind in FLOATS:
        return float_unary(machine, instruction)
    instruction.expect(*INTEGERS)
    [x] = sources(machine, instruction, instruction.kind, 1)
    function = np.negative if instruction.name == "neg" else np.abs
    return assign(machine, instruction, instruction.kind, lambda: function(x))


@opcode("sad")
def sum_of_differences(machine, instruction):
    instruction.expect(*INTEGERS)
    x, y, z = sources(machine, instruction, instruction.kind, 3)
    return assign(machine, instruction, instruction.kind, lambda: np.where(x < y, y - x, x - y) + z)


@opcode("and", "or", "xor", "not", "cnot")
def logic(machine, instruction):
    instruction.expect(*BITS)
    kind, name = instruction.kind, instruction.name
    if name in ("not", "cnot"):
        [x] = sources(machine, instruction, kind, 1)
        compute = (lambda: ~x) if name == "not" else (lambda: x == 0)
        return assign(machine, instruction, kind, compute)
    function = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[name]
    x, y = sources(machine, instruction, kind, 2)
    return assign(machine, instruction, kind, lambda: function(x, y))


@opcode("shl", "shr")
def shift(machine, instruction):
    """Shifts by the width or more give zero, or the sign for `shr.s`."""
    instruction.expect(*BITS, *INTEGERS)
    kind = instruction.kind
    x = machine.read(instruction.operands[1], kind)
    count = machine.read(instruction.operands[2], "u32")
    bits, number = 8 * x.dtype.itemsize, x.dtype.type
    function = np.left_shift if instruction.name == "shl" else np.right_shift
    if not isinstance(count, np.ndarray) and count < bits:
        small = number(count)
        return assign(machine, instruction, kind, lambda: function(x, small))

    def compute():
        small = np.minimum(count, np.uint32(bits - 1)).astype(x.dtype)
        beyond = x >> number(bits - 1) if is_signed(kind) else number(0)
        return np.where(count >= bits, beyond, function(x, small))

    return assign(machine, instruction, kind, compute)


@opcode("shf")
def funnel_shift(machine, instruction):
    instruction.expect("l", "r", "wrap", "clamp", "b32")
    low, high, count = sources(machine, instruction, "u32", 3)
    left, wrap = "l" in instruction.modifiers, "wrap" in instruction.modifiers

    def compute():
        both = (high.astype(np.uint64) << np.uint64(32)) | low.astype(np.uint64)
        n = count & np.uint32(31) if wrap else np.minimum(count, np.uint32(32))
        n = n.astype(np.uint64)
        return ((both << n) >> np.uint64(32) if left else both >> n).astype(np.uint32)

    return assign(machine, instruction, "u32", compute)


@opcode("lop3")
def three_input_logic(machine, instruction):
    instruction.expect("b32")
    *operands, table = instruction.operands[1:]
    x, y, z = (machine.read(operand, "u32") for operand in operands)
    rows = [i for i in range(8) if table.bits >> i & 1]

    def compute():
        result = np.uint32(0)
        for row in rows:
            parts = [v if row & bit else ~v for v, bit in ((x, 4), (y, 2), (z, 1))]
            result = result | (parts[0] & parts[1] & parts[2])
        return result

    return assign(machine, instruction, "u32", compute)


@opcode("mov")
def move(machine, instruction):
    instruction.expect("pred", *BITS, *INTEGERS, "f16", "bf16", "f16x2", "bf16x2", "f32", "f64")
    target, source = instruction.operands
    kind = instruction.kind
    if isinstance(target, Vector):
        return _unpack(machine, target, source, kind)
    if isinstance(source, Vector):
        return _pack(machine, instruction, source, kind)
    value = machine.read(source, kind)
    return assign(machine, instruction, kind, lambda: value)


def _unpack(machine, target, source, kind):
    width = 8 * dtype_of(kind).itemsize
    part = width // len(target.parts)
    value = np.asarray(machine.read(source, f"b{width}"))
    writers = machine.write_parts(target, f"b{part}")
    number = value.dtype.type

    def run(mask):
        pieces = [(value >> number(i * part)).astype(f"u{part // 8}") for i in range(len(writers))]
        for put, piece in zip(writers, pieces, strict=True):
            put(piece, mask)

    return run


def _pack(machine, instruction, source, kind):
    width = 8 * dtype_of(kind).itemsize
    part = width // len(source.parts)
    pieces = machine.read_parts(source, f"b{part}")
    number = UNSIGNED[width // 8].type

    def compute():
        result = number(0)
        for i, piece in enumerate(pieces):
            result = result | (piece.astype(number) << number(i * part))
        return result

    return assign(machine, instruction, f"b{width}", compute)


@opcode("cvta")
def convert_address(machine, instruction):
    """Generic addresses equal global ones; shared memory has a window of its own."""
    instruction.expect("to", "global", "shared", "const", "param", "u64", "u32")
    [x] = sources(machine, instruction, instruction.kind, 1)
    if "shared" not in instruction.modifiers:
        return assign(machine, instruction, instruction.kind, lambda: x)
    window = np.uint64(machine.layout.shared_window)
    if instruction.kind != "u64":
        raise PTXError("cvta.shared needs 64-bit addresses")
    if "to" in instruction.modifiers:
        return assign(machine, instruction, "u64", lambda: x - window)
    return assign(machine, instruction, "u64", lambda: x + window)
