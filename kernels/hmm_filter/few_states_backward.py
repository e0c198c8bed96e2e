"""Gradients of forward filtering for few states: the adjoint recursion, and its scan over pieces.

As in few_states.py, a lane has one state of a row and sees those of the others by shuffles. All
that a step reads is known in advance, and is loaded two steps before (emissions, whose symbols have
to be known, one).
"""

import triton
import triton.language as tl

from .steps import (
    above_zero,
    emissions_of,
    floor_of,
    inverse_power,
    largest_of,
    lift_exponent_of,
    lift_of,
    one_of_all,
    row_places,
    symbols_of,
    transition_rows,
)


@triton.jit
def saved_step(
    filtered,
    predicted,
    grad_filtered,
    grad_predicted,
    o_first,
    t,
    b_length,
    m_s,
    m_given,
    HAS_GRAD_FILTERED: tl.constexpr,
    HAS_GRAD_PREDICTED: tl.constexpr,
    S: tl.constexpr,
):
    """filtered, predicted and their gradients at a step of each row; 0 where there is none."""
    m_read = m_s & ((t >= 0) & (t < b_length))[:, None]
    o_out = o_first + t * S
    b_f = tl.load(filtered + o_out, mask=m_read, other=0.0)
    b_p = tl.load(predicted + o_out, mask=m_read, other=0.0)
    b_gf, b_gp = tl.zeros_like(b_f), tl.zeros_like(b_p)
    if HAS_GRAD_FILTERED:
        b_gf = tl.load(grad_filtered + o_out, mask=m_read & m_given[:, None], other=0.0)
    if HAS_GRAD_PREDICTED:
        b_gp = tl.load(grad_predicted + o_out, mask=m_read & m_given[:, None], other=0.0)
    return b_f, b_p, b_gf, b_gp


@triton.jit
def hmm_filter_backward_kernel(
    grad_filtered,
    grad_predicted,
    grad_log_likelihood,
    observations,
    lengths,
    transition,
    emission,
    filtered,
    predicted,
    log_likelihood,
    incoming,
    outgoing,
    weights,
    grad_transition,
    grad_emission,
    delicate,
    rows,
    T,
    V,
    chunk,
    chunks,
    transition_stride,
    emission_stride,
    HAS_GRAD_FILTERED: tl.constexpr,
    HAS_GRAD_PREDICTED: tl.constexpr,
    HAS_GRAD_LOG_LIKELIHOOD: tl.constexpr,
    HAS_LENGTHS: tl.constexpr,
    HAS_INCOMING: tl.constexpr,
    PIECES: tl.constexpr,
    BASIS: tl.constexpr,
    OWN_TRANSITION: tl.constexpr,
    OWN_EMISSION: tl.constexpr,
    SUMMED: tl.constexpr,
    BV: tl.constexpr,
    S: tl.constexpr,
    SP: tl.constexpr,
    BB: tl.constexpr,
):
    """BB rows from their last step to their first.

    b_d is the adjoint of predicted at the step after the present one. It begins as
    incoming [rows, S] (or 0) and ends as outgoing [rows, S]. grad_transition [rows or programs, S,
    S] is summed here, and so is grad_emission [rows or programs, S, V] if SUMMED is V; if it is 0,
    its terms are stored as weights [B, T, S].

    With BASIS there are S + 1 rows for each piece: what leads from state i of incoming to outgoing
    without any gradients, and last, what the gradients lead to; only outgoing is stored.
    delicate [B] tells of sequences whose results are not to be used (steps.py); with PIECES it is
    only set, as several rows may do so.
    """
    o_row = tl.program_id(0).to(tl.int64) * BB + tl.arange(0, BB)
    m_row = o_row < rows
    o_s = tl.arange(0, SP)
    m_s = (o_s < S)[None, :]
    m_tile = m_row[:, None] & m_s
    if BASIS:
        o_piece = o_row // (S + 1)
        m_given = o_row % (S + 1) == S
    else:
        o_piece = o_row
        m_given = m_row
    o_b, first, b_steps, b_length = row_places(
        o_piece, m_row, lengths, T, chunk, chunks, HAS_LENGTHS
    )
    # An impossible sequence has no gradient.
    b_log = tl.load(log_likelihood + o_b, mask=m_row, other=0.0)
    b_length = tl.where(b_log == float("-inf"), 0, b_length)

    DTYPE: tl.constexpr = emission.dtype.element_ty
    LIFT: tl.constexpr = lift_of(emission)
    LIFT_EXPONENT: tl.constexpr = lift_exponent_of(emission)
    b_d = tl.zeros((BB, SP), dtype=DTYPE)
    if BASIS:
        m_one = m_s & (o_s[None, :] == (o_row % (S + 1))[:, None])
        b_d = tl.where(m_one, 1.0, 0.0).to(DTYPE)
    if HAS_INCOMING:
        b_d = tl.load(incoming + (o_row * S)[:, None] + o_s[None, :], mask=m_tile, other=0.0)
    b_gl = tl.zeros((BB,), dtype=DTYPE)
    if HAS_GRAD_LOG_LIKELIHOOD:
        b_gl = tl.load(grad_log_likelihood + o_b, mask=m_row & m_given, other=0.0)
    b_columns = transition_rows(transition, o_b, m_tile, transition_stride, True, DTYPE, S, SP)
    b_zero = tl.zeros((BB, SP), dtype=DTYPE)
    b_ga, b_ge = (), ()  # to-state, symbol -> [BB, state]
    for _ in tl.static_range(0 if BASIS else S):
        b_ga += (b_zero,)
    for _ in tl.static_range(SUMMED):
        b_ge += (b_zero,)

    o_e = (o_b * emission_stride)[:, None] + (o_s * V)[None, :]
    o_first = ((o_b * T + first) * S)[:, None] + o_s[None, :]
    p_y = observations + (o_b * T + first)[:, None]
    b_last = tl.zeros((BB, SP), dtype=tl.int32) + chunk - 1
    b_y = symbols_of(p_y, b_last, b_length, V)
    b_e = emissions_of(b_y, emission, o_e, m_s, V, DTYPE)
    b_symbols = symbols_of(p_y, chunk - 2 - o_s[None, :], b_length, V)
    b_now = saved_step(
        filtered, predicted, grad_filtered, grad_predicted, o_first, chunk - 1, b_length, m_s,
        m_given, HAS_GRAD_FILTERED, HAS_GRAD_PREDICTED, S,
    )  # fmt: skip
    b_soon = saved_step(
        filtered, predicted, grad_filtered, grad_predicted, o_first, chunk - 2, b_length, m_s,
        m_given, HAS_GRAD_FILTERED, HAS_GRAD_PREDICTED, S,
    )  # fmt: skip
    b_one = tl.full((BB, SP), 1.0, dtype=DTYPE)
    # The least positive numbers so far, as bit patterns: of sums, scaled u and emissions.
    b_least_u = above_zero(b_one * LIFT)
    b_least_e = above_zero(b_one)
    b_largest = b_zero
    b_lift = tl.full((BB,), LIFT, dtype=DTYPE)
    b_delicate = tl.zeros((BB,), dtype=tl.int1)
    for i_tile in range(0, tl.cdiv(chunk, SP)):
        t_tile = chunk - 1 - i_tile * SP
        b_later_symbols = symbols_of(p_y, t_tile - SP - 1 - o_s[None, :], b_length, V)
        for i_step in range(0, tl.minimum(t_tile + 1, SP)):
            t = t_tile - i_step
            b_next_y = one_of_all(b_symbols, i_step)
            b_next_e = emissions_of(b_next_y, emission, o_e, m_s, V, DTYPE)
            b_later = saved_step(
                filtered, predicted, grad_filtered, grad_predicted, o_first, t - 2, b_length, m_s,
                m_given, HAS_GRAD_FILTERED, HAS_GRAD_PREDICTED, S,
            )  # fmt: skip
            b_f, b_p, b_gf, b_gp = b_now

            m_now = t < b_length
            b_u = b_p * (b_e * LIFT)
            b_c = tl.sum(b_u, axis=1)
            m_kept = m_now & ~(b_c < 1.0)
            b_delicate = b_delicate | (m_now & (b_c < 1.0))
            b_c = tl.where(m_kept, b_c, LIFT)
            b_scaled = b_u * inverse_power(b_c, LIFT_EXPONENT)[:, None]
            b_least_u = tl.minimum(b_least_u, above_zero(b_scaled))
            b_least_e = tl.minimum(b_least_e, above_zero(b_e))
            b_lifted = (b_lift / b_c)[:, None]

            b_a = b_gf
            b_sums = ()
            for j in tl.static_range(S):
                b_one = one_of_all(b_d, j)
                b_a += b_one * b_columns[j]
                if not BASIS:
                    b_sums += (b_ga[j] + b_one * b_f,)
            b_ga = b_sums
            b_g = b_a - tl.sum(b_a * b_f, axis=1)[:, None] + b_gl[:, None]
            b_new = b_e * b_lifted * b_g + b_gp
            b_d = tl.where(m_kept[:, None], b_new, b_d)
            b_largest = tl.maximum(b_largest, tl.abs(b_d))

            if not BASIS:
                m_seen = m_kept[:, None] & (b_y >= 0)
                b_w = tl.where(m_seen, b_p * b_lifted * b_g, 0.0)
                if SUMMED:
                    b_sums = ()
                    for v in tl.static_range(SUMMED):
                        b_sums += (b_ge[v] + tl.where(b_y == v, b_w, 0.0),)
                    b_ge = b_sums
                else:
                    m_out = m_s & (t < b_steps)[:, None]
                    tl.store(weights + o_first + t * S, b_w, mask=m_out)
            b_y, b_e = b_next_y, b_next_e
            b_now, b_soon = b_soon, b_later
        b_symbols = b_later_symbols

    b_limit = tl.full((BB, SP), 2.0 * floor_of(emission) * LIFT, dtype=DTYPE)
    m_low = b_least_u < above_zero(b_limit)
    m_low = m_low | (b_least_e < above_zero(tl.full((BB, SP), 1.0 / LIFT, dtype=DTYPE)))
    m_low = m_low | (b_largest > largest_of(emission))
    b_delicate = b_delicate | (tl.max(m_low.to(tl.int32), axis=1) > 0)
    m_found = b_delicate & (b_length > 0)
    m_mark = m_row & m_found if PIECES else m_row
    tl.store(delicate + o_b, m_found.to(tl.int32), mask=m_mark)
    tl.store(outgoing + (o_row * S)[:, None] + o_s[None, :], b_d, mask=m_tile)
    if not BASIS:
        store_sums(grad_transition, b_ga, o_row, m_row, OWN_TRANSITION, S, SP, S, SP)
    if SUMMED:
        store_sums(grad_emission, b_ge, o_row, m_row, OWN_EMISSION, S, SP, SUMMED, BV)


@triton.jit
def store_sums(
    to,
    b_columns,
    o_row,
    m_row,
    OWN: tl.constexpr,
    S: tl.constexpr,
    SP: tl.constexpr,
    C: tl.constexpr,
    CP: tl.constexpr,
):
    """A matrix [S, C] for each row, or their sum for the program, of C columns [rows, SP].

    They are put together first, so that a warp writes what is contiguous in memory.
    """
    o_s, o_c = tl.arange(0, SP), tl.arange(0, CP)
    b_matrix = b_columns[0][:, :, None] + tl.zeros((CP,), dtype=b_columns[0].dtype)[None, None, :]
    for c in tl.static_range(1, C):
        b_matrix = tl.where((o_c == c)[None, None, :], b_columns[c][:, :, None], b_matrix)
    o_matrix = o_s[:, None] * C + o_c[None, :]
    m_matrix = (o_s < S)[:, None] & (o_c < C)[None, :]
    if OWN:
        p_matrix = to + (o_row * (S * C))[:, None, None] + o_matrix[None, :, :]
        tl.store(p_matrix, b_matrix, mask=m_row[:, None, None] & m_matrix[None, :, :])
    else:
        p_matrix = to + tl.program_id(0).to(tl.int64) * (S * C) + o_matrix
        tl.store(p_matrix, tl.sum(b_matrix, axis=0), mask=m_matrix)


@triton.jit
def hmm_filter_ends_kernel(
    outgoing,
    ends,
    chunks,
    S: tl.constexpr,
    SP: tl.constexpr,
):
    """The adjoint of predicted just after each piece of a sequence: ends [B, chunks, S].

    outgoing [B, chunks, S + 1, S]: rows 0 to S - 1 are the linear map of a piece, the last one is
    what its own gradients add.
    """
    i_b = tl.program_id(0).to(tl.int64)
    o_s = tl.arange(0, SP)
    m_s = o_s < S
    b_d = tl.zeros((SP,), dtype=ends.dtype.element_ty)
    for i_step in range(0, chunks):
        i_piece = i_b * chunks + (chunks - 1 - i_step)
        tl.store(ends + i_piece * S + o_s, b_d, mask=m_s)
        o_map = (i_piece * (S + 1) + o_s)[:, None] * S + o_s[None, :]
        b_map = tl.load(outgoing + o_map, mask=m_s[:, None] & m_s[None, :], other=0.0)
        p_own = outgoing + (i_piece * (S + 1) + S) * S + o_s
        b_own = tl.load(p_own, mask=m_s, other=0.0)
        b_d = b_own + tl.sum(b_d[:, None] * b_map, axis=0)
