"""Forward filtering of the few sequences whose probabilities leave the range of floats.

Each number has an exponent of its own: mantissa (float64, 1 to 2, or 0) and exponent (int64).
p(z_t, y_1..t) is kept as it is, as nothing can underflow; a step is a loop over the states that are
left. A sequence that is neither marked as delicate nor has a transition matrix with entries that
are all but 0 costs a look at these.
"""

import triton
import triton.language as tl

from .steps import has_small

LN2 = tl.constexpr(0.6931471805599453)
MANTISSA = tl.constexpr((1 << 52) - 1)
ONE = tl.constexpr(1023 << 52)  # the bits of 1.0
NOTHING = tl.constexpr(-(1 << 40))  # the exponent of 0
RAISE = tl.constexpr(2.0**100)  # makes subnormal numbers normal
TINY = tl.constexpr(2.0**-1022)


@triton.jit
def split(b_x):
    """(mantissa, exponent) of float64 numbers that are not negative."""
    m_small = b_x < TINY
    b_bits = tl.where(m_small, b_x * RAISE, b_x).to(tl.int64, bitcast=True)
    b_exponent = (b_bits >> 52) - tl.where(m_small, 1123, 1023)
    b_mantissa = ((b_bits & MANTISSA) | ONE).to(tl.float64, bitcast=True)
    m_zero = b_x == 0.0
    return tl.where(m_zero, 0.0, b_mantissa), tl.where(m_zero, NOTHING, b_exponent)


@triton.jit
def power(b_exponent):
    """2^exponent, 0 if it is below the smallest normal number."""
    b_kept = tl.minimum(tl.maximum(b_exponent, -1022), 1023)
    b_power = ((b_kept + 1023) << 52).to(tl.float64, bitcast=True)
    return tl.where(b_exponent < -1022, 0.0, b_power)


@triton.jit
def total_of(b_m, b_x):
    """The sum of a row, as (mantissa, exponent)."""
    b_peak = tl.max(b_x, axis=0)
    b_sum, b_over = split(tl.sum(b_m * power(b_x - b_peak), axis=0))
    return b_sum, tl.where(b_sum == 0.0, NOTHING, b_peak + b_over)


@triton.jit
def ratio(b_m, b_x, c_m, c_x):
    """As floats; 0 if the divisor is."""
    b_floats = b_m / tl.where(c_m == 0.0, 1.0, c_m) * power(b_x - c_x)
    return tl.where(b_m == 0.0, 0.0, tl.where(c_m == 0.0, 0.0, b_floats))


@triton.jit
def hmm_filter_exact_kernel(
    observations,
    lengths,
    initial,
    transition,
    emission,
    filtered,
    predicted,
    log_likelihood,
    delicate,
    T,
    V,
    initial_stride,
    transition_stride,
    emission_stride,
    HAS_LENGTHS: tl.constexpr,
    S: tl.constexpr,
    SP: tl.constexpr,
    BK: tl.constexpr,
):
    """One sequence a program."""
    i_b = tl.program_id(0).to(tl.int64)
    small = has_small(transition + i_b * transition_stride, S, SP, BK)
    if tl.load(delicate + i_b) + small == 0:
        return
    o_s = tl.arange(0, SP)
    m_s = o_s < S
    DTYPE: tl.constexpr = filtered.dtype.element_ty
    b_length = T
    if HAS_LENGTHS:
        b_length = tl.minimum(tl.maximum(tl.load(lengths + i_b), 0), T).to(tl.int32)
    p_initial = initial + i_b * initial_stride + o_s
    b_m, b_x = split(tl.load(p_initial, mask=m_s, other=0.0).to(tl.float64))
    c_m, c_x = split(tl.sum(tl.where(o_s == 0, 1.0, 0.0).to(tl.float64), axis=0))
    for t in range(0, b_length):
        o_out = (i_b * T + t) * S + o_s
        tl.store(predicted + o_out, ratio(b_m, b_x, c_m, c_x).to(DTYPE), mask=m_s)
        b_y = tl.load(observations + i_b * T + t).to(tl.int64)
        p_e = emission + i_b * emission_stride + o_s * V + b_y
        m_known = (b_y >= 0) & (b_y < V)
        b_e = tl.load(p_e, mask=m_s & m_known, other=0.0).to(tl.float64)
        e_m, e_x = split(tl.where(m_s & (b_y < 0), 1.0, b_e))
        b_m, over = split(b_m * e_m)
        b_x = tl.where(b_m == 0.0, NOTHING, b_x + e_x + over)
        c_m, c_x = total_of(b_m, b_x)
        tl.store(filtered + o_out, ratio(b_m, b_x, c_m, c_x).to(DTYPE), mask=m_s)

        n_m = tl.zeros((SP,), dtype=tl.float64)
        n_x = tl.full((SP,), NOTHING, dtype=tl.int64)
        for i in range(0, S):
            f_m = tl.sum(tl.where(o_s == i, b_m, 0.0), axis=0)
            f_x = tl.sum(tl.where(o_s == i, b_x, 0), axis=0)
            p_row = transition + i_b * transition_stride + i * S + o_s
            a_m, a_x = split(tl.load(p_row, mask=m_s, other=0.0).to(tl.float64))
            b_peak = tl.maximum(n_x, f_x + a_x)
            n_m = n_m * power(n_x - b_peak) + f_m * a_m * power(f_x + a_x - b_peak)
            n_x = b_peak
        b_m, over = split(n_m)
        b_x = tl.where(b_m == 0.0, NOTHING, n_x + over)
    b_log = tl.log(tl.where(c_m == 0.0, 1.0, c_m)) + c_x.to(tl.float64) * LN2
    b_log = tl.where(c_m == 0.0, float("-inf"), b_log)
    tl.store(log_likelihood + i_b, b_log.to(log_likelihood.dtype.element_ty))
