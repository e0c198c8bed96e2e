"""Registers of a batch of blocks, and the binding of operands to them.

A batch runs several blocks side by side: a register is one row with a place for every lane of
every warp of every block. Instructions compute whole rows and write the active lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from .errors import PTXError
from .formats import SIGNED, UNSIGNED, dtype_of, is_float, is_signed, scalar
from .memory import Memory
from .program import SPECIAL_REGISTERS, Address, Immediate, Pair, Register, Symbol, Vector
from .shared import Access, SharedMemory

if TYPE_CHECKING:
    from .kernel import Kernel
    from .launching import Layout
    from .ops_memory import Copy

WARP = 32
Writer = Callable[["np.ndarray", "np.ndarray | None"], None]


class Machine:
    def __init__(
        self,
        kernel: Kernel,
        layout: Layout,
        memory: Memory,
        shared: SharedMemory,
        symbols: dict[str, int],
        parameters: dict[str, bytes],
    ):
        self.kernel = kernel
        self.layout = layout
        self.memory = memory
        self.shared = shared
        self.symbols = symbols
        self.parameters = parameters
        self.stats = shared.stats
        self.lanes = layout.lanes
        self.thread = np.arange(self.lanes)
        self.lane = self.thread % WARP
        self.warp = self.thread // WARP  # counts through all blocks
        self.block = self.thread // layout.lanes_per_block
        self.warp_in_block = ((self.thread % layout.lanes_per_block) // WARP).astype(np.int8)
        self.carry = np.zeros(self.lanes, bool)
        self.live = np.zeros(self.lanes, bool)
        self.committed = np.zeros(self.lanes, np.int64)  # groups of cp.async, per lane
        self.copies: list[Copy] = []
        self._rows = self._allocate(kernel.registers)
        self._special: dict[str, np.ndarray] = {}

    def _allocate(self, registers: dict[str, str]) -> dict[str, np.ndarray]:
        """One row per register."""
        rows = {}
        self._banks: list[np.ndarray] = []
        for kind in sorted(set(registers.values())):
            names = [name for name, other in registers.items() if other == kind]
            dtype = dtype_of(kind)
            dtype = dtype if dtype == np.bool_ else UNSIGNED[dtype.itemsize]
            bank = np.empty((len(names), self.lanes), dtype)
            self._banks.append(bank)
            rows.update(zip(names, bank, strict=True))
        return rows

    def begin_batch(self, block_indices: np.ndarray) -> None:
        """Set all registers for blocks with these (x, y, z) indices."""
        for bank in self._banks:  # all bits set, so that garbage is noticed in results
            bank.fill(True if bank.dtype == np.bool_ else np.iinfo(bank.dtype).max)
        self.live[:] = self.layout.live_lanes(len(block_indices))
        padded = np.zeros((self.layout.blocks, 3), np.uint32)
        padded[: len(block_indices)] = block_indices
        for axis, letter in enumerate("xyz"):
            self._special_row(f"%ctaid.{letter}")[:] = padded[self.block, axis]
        self.committed[:] = 0
        self.copies.clear()

    def _special_row(self, name: str) -> np.ndarray:
        if name not in self._special:
            self._special[name] = np.zeros(self.lanes, np.uint32)
            self._special[name][:] = self._special_values(name)
        return self._special[name]

    def _special_values(self, name: str):
        base, _, letter = name.partition(".")
        if base == "%tid":
            inside = self.thread % self.layout.lanes_per_block
            width, height, _ = self.layout.block
            places = {"x": inside % width, "y": inside // width % height}
            return places.get(letter, inside // (width * height))
        if base in ("%ntid", "%nctaid"):
            extents = self.layout.block if base == "%ntid" else self.layout.grid
            return extents["xyz".index(letter)]
        bit = np.uint64(1) << self.lane.astype(np.uint64)
        full = np.uint64(0xFFFFFFFF)
        values = {
            "%ctaid": 0,
            "%laneid": self.lane,
            "%warpid": self.warp_in_block,
            "%nwarpid": self.layout.lanes_per_block // WARP,
            "%lanemask_eq": bit,
            "%lanemask_lt": bit - np.uint64(1),
            "%lanemask_le": 2 * bit - np.uint64(1),
            "%lanemask_ge": full ^ (bit - np.uint64(1)),
            "%lanemask_gt": full ^ (2 * bit - np.uint64(1)),
            "%dynamic_smem_size": self.layout.dynamic_shared,
            "%total_smem_size": self.shared.size,
        }
        return values[base]

    def read(self, operand, kind: str):
        """A live view of a register as `kind`, or a scalar."""
        if isinstance(operand, Register):
            return self._read_register(operand, kind)
        if isinstance(operand, Immediate):
            return _immediate(operand, kind)
        if isinstance(operand, Symbol):
            if operand.name in self.symbols:
                return scalar(self.symbols[operand.name], kind)
            raise PTXError(f"unknown name {operand.name}")
        raise PTXError(f"operand {operand} cannot be read as one value")

    def _read_register(self, operand: Register, kind: str) -> np.ndarray:
        name, dtype = operand.name, dtype_of(kind)
        if name.partition(".")[0] in SPECIAL_REGISTERS:
            row = self._special_row(name)
        elif name in self._rows:
            row = self._rows[name]
        else:
            raise PTXError(f"register {name} is not declared")
        if dtype == np.bool_ or row.dtype == np.bool_:
            if dtype != row.dtype:
                raise PTXError(f"register {name} is used as .{kind}")
            return row
        if dtype.itemsize > row.itemsize:
            if name.partition(".")[0] in SPECIAL_REGISTERS:
                return row.astype(dtype)
            raise PTXError(f"register {name} of {row.itemsize} bytes is read as .{kind}")
        step = row.itemsize // dtype.itemsize
        narrow = row if step == 1 else row.view(UNSIGNED[dtype.itemsize])[::step]
        return narrow.view(dtype)

    def write(self, operand, kind: str) -> Writer:
        """A function that writes a value of type `kind` to the masked lanes of a register."""
        if isinstance(operand, Pair):
            operand = operand.first
        if isinstance(operand, Symbol) and operand.name == "_":
            return lambda value, mask: None
        if not isinstance(operand, Register) or operand.name not in self._rows:
            raise PTXError(f"{operand} is not a register that can be written")
        row = self._destination(operand.name, kind)

        def put(value, mask):
            if mask is None:
                row[...] = value
            else:
                np.copyto(row, value, where=mask, casting="unsafe")

        return put

    def _destination(self, name: str, kind: str) -> np.ndarray:
        """The row in a type to which NumPy's casts extend narrow values as PTX does."""
        row, dtype = self._rows[name], dtype_of(kind)
        if (dtype == np.bool_) != (row.dtype == np.bool_) or dtype.itemsize > row.itemsize:
            raise PTXError(f"register {name} cannot take a .{kind} value")
        if dtype.itemsize == row.itemsize:
            return row.view(dtype)
        if is_float(kind):
            raise PTXError(f"register {name} is wider than .{kind}")
        return row.view(SIGNED[row.itemsize]) if is_signed(kind) else row

    def write_parts(self, operand, kind: str) -> list[Writer]:
        return [self.write(part, kind) for part in parts_of(operand)]

    def read_parts(self, operand, kind: str) -> list:
        return [self.read(part, kind) for part in parts_of(operand)]

    def address(self, operand: Address) -> Callable[[], np.ndarray]:
        """Computes the address of every lane as int64."""
        base = operand.base
        if not isinstance(base, Register):
            start = self.read(base, "s64") + operand.offset
            fixed = np.full(self.lanes, start, np.int64)
            return lambda: fixed
        width = self._rows[base.name].itemsize if base.name in self._rows else 0
        if width not in (4, 8):
            raise PTXError(f"{base.name} cannot hold an address")
        # A 32-bit address (shared memory) is unsigned; the sum must not wrap around.
        row = self.read(base, "u32" if width == 4 else "s64")
        offset = np.int64(operand.offset)
        return lambda: row.astype(np.int64) + offset

    def shared_access(self, offset: np.ndarray, lanes: np.ndarray, size: int) -> Access:
        """The access of `lanes` (indices) to their own blocks' shared memory."""
        block, warp = self.block[lanes], self.warp_in_block[lanes]
        return Access(offset, offset + block * self.shared.stride, block, warp, size)

    def active(self, mask: np.ndarray | None) -> np.ndarray:
        """The indices of the lanes of a mask."""
        return self.thread if mask is None else np.flatnonzero(mask)


def parts_of(operand) -> tuple:
    return operand.parts if isinstance(operand, Vector) else (operand,)


def _immediate(operand: Immediate, kind: str):
    dtype = dtype_of(kind)
    if operand.float_width == 32 and kind == "f64":
        return np.float64(scalar(operand.bits, "f32"))
    if operand.float_width == 64 and kind == "f32":
        return np.float32(scalar(operand.bits, "f64"))
    if kind in ("f32", "f64") and not operand.float_width:
        raise PTXError(f"integer literal {operand.bits} as .{kind}")
    if operand.float_width > 8 * dtype.itemsize:
        raise PTXError(f"a literal of {operand.float_width} bits as .{kind}")
    return scalar(operand.bits, kind)
