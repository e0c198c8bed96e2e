"""Gradients of forward filtering: the adjoint recursion, and its scan over pieces of sequences."""

import triton
import triton.language as tl

from .steps import (
    emission_column,
    floor_of,
    largest_of,
    lift_of,
    load_transition,
    positive_below,
    row_places,
    times_shared,
)


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
    adjoint,
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
    BASIS: tl.constexpr,
    SUM_TRANSITION: tl.constexpr,
    SUM_EMISSION: tl.constexpr,
    OWN_TRANSITION: tl.constexpr,
    OWN_EMISSION: tl.constexpr,
    DOT: tl.constexpr,
    S: tl.constexpr,
    SP: tl.constexpr,
    BB: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
):
    """BB rows from their last step to their first.

    b_d is the adjoint of predicted at the step after the present one. It begins as
    incoming [rows, S] (or 0) and ends as outgoing [rows, S].
        SUM_TRANSITION: grad_transition [rows or programs, S, S] is summed here, else adjoint
            [B, T, S] is stored, from which it follows as a matrix product.
        SUM_EMISSION: grad_emission [rows or programs, S, V] is summed here, else its terms are
            stored as weights [B, T, S].
    With BASIS there are S + 1 rows for each stretch: what leads from state i of incoming to
    outgoing without any gradients, and last, what the gradients lead to; only outgoing is stored.
    delicate [B] is set for sequences whose results are not to be used (steps.py).
    """
    o_row = tl.program_id(0).to(tl.int64) * BB + tl.arange(0, BB)
    m_row = o_row < rows
    o_s = tl.arange(0, SP)
    m_s = o_s < S
    m_tile = m_row[:, None] & m_s[None, :]
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
    b_d = tl.zeros((BB, SP), dtype=DTYPE)
    if BASIS:
        b_d += tl.where(o_s[None, :] == (o_row % (S + 1))[:, None], 1.0, 0.0).to(DTYPE)
        b_d = tl.where(m_s[None, :], b_d, 0.0)
    if HAS_INCOMING:
        b_d = tl.load(incoming + (o_row * S)[:, None] + o_s[None, :], mask=m_tile, other=0.0)
    if HAS_GRAD_LOG_LIKELIHOOD:
        b_gl = tl.load(grad_log_likelihood + o_b, mask=m_row & m_given, other=0.0)
    if not DOT:
        b_matrix = load_transition(transition, o_b, m_row, transition_stride, True, S, SP)
    b_delicate = tl.zeros((BB,), dtype=tl.int1)
    b_low = tl.zeros((BB, SP), dtype=tl.int32)  # as flags, it would not fit into predicates
    if SUM_TRANSITION:
        b_ga = tl.zeros((SP, BB, SP), dtype=DTYPE)  # to-state, row, from-state
    if SUM_EMISSION:
        b_ge = tl.zeros((BV, BB, SP), dtype=DTYPE)
        o_v = tl.arange(0, BV)

    for i_step in range(0, chunk):
        t = chunk - 1 - i_step
        m_now = t < b_length
        m_read = m_now[:, None] & m_s[None, :]
        b_y, b_e = emission_column(
            observations, emission, o_b, first + t, m_now, T, V, emission_stride, S, SP
        )
        o_out = ((o_b * T + first + t) * S)[:, None] + o_s[None, :]
        b_f = tl.load(filtered + o_out, mask=m_read, other=0.0)
        b_p = tl.load(predicted + o_out, mask=m_read, other=0.0)
        b_u = b_p * b_e
        b_c = tl.sum(b_u, axis=1)
        b_delicate = b_delicate | (m_now & (b_c < 1.0))
        b_below = positive_below(b_u, (b_c * floor_of(emission))[:, None])
        b_below = m_now[:, None] & (b_below | positive_below(b_e, 1.0))
        b_low = b_low | b_below.to(tl.int32)
        m_now = m_now & ~(b_c < 1.0)
        b_c = tl.where(m_now, b_c, LIFT)

        if DOT:
            b_a = times_shared(b_d, transition, True, S, BB, SP, BK)
        else:
            b_columns = tl.trans(b_d)[:, :, None]  # [SP, BB, 1]
            b_a = tl.sum(b_columns * b_matrix, axis=0)
            if SUM_TRANSITION:
                b_ga += b_columns * b_f[None, :, :]
        if HAS_GRAD_FILTERED:
            m_gradient = m_read & m_given[:, None]
            b_a += tl.load(grad_filtered + o_out, mask=m_gradient, other=0.0)
        b_g = b_a - tl.sum(b_a * b_f, axis=1)[:, None]
        if HAS_GRAD_LOG_LIKELIHOOD:
            b_g += b_gl[:, None]

        m_seen = m_now & (b_y >= 0)
        b_w = tl.where(m_seen[:, None], b_p * LIFT / b_c[:, None] * b_g, 0.0)
        if SUM_EMISSION:
            m_symbol = o_v[:, None, None] == b_y[None, :, None]
            b_ge += tl.where(m_symbol, b_w[None, :, :], 0.0)

        b_new = b_e / b_c[:, None] * b_g
        if HAS_GRAD_PREDICTED:
            m_gradient = m_read & m_given[:, None]
            b_new += tl.load(grad_predicted + o_out, mask=m_gradient, other=0.0)
        b_d = tl.where(m_now[:, None], b_new, b_d)
        b_low = b_low | (tl.abs(b_d) > largest_of(emission)).to(tl.int32)
        if not BASIS:
            m_out = (t < b_steps)[:, None] & m_s[None, :]
            if not SUM_TRANSITION:
                tl.store(adjoint + o_out, tl.where(m_now[:, None], b_d, 0.0), mask=m_out)
            if not SUM_EMISSION:
                tl.store(weights + o_out, b_w, mask=m_out)

    b_delicate = b_delicate | (tl.max(b_low, axis=1) > 0)
    m_mark = m_row & b_delicate & (b_length > 0)
    tl.store(delicate + o_b, b_delicate.to(tl.int32), mask=m_mark)
    tl.store(outgoing + (o_row * S)[:, None] + o_s[None, :], b_d, mask=m_tile)
    i_program = tl.program_id(0).to(tl.int64)
    if SUM_TRANSITION and not BASIS:
        o_matrix = o_s[:, None] + o_s[None, :] * S
        m_matrix = m_s[:, None] & m_s[None, :]
        if OWN_TRANSITION:
            p_ga = grad_transition + (o_row * S * S)[None, :, None] + o_matrix[:, None, :]
            tl.store(p_ga, b_ga, mask=m_row[None, :, None] & m_matrix[:, None, :])
        else:
            p_ga = grad_transition + i_program * S * S + o_matrix
            tl.store(p_ga, tl.sum(b_ga, axis=1), mask=m_matrix)
    if SUM_EMISSION and not BASIS:
        o_matrix = o_v[:, None] + o_s[None, :] * V
        m_matrix = (o_v < V)[:, None] & m_s[None, :]
        if OWN_EMISSION:
            p_ge = grad_emission + (o_row * S * V)[None, :, None] + o_matrix[:, None, :]
            tl.store(p_ge, b_ge, mask=m_row[None, :, None] & m_matrix[:, None, :])
        else:
            p_ge = grad_emission + i_program * S * V + o_matrix
            tl.store(p_ge, tl.sum(b_ge, axis=1), mask=m_matrix)


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
