"""Comparisons, selections and conversions."""

from __future__ import annotations

import numpy as np

from .errors import PTXError
from .floats import (
    bf16_to_f32,
    directed32,
    f32_to_bf16,
    f32_to_tf32,
    flush,
)
from .formats import dtype_of, is_float
from .ops_integer import BITS, INTEGERS, assign
from .program import Pair, Register
from .registry import opcode

COMPARISONS = {
    "eq": np.equal,
    "ne": lambda x, y: (x < y) | (x > y),  # false for NaN, unlike NumPy's
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
    "equ": lambda x, y: ~((x < y) | (x > y)),
    "neu": np.not_equal,
    "ltu": lambda x, y: ~(x >= y),
    "leu": lambda x, y: ~(x > y),
    "gtu": lambda x, y: ~(x <= y),
    "geu": lambda x, y: ~(x < y),
    "num": lambda x, y: ~(np.isnan(x) | np.isnan(y)),
    "nan": lambda x, y: np.isnan(x) | np.isnan(y),
}
COMBINATIONS = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def read_predicate(machine, operand):
    """A function, because a negated predicate has to be computed each time."""
    value = machine.read(operand, "pred")
    if isinstance(operand, Register) and operand.negated:
        return lambda: ~value
    return lambda: value


@opcode("setp", "set")
def compare(machine, instruction):
    kinds = (*INTEGERS, *BITS, "f16", "bf16", "f32", "f64")
    instruction.expect("ftz", *COMPARISONS, *COMBINATIONS, *kinds)
    kind, name = instruction.kind, instruction.modifiers[0]
    x, y = (machine.read(operand, kind) for operand in instruction.operands[1:3])
    prepare = _preparation(instruction, kind)
    comparison = COMPARISONS[name]
    if name == "ne" and kind not in ("f16", "bf16", "f32", "f64"):
        comparison = np.not_equal  # faster, and there are no NaNs
    combine = COMBINATIONS.get(instruction.first_of(*COMBINATIONS, default=""))
    test = (lambda: comparison(prepare(x), prepare(y))) if prepare else (lambda: comparison(x, y))
    if instruction.name == "set":
        return _numeric_set(machine, instruction, test)
    target = instruction.operands[0]
    writers = [machine.write(target, "pred")]
    if isinstance(target, Pair):
        writers.append(machine.write(target.second, "pred"))
    if combine is None and len(writers) == 1:
        put = writers[0]
        return lambda mask: put(test(), mask)
    extra = read_predicate(machine, instruction.operands[3]) if combine else None

    def run(mask):
        result = test()
        other = extra() if combine else None
        values = [combine(result, other), combine(~result, other)] if combine else [result, ~result]
        for put, value in zip(writers, values, strict=False):
            put(value, mask)

    return run


def _preparation(instruction, kind):
    if kind == "bf16":
        return bf16_to_f32
    if "ftz" in instruction.modifiers and kind == "f32":
        return flush
    return None


def _numeric_set(machine, instruction, test):
    """set writes all ones (integers) or 1.0 instead of a predicate."""
    if instruction.first_of(*COMBINATIONS):
        raise PTXError("set with a boolean operation is not implemented")
    kind = instruction.modifiers[-2]
    yes = dtype_of(kind).type(1.0) if is_float(kind) else dtype_of(kind).type(0) - 1
    no = dtype_of(kind).type(0)
    return assign(machine, instruction, kind, lambda: np.where(test(), yes, no))


@opcode("selp")
def select(machine, instruction):
    instruction.expect(*INTEGERS, *BITS, "f16", "f32", "f64")
    kind = instruction.kind
    x, y = (machine.read(operand, kind) for operand in instruction.operands[1:3])
    chosen = read_predicate(machine, instruction.operands[3])
    return assign(machine, instruction, kind, lambda: np.where(chosen(), x, y))


@opcode("slct")
def select_by_sign(machine, instruction):
    *_, kind, selector = instruction.modifiers
    x, y = (machine.read(operand, kind) for operand in instruction.operands[1:3])
    z = machine.read(instruction.operands[3], selector)
    return assign(machine, instruction, kind, lambda: np.where(z >= 0, x, y))


INTEGRAL = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
ROUNDINGS = ("rn", "rz", "rm", "rp")
CONVERTIBLE = (*INTEGERS, "u8", "s8", "f16", "bf16", "f32", "f64")


@opcode("cvt")
def convert(machine, instruction):
    known = (*INTEGRAL, *ROUNDINGS, "rna", "ftz", "sat", "tf32", "f16x2", "bf16x2")
    instruction.expect(*known, *CONVERTIBLE)
    target, source = instruction.modifiers[-2:]
    if target in ("f16x2", "bf16x2"):
        return _convert_pair(machine, instruction, target, source)
    x = machine.read(instruction.operands[1], source)
    if target == "tf32":
        mode = instruction.first_of("rna", "rn", default="rna")
        return assign(machine, instruction, "b32", lambda: f32_to_tf32(x, mode))
    function = _conversion(instruction, target, source)
    return assign(machine, instruction, target, lambda: function(x))


def _convert_pair(machine, instruction, target, source):
    """Two floats to one packed word; the first source is the upper half."""
    if source != "f32" or instruction.modifiers[0] != "rn" or len(instruction.modifiers) != 3:
        raise PTXError("this packed conversion is not implemented")
    high, low = (machine.read(operand, "f32") for operand in instruction.operands[1:])
    narrow = _to_half_bits if target == "f16x2" else f32_to_bf16

    def compute():
        return narrow(low).astype(np.uint32) | (narrow(high).astype(np.uint32) << np.uint32(16))

    return assign(machine, instruction, "b32", compute)


def _to_half_bits(x):
    return x.astype(np.float16).view(np.uint16)


def _conversion(instruction, target, source):
    """The function from values of `source` to values of `target`."""
    from_float = source in ("f16", "bf16", "f32", "f64")
    to_float = target in ("f16", "bf16", "f32", "f64")
    if from_float and to_float:
        return _float_to_float(instruction, target, source)
    if from_float:
        return _float_to_integer(instruction, target, source)
    if to_float:
        if instruction.first_of("rz", "rm", "rp") or target == "bf16":
            raise PTXError("this rounding of an integer is not implemented")
        return lambda x: x.astype(dtype_of(target))
    if "sat" in instruction.modifiers:
        return lambda x: _clamp_integer(x, dtype_of(target))
    # An unsigned value of a narrower signed target: NumPy's casts wrap as PTX does.
    return lambda x: x.astype(dtype_of(target))


def _clamp_integer(x, dtype):
    limits = np.iinfo(dtype)
    source = np.iinfo(x.dtype)
    low, high = max(limits.min, source.min), min(limits.max, source.max)
    return np.clip(x, x.dtype.type(low), x.dtype.type(high)).astype(dtype)


def _float_to_integer(instruction, target, source):
    mode = instruction.first_of(*INTEGRAL)
    if mode is None:
        raise PTXError("a conversion to integers needs a rounding mode")
    limits = np.iinfo(dtype_of(target))
    # The bounds are powers of two, or one less, which float64 may not hold: compare against
    # the power itself.
    top = float(limits.max + 1)

    def compute(x):
        x = bf16_to_f32(x) if source == "bf16" else x
        x = flush(x) if "ftz" in instruction.modifiers and source == "f32" else x
        whole = INTEGRAL[mode](x.astype(np.float64))
        inside = (whole >= float(limits.min)) & (whole < top)
        result = np.where(inside, whole, 0).astype(dtype_of(target))
        result = np.where(whole >= top, dtype_of(target).type(limits.max), result)
        return np.where(whole < float(limits.min), dtype_of(target).type(limits.min), result)

    return compute


def _float_to_float(instruction, target, source):
    integral = INTEGRAL.get(instruction.first_of(*INTEGRAL, default=""))
    mode = instruction.first_of("rz", "rm", "rp")
    if mode and (source, target) != ("f64", "f32"):
        raise PTXError(f"cvt.{mode} from .{source} to .{target} is not implemented")
    if target == "bf16" and source != "f32":
        raise PTXError(f"cvt from .{source} to .bf16 is not implemented")
    ftz, sat = "ftz" in instruction.modifiers, "sat" in instruction.modifiers

    def compute(x):
        x = bf16_to_f32(x) if source == "bf16" else x
        x = flush(x) if ftz and x.dtype == np.float32 else x
        x = integral(x) if integral else x
        x = np.fmin(np.fmax(x, 0), 1) if sat else x
        if target == "bf16":
            return f32_to_bf16(x)
        x = directed32(x, np.float64(0), mode) if mode else x.astype(dtype_of(target))
        return flush(x) if ftz and target == "f32" else x

    return compute
