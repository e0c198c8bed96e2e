"""Forward filtering for many states: the recursion over a tile of sequences."""

import triton
import triton.language as tl

from .steps import (
    emission_column,
    floor_of,
    lengths_of,
    lift_exponent_of,
    lift_of,
    load_transition,
    positive_below,
    times_shared,
)

LN2 = tl.constexpr(0.6931471805599453)
MANTISSA = tl.constexpr((1 << 52) - 1)
ONE = tl.constexpr(1023 << 52)  # the bits of 1.0


@triton.jit
def hmm_filter_forward_kernel(
    observations,
    lengths,
    initial,
    transition,
    emission,
    filtered,
    predicted,
    log_likelihood,
    delicate,
    rows,
    T,
    V,
    initial_stride,
    transition_stride,
    emission_stride,
    HAS_LENGTHS: tl.constexpr,
    DOT: tl.constexpr,
    S: tl.constexpr,
    SP: tl.constexpr,
    BB: tl.constexpr,
    BK: tl.constexpr,
):
    """BB sequences from their first step to their last.

    initial has one distribution a row (initial_stride S) or one for all (0). delicate [B] tells of
    sequences that might have lost something (steps.py).
    """
    o_row = tl.program_id(0).to(tl.int64) * BB + tl.arange(0, BB)
    m_row = o_row < rows
    o_s = tl.arange(0, SP)
    m_tile = m_row[:, None] & (o_s < S)[None, :]
    b_length = lengths_of(lengths, o_row, m_row, T, HAS_LENGTHS)

    WIDE: tl.constexpr = tl.float64 if emission.dtype.element_ty == tl.float64 else tl.float32
    p_initial = initial + (o_row * initial_stride)[:, None] + o_s[None, :]
    b_p = tl.load(p_initial, mask=m_tile, other=0.0).to(WIDE)
    if not DOT:
        b_matrix = load_transition(transition, o_row, m_row, transition_stride, False, WIDE, S, SP)

    LIFT: tl.constexpr = lift_of(emission)
    LIFT_EXPONENT: tl.constexpr = lift_exponent_of(emission)
    # The likelihood is b_mantissa 2^b_exponent, so that a step costs no logarithm.
    b_mantissa = tl.full((BB,), 1.0, dtype=tl.float64)
    b_exponent = tl.zeros((BB,), dtype=tl.int64)
    b_impossible = tl.zeros((BB,), dtype=tl.int1)
    b_delicate = tl.zeros((BB,), dtype=tl.int1)
    b_low = tl.zeros((BB, SP), dtype=tl.int32)  # as flags, it would not fit into predicates
    for t in range(0, T):
        m_now = t < b_length
        b_y, b_e = emission_column(
            observations, emission, o_row, t, m_now, T, V, emission_stride, WIDE, S, SP
        )
        b_u = b_p * b_e
        b_c = tl.sum(b_u, axis=1)
        m_impossible = b_c < 1.0  # NaN is not, and is passed on
        b_delicate = b_delicate | (m_now & m_impossible & (b_c > 0.0))
        b_below = positive_below(b_u, (b_c * floor_of(emission))[:, None])
        b_below = m_now[:, None] & (b_below | positive_below(b_e, 1.0))
        b_low = b_low | b_below.to(tl.int32)
        m_kept = m_now & ~m_impossible
        b_c = tl.where(m_kept, b_c, LIFT)
        b_f = tl.where(m_kept[:, None], b_u / b_c[:, None], 0.0)
        o_out = ((o_row * T + t) * S)[:, None] + o_s[None, :]
        tl.store(predicted + o_out, tl.where(m_now[:, None], b_p, 0.0), mask=m_tile)
        tl.store(filtered + o_out, b_f, mask=m_tile)

        b_impossible = b_impossible | (m_now & m_impossible)
        b_bits = (b_mantissa * b_c.to(tl.float64)).to(tl.int64, bitcast=True)
        b_exponent += ((b_bits >> 52) & 0x7FF) - (1023 + LIFT_EXPONENT)
        b_mantissa = ((b_bits & MANTISSA) | ONE).to(tl.float64, bitcast=True)

        if DOT:
            b_next = times_shared(b_f, transition, False, S, BB, SP, BK)
        else:
            b_next = tl.sum(tl.trans(b_f)[:, :, None] * b_matrix, axis=0)
        b_p = tl.where(m_now[:, None], b_next, b_p)

    # Mantissa and exponent cannot hold a NaN; the state has kept it.
    b_log = tl.log(b_mantissa) + b_exponent.to(tl.float64) * LN2
    b_log += 0.0 * tl.sum(b_p, axis=1).to(tl.float64)
    b_log = tl.where(b_impossible, float("-inf"), b_log)
    tl.store(log_likelihood + o_row, b_log.to(log_likelihood.dtype.element_ty), mask=m_row)
    b_delicate = b_delicate | (tl.max(b_low, axis=1) > 0)
    tl.store(delicate + o_row, b_delicate.to(tl.int32), mask=m_row)
