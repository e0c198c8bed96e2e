"""Tensor-core opcodes: mma.sync, ldmatrix and stmatrix.

Products and sums are computed in float64 and rounded once. Tensor cores accumulate with fewer
guard bits in an order that is not documented, so results agree to the accumulator's precision.
"""

from __future__ import annotations

import numpy as np

from .errors import PTXError
from .floats import bf16_to_f32, tf32_to_f32
from .machine import WARP, parts_of
from .ops_warp import LANES
from .registry import opcode

GROUP, QUAD = LANES // 4, LANES % 4  # the names of the PTX manual: row and position in a row


def _halves(to_float):
    """Two 16-bit numbers of each register."""

    def split(bits):
        low = (bits & np.uint32(0xFFFF)).astype(np.uint16)
        high = (bits >> np.uint32(16)).astype(np.uint16)
        return [to_float(low), to_float(high)]

    return split


ELEMENTS = {
    "f16": ("b32", _halves(lambda bits: bits.view(np.float16))),
    "bf16": ("b32", _halves(bf16_to_f32)),
    "tf32": ("b32", lambda bits: [tf32_to_f32(bits)]),
    "f64": ("f64", lambda values: [values]),
}
# Shape -> the places of each lane's elements in A, B and C, in register order.
PAIR_A = [
    (GROUP + row, 2 * QUAD + column + i) for column in (0, 8) for row in (0, 8) for i in (0, 1)
]
PAIR_B = [(2 * QUAD + row + i, GROUP) for row in (0, 8) for i in (0, 1)]
PAIR_C = [(GROUP + row, 2 * QUAD + i) for row in (0, 8) for i in (0, 1)]
SINGLE_A = [(GROUP + row, QUAD + column) for column in (0, 4) for row in (0, 8)]
SINGLE_B = [(QUAD + row, GROUP) for row in (0, 4)]
SHAPES = {
    ("m16n8k16", "f16"): (16, 8, 16, PAIR_A, PAIR_B, PAIR_C),
    ("m16n8k16", "bf16"): (16, 8, 16, PAIR_A, PAIR_B, PAIR_C),
    ("m16n8k8", "f16"): (16, 8, 8, PAIR_A[:4], PAIR_B[:2], PAIR_C),
    ("m16n8k8", "bf16"): (16, 8, 8, PAIR_A[:4], PAIR_B[:2], PAIR_C),
    ("m16n8k8", "tf32"): (16, 8, 8, SINGLE_A, SINGLE_B, PAIR_C),
    ("m16n8k4", "tf32"): (16, 8, 4, SINGLE_A[:2], SINGLE_B[:1], PAIR_C),
    ("m8n8k4", "f64"): (8, 8, 4, SINGLE_A[:1], SINGLE_B[:1], PAIR_C[:2]),
}


@opcode("mma")
def matrix_multiply(machine, instruction):
    words = instruction.modifiers
    if words[:2] != ("sync", "aligned") or words[3:5] != ("row", "col") or len(words) != 9:
        raise PTXError("this form of mma is not implemented")
    shape, (to_type, a_type, b_type, from_type) = words[2], words[5:]
    if (shape, a_type) not in SHAPES or a_type != b_type or to_type != from_type:
        raise PTXError("this shape or type of mma is not implemented")
    if to_type not in ("f32", "f64", "f16"):
        raise PTXError(f"mma into .{to_type} is not implemented")
    m, n, k, a_places, b_places, c_places = SHAPES[shape, a_type]
    kind, split = ELEMENTS[a_type]
    target, *rest = instruction.operands
    left, right = (_rows(machine, operand, kind) for operand in rest[:2])
    total_kind, total_split = ELEMENTS["f16"] if to_type == "f16" else (to_type, lambda v: [v])
    start = _rows(machine, rest[2], total_kind)
    writers = machine.write_parts(target, total_kind)
    warps = machine.lanes // WARP

    def run(mask):
        whole_warps(mask)
        a = _gather(left, split, a_places, (warps, m, k))
        b = _gather(right, split, b_places, (warps, k, n))
        c = _gather(start, total_split, c_places, (warps, m, n))
        result = (a @ b + c).astype(np.dtype(f"f{int(to_type[1:]) // 8}"))
        rows = [result[:, row, column].reshape(-1) for row, column in c_places]
        if to_type == "f16":
            rows = [_join(low, high) for low, high in zip(rows[::2], rows[1::2], strict=True)]
        for put, row in zip(writers, rows, strict=True):
            put(row, mask)

    return run


def _rows(machine, operand, kind):
    """Registers as rows, also where a literal stands for one."""
    return [np.broadcast_to(row, machine.lanes) for row in machine.read_parts(operand, kind)]


def _gather(registers, split, places, shape):
    """Matrices [warp, row, column] from the fragments of the lanes."""
    matrix = np.empty(shape)
    values = [value for register in registers for value in split(register)]
    for value, (row, column) in zip(values, places, strict=True):
        matrix[:, row, column] = value.reshape(-1, WARP)
    return matrix


def _join(low, high):
    low, high = (half.view(np.uint16).astype(np.uint32) for half in (low, high))
    return low | (high << np.uint32(16))


def whole_warps(mask):
    if mask is not None:
        rows = mask.reshape(-1, WARP)
        if (rows.any(axis=1) != rows.all(axis=1)).any():
            raise PTXError("an .aligned instruction is executed by a part of a warp")


MATRIX_WORDS = ("sync", "aligned", "m8n8", "x1", "x2", "x4", "trans")
MATRIX_WORDS += ("shared", "shared::cta", "b16")


@opcode("ldmatrix")
def load_matrices(machine, instruction):
    instruction.expect(*MATRIX_WORDS)
    target, place = instruction.operands
    count = int(instruction.first_of("x1", "x2", "x4")[1])
    address, writers = machine.address(place), machine.write_parts(target, "b32")
    transposed = "trans" in instruction.modifiers
    first_lane = machine.thread - machine.lane
    if len(parts_of(target)) != count:
        raise PTXError("ldmatrix has a wrong number of destinations")

    def run(mask):
        whole_warps(mask)
        lanes = machine.active(mask)
        offset = address()
        for i, put in enumerate(writers):
            rows = _lanes_of_rows(first_lane[lanes], i)
            words = _load_rows(machine, offset[rows], rows)
            result = np.zeros(machine.lanes, np.uint32)
            result[lanes] = _fragment(words, transposed).reshape(-1)
            put(result, mask)

    return run


@opcode("stmatrix")
def store_matrices(machine, instruction):
    instruction.expect(*MATRIX_WORDS)
    place, source = instruction.operands
    count = int(instruction.first_of("x1", "x2", "x4")[1])
    address, registers = machine.address(place), _rows(machine, source, "b32")
    transposed = "trans" in instruction.modifiers
    first_lane = machine.thread - machine.lane
    if len(parts_of(source)) != count:
        raise PTXError("stmatrix has a wrong number of sources")

    def run(mask):
        whole_warps(mask)
        lanes = machine.active(mask)
        offset = address()
        for i, register in enumerate(registers):
            rows = _lanes_of_rows(first_lane[lanes], i)
            words = _rows_of_fragment(register[lanes].reshape(-1, WARP), transposed)
            machine.stats.count_shared(offset[rows], rows, 16)
            access = machine.shared_access(offset[rows], rows, 16)
            machine.shared.store(access, list(words.reshape(-1, 4).T))

    return run


def _lanes_of_rows(first_lane, i):
    """The lanes that hold the addresses of the eight rows of matrix i, for every warp."""
    return (first_lane.reshape(-1, WARP)[:, :8] + 8 * i + np.arange(8)).reshape(-1)


def _load_rows(machine, offset, lanes):
    """Eight rows of four words per warp, one wavefront when they lie in different banks."""
    machine.stats.count_shared(offset, lanes, 16)
    parts = machine.shared.load(machine.shared_access(offset, lanes, 16), np.dtype(np.uint32), 4)
    return np.stack(parts, axis=1).reshape(-1, 8, 4)


def _fragment(words, transposed):
    """Each lane's pair of neighbouring halves, as one word."""
    if not transposed:
        return words[:, GROUP, QUAD]
    halves = words.view(np.uint16)
    low, high = (halves[:, 2 * QUAD + i, GROUP].astype(np.uint32) for i in (0, 1))
    return low | (high << np.uint32(16))


def _rows_of_fragment(words, transposed):
    """The inverse: [warp, lane] -> [warp, row, four words]."""
    rows = np.zeros((len(words), 8, 4), np.uint32)
    if not transposed:
        rows[:, GROUP, QUAD] = words
        return rows
    halves = rows.view(np.uint16)
    for i in (0, 1):
        halves[:, 2 * QUAD + i, GROUP] = (words >> np.uint32(16 * i)).astype(np.uint16)
    return rows
