"""Forward filtering: the recursion over a tile of rows, and the scan over pieces of sequences."""

import triton
import triton.language as tl

from .steps import (
    emission_column,
    floor_of,
    lift_of,
    load_transition,
    positive_below,
    row_places,
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
    final,
    rows,
    T,
    V,
    chunk,
    chunks,
    initial_stride,
    transition_stride,
    emission_stride,
    HAS_LENGTHS: tl.constexpr,
    BASIS: tl.constexpr,
    DOT: tl.constexpr,
    S: tl.constexpr,
    SP: tl.constexpr,
    BB: tl.constexpr,
    BK: tl.constexpr,
):
    """BB rows from their first step to their last.

    initial has one distribution a row (initial_stride S) or one for all (0). With BASIS there are
    S rows for each stretch, which start in state 0, 1, ..., and only what they lead to is stored:
    final [rows, S], predicted after the last step, and log_likelihood [rows]. delicate [B] is set
    for sequences that might have lost something (steps.py), and otherwise left alone.
    """
    o_row = tl.program_id(0).to(tl.int64) * BB + tl.arange(0, BB)
    m_row = o_row < rows
    o_s = tl.arange(0, SP)
    m_tile = m_row[:, None] & (o_s < S)[None, :]
    o_piece = o_row // S if BASIS else o_row
    o_b, first, b_steps, b_length = row_places(
        o_piece, m_row, lengths, T, chunk, chunks, HAS_LENGTHS
    )

    DTYPE: tl.constexpr = emission.dtype.element_ty
    if BASIS:
        b_p = tl.where(o_s[None, :] == (o_row % S)[:, None], 1.0, 0.0).to(DTYPE)
    else:
        p_initial = initial + (o_row * initial_stride)[:, None] + o_s[None, :]
        b_p = tl.load(p_initial, mask=m_tile, other=0.0)
    if not DOT:
        b_matrix = load_transition(transition, o_b, m_row, transition_stride, False, S, SP)

    LIFT: tl.constexpr = lift_of(emission)
    LIFT_EXPONENT: tl.constexpr = 996 if emission.dtype.element_ty == tl.float64 else 100
    # The likelihood is b_mantissa 2^b_exponent, so that a step costs no logarithm.
    b_mantissa = tl.full((BB,), 1.0, dtype=tl.float64)
    b_exponent = tl.zeros((BB,), dtype=tl.int64)
    b_impossible = tl.zeros((BB,), dtype=tl.int1)
    b_delicate = tl.zeros((BB,), dtype=tl.int1)
    b_low = tl.zeros((BB, SP), dtype=tl.int32)  # as flags, it would not fit into predicates
    for t in range(0, chunk):
        m_now = t < b_length
        b_y, b_e = emission_column(
            observations, emission, o_b, first + t, m_now, T, V, emission_stride, S, SP
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
        if not BASIS:
            o_out = ((o_b * T + first + t) * S)[:, None] + o_s[None, :]
            m_out = (t < b_steps)[:, None] & (o_s < S)[None, :]
            tl.store(predicted + o_out, tl.where(m_now[:, None], b_p, 0.0), mask=m_out)
            tl.store(filtered + o_out, b_f, mask=m_out)

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
    tl.store(delicate + o_b, b_delicate.to(tl.int32), mask=m_row & b_delicate)
    if BASIS:
        tl.store(final + (o_row * S)[:, None] + o_s[None, :], b_p, mask=m_tile)


@triton.jit
def hmm_filter_starts_kernel(
    initial,
    final,
    log_likelihood,
    starts,
    delicate,
    chunks,
    initial_stride,
    S: tl.constexpr,
    SP: tl.constexpr,
):
    """predicted at the first step of each piece of a sequence: starts [B, chunks, S].

    Row i of final [B, chunks, S, S] is where state i leads to with the likelihood that is given;
    a distribution of states leads to their mean, with weights p_i e^{log_likelihood_i}. A weight
    that is all but 0 makes the sequence delicate.
    """
    i_b = tl.program_id(0).to(tl.int64)
    o_s = tl.arange(0, SP)
    m_s = o_s < S
    b_p = tl.load(initial + i_b * initial_stride + o_s, mask=m_s, other=0.0)
    b_low = tl.zeros((SP,), dtype=tl.int1)
    for i_chunk in range(0, chunks):
        i_piece = i_b * chunks + i_chunk
        tl.store(starts + i_piece * S + o_s, b_p, mask=m_s)
        b_log = tl.load(log_likelihood + i_piece * S + o_s, mask=m_s, other=float("-inf"))
        o_final = (i_piece * S + o_s)[:, None] * S + o_s[None, :]
        b_final = tl.load(final + o_final, mask=m_s[:, None] & m_s[None, :], other=0.0)
        b_w = tl.log(b_p.to(tl.float64)) + b_log
        b_peak = tl.max(b_w, axis=0)
        m_weighed = b_w > float("-inf")
        b_w = tl.exp(b_w - tl.where(b_peak == float("-inf"), 0.0, b_peak))
        b_low = b_low | (m_weighed & (b_w < floor_of(starts)))
        b_sum = tl.sum(b_w, axis=0)
        b_w = (b_w / tl.where(b_sum == 0.0, 1.0, b_sum)).to(b_final.dtype)
        b_p = tl.sum(b_w[:, None] * b_final, axis=0)
    b_found = tl.max(b_low.to(tl.int32), axis=0)
    tl.store(delicate + i_b, b_found, mask=b_found > 0)
