"""PTX type names and the NumPy types that hold them."""

from __future__ import annotations

import numpy as np

from .errors import PTXError

DTYPES = {
    "pred": np.dtype(np.bool_),
    "b8": np.dtype(np.uint8),
    "u8": np.dtype(np.uint8),
    "s8": np.dtype(np.int8),
    "b16": np.dtype(np.uint16),
    "u16": np.dtype(np.uint16),
    "s16": np.dtype(np.int16),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(np.uint16),  # NumPy has no bfloat16: the bits
    "b32": np.dtype(np.uint32),
    "u32": np.dtype(np.uint32),
    "s32": np.dtype(np.int32),
    "f32": np.dtype(np.float32),
    "tf32": np.dtype(np.uint32),
    "f16x2": np.dtype(np.uint32),
    "bf16x2": np.dtype(np.uint32),
    "b64": np.dtype(np.uint64),
    "u64": np.dtype(np.uint64),
    "s64": np.dtype(np.int64),
    "f64": np.dtype(np.float64),
}
UNSIGNED = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
SIGNED = {size: np.dtype(f"i{size}") for size in (1, 2, 4, 8)}
WORD_MASK = (1 << 64) - 1


def dtype_of(kind: str) -> np.dtype:
    if kind not in DTYPES:
        raise PTXError(f"unknown type .{kind}")
    return DTYPES[kind]


def is_signed(kind: str) -> bool:
    return kind[0] == "s"


def is_float(kind: str) -> bool:
    return kind in ("f16", "f32", "f64")


def scalar(bits: int, kind: str):
    """The NumPy scalar of type `kind` whose low bits are `bits`."""
    dtype = dtype_of(kind)
    if dtype == np.bool_:
        return np.bool_(bits)
    raw = (bits & WORD_MASK).to_bytes(8, "little")
    return np.frombuffer(raw, dtype, count=1)[0]


def number_to_bytes(value, kind: str) -> bytes:
    """One kernel argument or initialiser as the bytes of type `kind`."""
    dtype = dtype_of(kind)
    if is_float(kind):
        return np.array(value, dtype).tobytes()
    if isinstance(value, float | np.floating):
        raise PTXError(f"a .{kind} value must be an integer, not {value!r}")
    limit = 1 << (8 * dtype.itemsize)
    if not -limit // 2 <= int(value) < limit:
        raise PTXError(f"{value} does not fit into .{kind}")
    return (int(value) % limit).to_bytes(dtype.itemsize, "little")
