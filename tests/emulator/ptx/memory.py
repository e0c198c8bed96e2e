"""Global memory: buffers that lie far apart, so that a stray address hits none of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np

from .errors import PTXError

FIRST_ADDRESS = 1 << 32
GAP = 1 << 20
ALIGNMENT = 1 << 16


class Buffer:
    """One array and its place in the address space."""

    def __init__(self, base: int, array: np.ndarray, name: str):
        self.base = base
        self.name = name
        self.writeable = array.flags.writeable
        self.data = array.reshape(-1).view(np.uint8)
        self.end = base + self.data.size
        self._views: dict[np.dtype, np.ndarray] = {}

    def view(self, dtype: np.dtype) -> np.ndarray:
        """The buffer as elements of `dtype`, without a ragged last one."""
        if dtype not in self._views:
            whole = self.data.size // dtype.itemsize * dtype.itemsize
            self._views[dtype] = self.data[:whole].view(dtype)
        return self._views[dtype]


class Memory:
    """The device buffers of a launch."""

    def __init__(self):
        self._buffers: list[Buffer] = []
        self._bases: list[int] = []
        self._next = FIRST_ADDRESS

    def add(self, array: np.ndarray, name: str | None = None) -> int:
        """Map `array` and return its address. Kernels read and write the array itself."""
        if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
            raise ValueError("a device buffer must be a C-contiguous NumPy array")
        name = name or f"buffer {len(self._buffers)} ({array.dtype}{list(array.shape)})"
        while self._meets(self._next, self._next + array.nbytes + GAP):
            self._next += ALIGNMENT
        buffer = self._insert(Buffer(self._next, array, name))
        self._next = -(-(buffer.end + GAP) // ALIGNMENT) * ALIGNMENT
        return buffer.base

    def map(self, address: int, array: np.ndarray, name: str) -> None:
        """Map `array` at an address that the host has given out, in its pointers too."""
        if self._meets(address, address + array.nbytes):
            raise ValueError(f"{name} at {address:#x} would overlap {self.describe(address)}")
        self._insert(Buffer(address, array, name))

    def _insert(self, buffer: Buffer) -> Buffer:
        position = bisect_left(self._bases, buffer.base)
        self._bases.insert(position, buffer.base)
        self._buffers.insert(position, buffer)
        return buffer

    def _meets(self, begin: int, end: int) -> bool:
        """Whether there is a buffer in these addresses."""
        before = self._at_or_before(end - 1)
        return before is not None and before.end > begin

    def discard(self, address: int) -> None:
        """Unmap the buffer that starts at `address`."""
        position = self._bases.index(address)
        del self._bases[position], self._buffers[position]

    def load(self, address: np.ndarray, dtype: np.dtype, count: int) -> list[np.ndarray]:
        """`count` consecutive elements per address, as one array per element."""
        self._check_alignment("load", address, dtype.itemsize * count)
        buffer = self._single(address, dtype.itemsize * count)
        if buffer is not None:
            index = (address - buffer.base) // dtype.itemsize
            return [buffer.view(dtype)[index + i] for i in range(count)]
        result = [np.empty(address.size, dtype) for _ in range(count)]
        for lanes, buffer in self._parts("load", address, dtype.itemsize * count):
            index = (address[lanes] - buffer.base) // dtype.itemsize
            for i in range(count):
                result[i][lanes] = buffer.view(dtype)[index + i]
        return result

    def store(self, address: np.ndarray, values: list[np.ndarray]) -> None:
        """The reverse of `load`; of several lanes at one address the last one wins."""
        dtype, count = values[0].dtype, len(values)
        self._check_alignment("store", address, dtype.itemsize * count)
        for lanes, buffer in self._parts("store", address, dtype.itemsize * count):
            self._check_writeable(buffer)
            index = (address[lanes] - buffer.base) // dtype.itemsize
            for i in range(count):
                buffer.view(dtype)[index + i] = values[i][lanes]

    def element(self, address: int, dtype: np.dtype) -> tuple[np.ndarray, int]:
        """The view and the index of one element, for an atomic operation."""
        lanes = np.array([address])
        self._check_alignment("atomic", lanes, dtype.itemsize)
        [(_, buffer)] = self._parts("atomic", lanes, dtype.itemsize)
        self._check_writeable(buffer)
        return buffer.view(dtype), (address - buffer.base) // dtype.itemsize

    def _single(self, address: np.ndarray, size: int) -> Buffer | None:
        """The buffer that holds all addresses, if there is just one."""
        low, high = int(address.min()), int(address.max())
        buffer = self._at_or_before(low)
        return buffer if buffer is not None and high + size <= buffer.end else None

    def _at_or_before(self, address: int) -> Buffer | None:
        position = bisect_right(self._bases, address) - 1
        return self._buffers[position] if position >= 0 else None

    def _parts(self, what: str, address: np.ndarray, size: int):
        """Pairs (lanes, buffer) that together cover all addresses."""
        buffer = self._single(address, size)
        if buffer is not None:
            return [(slice(None), buffer)]
        parts, covered = [], np.zeros(address.size, bool)
        for buffer in self._buffers:
            lanes = (address >= buffer.base) & (address + size <= buffer.end)
            if lanes.any():
                parts.append((lanes, buffer))
                covered |= lanes
        if not covered.all():
            stray = int(address[~covered][0])
            raise PTXError(
                f"global {what} of {size} bytes out of bounds at {stray:#x} "
                f"({np.count_nonzero(~covered)} of {address.size} lanes), {self.describe(stray)}"
            )
        return parts

    def _check_alignment(self, what: str, address: np.ndarray, size: int) -> None:
        wrong = address % size != 0
        if wrong.any():
            first = int(address[wrong][0])
            raise PTXError(
                f"misaligned global {what} of {size} bytes at {first:#x}, {self.describe(first)}"
            )

    def _check_writeable(self, buffer: Buffer) -> None:
        if not buffer.writeable:
            raise PTXError(f"store to read-only {buffer.name}")

    def describe(self, address: int) -> str:
        """Where an address lies relative to the nearest buffer."""
        if not self._buffers:
            return "and there is no buffer at all"
        near = min(self._buffers, key=lambda b: max(b.base - address, address - b.end, 0))
        if address < near.base:
            return f"{near.base - address} bytes before {near.name}"
        if address >= near.end:
            return f"{address - near.end} bytes after the end of {near.name}"
        return f"{address - near.base} bytes into {near.name} of {near.data.size} bytes"
