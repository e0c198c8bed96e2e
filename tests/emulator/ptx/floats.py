"""Rounding: exact sums and products, fused multiply-add, bfloat16, TF32, subnormals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

SPLITTER = 134217729.0  # 2**27 + 1


def two_sum(x, y):
    """x + y rounded, and the exact error."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def two_product(x, y):
    """x * y rounded, and the exact error (Dekker), barring overflow and underflow."""
    product = x * y
    scaled = SPLITTER * x
    x_high = scaled - (scaled - x)
    x_low = x - x_high
    scaled = SPLITTER * y
    y_high = scaled - (scaled - y)
    y_low = y - y_high
    error = ((x_high * y_high - product) + x_high * y_low + x_low * y_high) + x_low * y_low
    return product, error


def fma64(x, y, z):
    """x * y + z with a single rounding, by rounding the error terms to odd.

    Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using
    rounding to odd", IEEE Transactions on Computers 57(4), 2008. Lanes near the limits of the
    exponent, where the error terms could over- or underflow, use fractions.
    """
    x, y, z = np.broadcast_arrays(*np.atleast_1d(x, y, z))
    plain = x * y + z
    product, product_error = two_product(x, y)
    low, low_error = two_sum(z, product_error)
    high, high_error = two_sum(product, low)
    odd, rest = two_sum(low_error, high_error)
    is_even = (odd.view(np.uint64) & np.uint64(1)) == 0
    towards = np.where(rest > 0, np.inf, -np.inf)
    odd = np.where((rest != 0) & is_even, np.nextafter(odd, towards), odd)
    result = high + odd
    size = np.maximum(np.maximum(np.abs(x), np.abs(y)), np.maximum(np.abs(z), np.abs(product)))
    tiny = (np.abs(product) < 1e-280) & (x != 0) & (y != 0)
    risky = np.isfinite(x) & np.isfinite(y) & np.isfinite(z) & ((size > 1e290) | tiny)
    result = np.where(np.isfinite(plain) & ~risky & (plain != 0), result, plain)
    # Cancellation to zero: the sign of `plain` is right only if the sum is really zero.
    exact = risky | ((plain == 0) & (product_error != 0))
    if exact.any():
        result = result.copy()
        for i in np.flatnonzero(exact):
            result[i] = _exact_fma(float(x[i]), float(y[i]), float(z[i]), float(plain[i]))
    return result


def _exact_fma(x: float, y: float, z: float, plain: float) -> float:
    total = Fraction(x) * Fraction(y) + Fraction(z)
    if total == 0:
        return plain
    try:
        return float(total) or (0.0 if total > 0 else -0.0)
    except OverflowError:
        return np.inf if total > 0 else -np.inf


def towards(nearest, excess, mode: str):
    """Turn a result rounded to nearest into one rounded as `mode` says.

    `excess` has the sign of (exact value - nearest).
    """
    kind = nearest.dtype.type
    below, above = excess < 0, excess > 0
    down = below & ((mode == "rm") | ((mode == "rz") & (nearest > 0)))
    up = above & ((mode == "rp") | ((mode == "rz") & (nearest < 0)))
    lower = np.nextafter(nearest, kind(-np.inf))
    upper = np.nextafter(nearest, kind(np.inf))
    return np.where(down, lower, np.where(up, upper, nearest))


def directed32(total, error, mode: str):
    """The exact value total + error (float64) as float32 in rounding mode rz, rm or rp."""
    nearest = total.astype(np.float32)
    difference = total - nearest
    return towards(nearest, np.where(difference != 0, difference, error), mode)


def odd32(x):
    """Float64 to float32 with rounding to odd, after which one more rounding does no harm."""
    nearest = x.astype(np.float32)
    excess = x - nearest
    is_even = (nearest.view(np.uint32) & np.uint32(1)) == 0
    side = np.where(excess > 0, np.float32(np.inf), np.float32(-np.inf))
    return np.where((excess != 0) & is_even, np.nextafter(nearest, side), nearest)


def flush(x):
    """Subnormal numbers become zeros of the same sign."""
    tiny = np.abs(x) < np.finfo(x.dtype).tiny
    return np.where(tiny, np.copysign(x.dtype.type(0), x), x)


def bf16_to_f32(bits):
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(x):
    """Round to nearest, ties to even; NaNs become the canonical one."""
    bits = x.view(np.uint32)
    half = ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
    rounded = ((bits + half) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FFF), rounded)


def f32_to_tf32(x, mode: str):
    """TF32 bits: round half away (rna) or to nearest even (rn); 13 low bits become zero."""
    bits = x.view(np.uint32)
    half = np.uint32(0x1000)
    if mode == "rn":
        half = ((bits >> np.uint32(13)) & np.uint32(1)) + np.uint32(0x0FFF)
    rounded = np.where(np.isfinite(x), bits + half, bits)
    return np.where(np.isnan(x), np.uint32(0x7FFFFFFF), rounded) & np.uint32(0xFFFFE000)


def tf32_to_f32(bits):
    """What the tensor core sees: the low bits of the mantissa are ignored."""
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)
