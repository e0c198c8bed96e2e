"""Floating-point opcodes.

Approximate instructions (ex2.approx, rcp.approx, div.full and the like) give the correctly
rounded result of the NumPy function; hardware may differ by the few ulp that PTX documents.
"""

from __future__ import annotations

import numpy as np

from .errors import PTXError
from .floats import (
    bf16_to_f32,
    directed32,
    f32_to_bf16,
    flush,
    fma64,
    odd32,
    towards,
    two_product,
    two_sum,
)
from .registry import opcode

FLOATS = ("f16", "bf16", "f32", "f64", "f16x2", "bf16x2")
FLUSHABLE = ("f16", "f16x2", "f32")
ROUNDINGS = ("rn", "rz", "rm", "rp")


def _minimum(x, y):
    bits = f"u{x.dtype.itemsize}"
    return np.where(x == y, (x.view(bits) | y.view(bits)).view(x.dtype), np.fmin(x, y))


def _maximum(x, y):
    bits = f"u{x.dtype.itemsize}"
    return np.where(x == y, (x.view(bits) & y.view(bits)).view(x.dtype), np.fmax(x, y))


def _nan_wins(function):
    return lambda x, y: np.where(np.isnan(x) | np.isnan(y), x.dtype.type(np.nan), function(x, y))


BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": _minimum,
    "max": _maximum,
}


def _unpack16(bits):
    """The low and the high half of packed values."""
    return (bits & np.uint32(0xFFFF)).astype(np.uint16), (bits >> np.uint32(16)).astype(np.uint16)


def lift(function, kind: str):
    """`function` on float arrays as a function on the stored form of `kind`."""
    if kind == "bf16":
        return lambda *bits: f32_to_bf16(
            np.asarray(function(*(bf16_to_f32(b) for b in bits)), np.float32)
        )
    if kind in ("f16x2", "bf16x2"):
        scalar_function = lift(function, kind[:-2])

        def packed(*bits):
            halves = [_unpack16(b) for b in bits]
            if kind == "f16x2":
                halves = [(low.view(np.float16), high.view(np.float16)) for low, high in halves]
            low = scalar_function(*(h[0] for h in halves)).view(np.uint16)
            high = scalar_function(*(h[1] for h in halves)).view(np.uint16)
            return low.astype(np.uint32) | (high.astype(np.uint32) << np.uint32(16))

        return packed
    return function


def _flushing(function):
    return lambda *values: flush(function(*(flush(value) for value in values)))


def _saturating(function):
    """Clamped to [0, 1]; fmax turns a NaN into zero, as .sat demands."""
    return lambda *values: np.fmin(np.fmax(function(*values), 0), 1)


def float_operation(machine, instruction, function):
    """Bind `function` with the modifiers .ftz and .sat, which apply to every operation."""
    kind = instruction.kind
    inputs = [machine.read(operand, kind) for operand in instruction.operands[1:]]
    put = machine.write(instruction.operands[0], kind)
    if "ftz" in instruction.modifiers and kind in FLUSHABLE:
        function = _flushing(function)
    if "sat" in instruction.modifiers:
        function = _saturating(function)
    function = lift(function, kind)
    return lambda mask: put(function(*inputs), mask)


def float_binary(machine, instruction):
    name = instruction.name
    instruction.expect("ftz", "sat", "NaN", "full", "approx", *ROUNDINGS, *FLOATS)
    if name not in BINARY:
        raise PTXError(f"{name} of floats is not implemented")
    function = BINARY[name]
    if "NaN" in instruction.modifiers:
        function = _nan_wins(function)
    mode = instruction.first_of("rz", "rm", "rp")
    if mode:
        function = _directed(name, instruction.kind, mode)
    if name in ("min", "max") and len(instruction.operands) == 4:
        return float_operation(machine, instruction, _of_three(function))
    return float_operation(machine, instruction, function)


def _of_three(function):
    """min and max of sm_100, which take one operand more."""
    return lambda x, y, z: function(function(x, y), z)


def _directed(name, kind, mode):
    """add, sub and mul that round towards zero, down or up."""
    if name not in ("add", "sub", "mul") or kind not in ("f32", "f64"):
        raise PTXError(f"{name}.{mode}.{kind} is not implemented")

    def compute(x, y):
        y = -y if name == "sub" else y
        x, y = x.astype(np.float64), y.astype(np.float64)
        if kind == "f32" and name == "mul":
            return directed32(x * y, np.float64(0), mode)
        value, error = two_product(x, y) if name == "mul" else two_sum(x, y)
        return directed32(value, error, mode) if kind == "f32" else towards(value, error, mode)

    return compute


@opcode("fma")
def float_fma(machine, instruction):
    instruction.expect("ftz", "sat", "relu", *ROUNDINGS, *FLOATS)
    kind = instruction.kind
    mode = instruction.first_of("rz", "rm", "rp")
    if "relu" in instruction.modifiers or (mode and kind != "f32"):
        raise PTXError(f"{'.'.join((instruction.name, *instruction.modifiers))} not implemented")
    if kind == "f64":
        return float_operation(machine, instruction, fma64)
    if mode:
        return float_operation(machine, instruction, lambda x, y, z: _fma_directed(x, y, z, mode))
    narrow = NARROW[kind]
    return float_operation(
        machine, instruction, lambda x, y, z: narrow(np.multiply(x, y, dtype=np.float64) + z)
    )


# The product of two such numbers is exact in float64, but the sum is rounded to float64 first.
# So a float32 result is within a hair of half an ulp rather than always correctly rounded.
NARROW = {
    "f32": lambda x: x.astype(np.float32),
    "f16": lambda x: x.astype(np.float16),
    "f16x2": lambda x: x.astype(np.float16),
    "bf16": odd32,
    "bf16x2": odd32,
}


def _fma_directed(x, y, z, mode):
    return directed32(*two_sum(np.multiply(x, y, dtype=np.float64), z.astype(np.float64)), mode)


def float_unary(machine, instruction):
    """neg and abs work on the sign bit alone."""
    instruction.expect("ftz", *FLOATS)
    kind = instruction.kind
    if "ftz" in instruction.modifiers and kind in FLUSHABLE:
        function = np.negative if instruction.name == "neg" else np.abs
        return float_operation(machine, instruction, function)
    bits = {"f16": 16, "bf16": 16, "f64": 64}.get(kind, 32)
    sign = 0x80008000 if kind.endswith("x2") else 1 << (bits - 1)
    number = np.dtype(f"u{bits // 8}").type
    x = machine.read(instruction.operands[1], f"b{bits}")
    put = machine.write(instruction.operands[0], f"b{bits}")
    if instruction.name == "neg":
        return lambda mask: put(x ^ number(sign), mask)
    return lambda mask: put(x & number(~sign % (1 << bits)), mask)


UNARY = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "rcp": np.reciprocal,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
}


@opcode(*UNARY)
def transcendental(machine, instruction):
    instruction.expect("approx", "rn", "ftz", *FLOATS)
    name, kind = instruction.name, instruction.kind
    exact = UNARY[name]
    if kind == "f64":
        if "approx" not in instruction.modifiers:
            return float_operation(machine, instruction, exact)
        return float_operation(machine, instruction, lambda x: _coarse(exact(x), x))
    narrow = np.float16 if kind.startswith("f16") else np.float32
    return float_operation(
        machine, instruction, lambda x: exact(x.astype(np.float64)).astype(narrow)
    )


def _coarse(result, x):
    """rcp.approx.ftz.f64 and its kin deliver only the upper 32 bits and flush subnormals."""
    limit = 2.0**-1022
    result = np.where(np.abs(x) < limit, np.copysign(np.inf, x), result)
    result = np.where(np.abs(result) < limit, np.copysign(0.0, result), result)
    return (result.view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)


@opcode("copysign")
def copy_sign(machine, instruction):
    """The sign of the first source on the magnitude of the second."""
    instruction.expect("f32", "f64")
    return float_operation(machine, instruction, lambda x, y: np.copysign(y, x))


TESTS = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda x: ~np.isnan(x),
    "notanumber": np.isnan,
    "normal": lambda x: np.isfinite(x) & (np.abs(x) >= np.finfo(x.dtype).tiny),
    "subnormal": lambda x: (x != 0) & (np.abs(x) < np.finfo(x.dtype).tiny),
}


@opcode("testp")
def test_property(machine, instruction):
    instruction.expect(*TESTS, "f32", "f64")
    x = machine.read(instruction.operands[1], instruction.kind)
    put = machine.write(instruction.operands[0], "pred")
    test = TESTS[instruction.modifiers[0]]
    return lambda mask: put(test(x), mask)
