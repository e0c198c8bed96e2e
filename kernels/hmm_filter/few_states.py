"""Forward filtering for few states: the recursion over a few rows, and the scan over pieces.

A lane has one state of a row. What takes time is the way from one step to the next, so it is short:
    Rows are not normalised, but divided by the power of two below their sum. A lane sees the
    numbers of the others by one shuffle for each, from which it has the sum and its own part of the
    product with the matrix; nothing waits for a division.
    Nothing waits for memory. Symbols come in tiles of as many steps as a row has lanes, loaded
    while those before are computed, and the emissions of a step are loaded during the step before.

With u the joint probabilities of a step,
    product = u transition,  predicted' = product / sum(u),  u' = product * scale * emission',
where scale is the lift (steps.py) over the power of two below sum(u). So the last sum is the
likelihood but for powers of two, whose exponents are added up.
"""

import triton
import triton.language as tl

from .steps import (
    above_zero,
    emissions_of,
    floor_of,
    inverse_power,
    lengths_of,
    lift_exponent_of,
    lift_of,
    mantissa_of,
    one_of_all,
    raw_exponent,
    row_places,
    symbols_of,
    transition_rows,
)

LN2 = tl.constexpr(0.6931471805599453)


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
    RAGGED: tl.constexpr,
    PIECES: tl.constexpr,
    BASIS: tl.constexpr,
    S: tl.constexpr,
    SP: tl.constexpr,
    BB: tl.constexpr,
):
    """BB rows from their first step to their last.

    initial has one distribution a row (initial_stride S) or one for all (0). RAGGED: not all rows
    have `chunk` steps. delicate is set for sequences that might have lost something (steps.py).
        Whole sequences: log_likelihood [B] and delicate [B] are written.
        PIECES of sequences: those of delicate [B] that are delicate are, and no likelihoods.
        BASIS: there are S rows for each piece, which start in state 0, 1, ..., and only what they
            lead to is stored: final [rows, S], predicted after the last step, log_likelihood
            [rows] and delicate [rows].
    """
    o_row = tl.program_id(0).to(tl.int64) * BB + tl.arange(0, BB)
    m_row = o_row < rows
    o_s = tl.arange(0, SP)
    m_s = (o_s < S)[None, :]
    m_tile = m_row[:, None] & m_s
    o_piece = o_row // S if BASIS else o_row
    o_b, first, b_steps, b_length = row_places(
        o_piece, m_row, lengths, T, chunk, chunks, HAS_LENGTHS
    )
    WIDE: tl.constexpr = tl.float64 if emission.dtype.element_ty == tl.float64 else tl.float32
    LIFT: tl.constexpr = lift_of(emission)
    LIFT_EXPONENT: tl.constexpr = lift_exponent_of(emission)
    if BASIS:
        b_product = tl.where(o_s[None, :] == (o_row % S)[:, None], 1.0, 0.0).to(WIDE)
    else:
        p_initial = initial + (o_row * initial_stride)[:, None] + o_s[None, :]
        b_product = tl.load(p_initial, mask=m_tile, other=0.0).to(WIDE)
    b_rows = transition_rows(transition, o_b, m_tile, transition_stride, False, WIDE, S, SP)

    o_e = (o_b * emission_stride)[:, None] + (o_s * V)[None, :]
    p_y = observations + (o_b * T + first)[:, None]
    b_y = symbols_of(p_y, tl.zeros((BB, SP), dtype=tl.int32), b_length, V)
    b_e = emissions_of(b_y, emission, o_e, m_s, V, WIDE)
    b_symbols = symbols_of(p_y, 1 + o_s[None, :], b_length, V)
    o_out = ((o_b * T + first) * S)[:, None] + o_s[None, :]

    b_scale = tl.full((BB, SP), LIFT, dtype=WIDE)
    b_inverse = tl.full((BB, SP), 1.0, dtype=WIDE)
    b_last = b_inverse
    b_exponent = tl.zeros((BB, SP), dtype=tl.int64)
    # The least positive numbers so far, as bit patterns: of sums, scaled u and emissions.
    b_least_sum = above_zero(b_inverse)
    b_least_u = above_zero(b_scale)
    b_least_e = b_least_sum
    for i_tile in range(0, tl.cdiv(chunk, SP)):
        t_tile = i_tile * SP
        b_later = symbols_of(p_y, t_tile + SP + 1 + o_s[None, :], b_length, V)
        b_powers = tl.zeros((BB, SP), dtype=tl.int32)
        for i_step in range(0, tl.minimum(chunk - t_tile, SP)):
            t = t_tile + i_step
            m_now = (t < b_length)[:, None]
            b_y = one_of_all(b_symbols, i_step)
            b_coming = emissions_of(b_y, emission, o_e, m_s, V, WIDE)
            b_least_e = tl.minimum(b_least_e, above_zero(b_e))

            b_predicted = b_product * b_inverse
            b_u = b_product * b_scale * b_e
            b_one = one_of_all(b_u, 0)
            b_sum, b_new = b_one, b_one * b_rows[0]
            for i in tl.static_range(1, S):
                b_one = one_of_all(b_u, i)
                b_sum += b_one
                b_new += b_one * b_rows[i]

            m_possible = ~(b_sum < 1.0)  # NaN is, and is passed on
            b_next_inverse = 1.0 / tl.where(m_possible, b_sum, float("inf"))
            b_scale = tl.where(m_possible, inverse_power(b_sum, LIFT_EXPONENT), 0.0)
            b_filtered = b_u * b_next_inverse
            b_scaled = b_u * b_scale
            b_power = raw_exponent(b_sum)
            if RAGGED:
                b_predicted = tl.where(m_now, b_predicted, 0.0)
                b_filtered = tl.where(m_now, b_filtered, 0.0)
                b_scaled = tl.where(m_now, b_scaled, 0.0)
                b_power = tl.where(m_now, b_power, 0)
                b_last = tl.where(m_now, b_sum, b_last)
                b_sum = tl.where(m_now, b_sum, 0.0)
            else:
                b_last = b_sum
            b_powers += b_power
            b_least_sum = tl.minimum(b_least_sum, above_zero(b_sum))
            b_least_u = tl.minimum(b_least_u, above_zero(b_scaled))
            if not BASIS:
                m_out = m_tile & (t < b_steps)[:, None] if RAGGED else m_tile
                tl.store(predicted + o_out, b_predicted, mask=m_out)
                tl.store(filtered + o_out, b_filtered, mask=m_out)
                o_out += S
            if BASIS and RAGGED:
                b_product = tl.where(m_now, b_new, b_product)
                b_inverse = tl.where(m_now, b_next_inverse, b_inverse)
            else:
                b_product, b_inverse = b_new, b_next_inverse
            b_e = b_coming
        b_symbols = b_later
        b_exponent += b_powers

    m_first = m_row[:, None] & (o_s == 0)[None, :]
    o_rows = o_row[:, None] + tl.zeros((BB, SP), dtype=tl.int64)
    if BASIS or not PIECES:
        BIAS: tl.constexpr = 1023 if tl.float64 == WIDE else 127
        b_count = b_length[:, None] * (BIAS + LIFT_EXPONENT)
        b_log = tl.log(mantissa_of(b_last).to(tl.float64))
        b_log += (b_exponent - b_count).to(tl.float64) * LN2
        b_log += 0.0 * b_last.to(tl.float64)  # bit patterns have lost a NaN
        b_log = tl.where(b_last < 1.0, float("-inf"), b_log)
        b_log = b_log.to(log_likelihood.dtype.element_ty)
        tl.store(log_likelihood + o_rows, b_log, mask=m_first)
    m_delicate = b_least_sum < above_zero(tl.full((BB, SP), 1.0, dtype=WIDE))
    # The power of two may be half the sum.
    b_limit = tl.full((BB, SP), 2.0 * floor_of(emission) * LIFT, dtype=WIDE)
    m_delicate = m_delicate | (b_least_u < above_zero(b_limit))
    b_limit = tl.full((BB, SP), 1.0 / LIFT, dtype=WIDE)
    m_delicate = m_delicate | (b_least_e < above_zero(b_limit))
    b_found = tl.max(m_delicate.to(tl.int32), axis=1)
    if BASIS or not PIECES:
        tl.store(delicate + o_row, b_found, mask=m_row)
    else:
        tl.store(delicate + o_b, b_found, mask=m_row & (b_found > 0))
    if BASIS:
        tl.store(final + (o_row * S)[:, None] + o_s[None, :], b_product * b_inverse, mask=m_tile)


@triton.jit
def hmm_filter_starts_kernel(
    lengths,
    initial,
    final,
    log_likelihood,
    marks,
    starts,
    total,
    delicate,
    T,
    chunk,
    chunks,
    initial_stride,
    HAS_LENGTHS: tl.constexpr,
    S: tl.constexpr,
    SP: tl.constexpr,
):
    """predicted at the first step of each piece of a sequence: starts [B, chunks, S]; and the
    log-likelihood of all of them, total [B].

    Row i of final [B, chunks, S, S] is where state i leads to with the likelihood that is given; a
    distribution of states leads to their mean, with weights p_i e^{log_likelihood_i}. A weight that
    is all but 0 makes the sequence delicate, as does one of the marks [B, chunks, S].
    """
    i_b = tl.program_id(0).to(tl.int64)
    o_s = tl.arange(0, SP)
    m_s = o_s < S
    m_square = m_s[:, None] & m_s[None, :]
    b_p = tl.load(initial + i_b * initial_stride + o_s, mask=m_s, other=0.0)
    b_p = b_p.to(starts.dtype.element_ty)
    b_found = tl.zeros((SP,), dtype=tl.int32)
    total_log = tl.sum(tl.zeros((SP,), dtype=tl.float64), axis=0)
    length = lengths_of(lengths, i_b, True, T, HAS_LENGTHS)
    o_rows = i_b * chunks * S + o_s
    o_final = o_rows[:, None] * S + o_s[None, :]
    b_log = tl.load(log_likelihood + o_rows, mask=m_s, other=float("-inf"))
    b_final = tl.load(final + o_final, mask=m_square, other=0.0)
    for i_chunk in range(0, chunks):
        tl.store(starts + o_rows, b_p, mask=m_s)
        b_found = b_found | tl.load(marks + o_rows, mask=m_s, other=0)
        o_rows += S
        o_final += S * S
        m_more = i_chunk + 1 < chunks
        b_next_log = tl.load(log_likelihood + o_rows, mask=m_s & m_more, other=float("-inf"))
        b_next_final = tl.load(final + o_final, mask=m_square & m_more, other=0.0)

        b_w = tl.log(b_p.to(tl.float64)) + b_log
        peak = tl.max(b_w, axis=0)
        peak = tl.where(peak == float("-inf"), 0.0, peak)
        m_weighed = b_w > float("-inf")
        b_w = tl.exp(b_w - peak)
        b_found = b_found | (m_weighed & (b_w < floor_of(starts))).to(tl.int32)
        sum_w = tl.sum(b_w, axis=0)
        # Pieces beyond the length have likelihood 1; sums of probabilities are not quite.
        total_log += tl.where(i_chunk * chunk < length, tl.log(sum_w) + peak, 0.0)
        b_w = (b_w / tl.where(sum_w == 0.0, 1.0, sum_w)).to(b_final.dtype)
        b_p = tl.sum(b_w[:, None] * b_final, axis=0)
        b_log, b_final = b_next_log, b_next_final
    tl.store(total + i_b, total_log.to(total.dtype.element_ty))
    tl.store(delicate + i_b, tl.max(b_found, axis=0))
