"""Gradients of forward filtering for many states: the adjoint recursion."""

import triton
import triton.language as tl

from .steps import (
    emission_column,
    floor_of,
    largest_of,
    lengths_of,
    lift_of,
    load_transition,
    positive_below,
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
    outgoing,
    adjoint,
    weights,
    delicate,
    rows,
    T,
    V,
    transition_stride,
    emission_stride,
    HAS_GRAD_FILTERED: tl.constexpr,
    HAS_GRAD_PREDICTED: tl.constexpr,
    HAS_GRAD_LOG_LIKELIHOOD: tl.constexpr,
    HAS_LENGTHS: tl.constexpr,
    DOT: tl.constexpr,
    S: tl.constexpr,
    SP: tl.constexpr,
    BB: tl.constexpr,
    BK: tl.constexpr,
):
    """BB sequences from their last step to their first.

    b_d is the adjoint of predicted at the step after the present one; it ends as outgoing [rows,
    S]. Stored at each step are adjoint [B, T, S], from which the gradient of transition follows as
    a matrix product, and weights [B, T, S], the terms of that of emission. delicate [B] tells of
    sequences whose results are not to be used (steps.py).
    """
    o_row = tl.program_id(0).to(tl.int64) * BB + tl.arange(0, BB)
    m_row = o_row < rows
    o_s = tl.arange(0, SP)
    m_s = o_s < S
    m_tile = m_row[:, None] & m_s[None, :]
    b_length = lengths_of(lengths, o_row, m_row, T, HAS_LENGTHS)
    # An impossible sequence has no gradient.
    b_log = tl.load(log_likelihood + o_row, mask=m_row, other=0.0)
    b_length = tl.where(b_log == float("-inf"), 0, b_length)

    DTYPE: tl.constexpr = emission.dtype.element_ty
    LIFT: tl.constexpr = lift_of(emission)
    b_d = tl.zeros((BB, SP), dtype=DTYPE)
    if HAS_GRAD_LOG_LIKELIHOOD:
        b_gl = tl.load(grad_log_likelihood + o_row, mask=m_row, other=0.0)
    if not DOT:
        b_matrix = load_transition(transition, o_row, m_row, transition_stride, True, DTYPE, S, SP)
    b_delicate = tl.zeros((BB,), dtype=tl.int1)
    b_low = tl.zeros((BB, SP), dtype=tl.int32)  # as flags, it would not fit into predicates

    for i_step in range(0, T):
        t = T - 1 - i_step
        m_now = t < b_length
        m_read = m_now[:, None] & m_s[None, :]
        b_y, b_e = emission_column(
            observations, emission, o_row, t, m_now, T, V, emission_stride, DTYPE, S, SP
        )
        o_out = ((o_row * T + t) * S)[:, None] + o_s[None, :]
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
            b_a = tl.sum(tl.trans(b_d)[:, :, None] * b_matrix, axis=0)
        if HAS_GRAD_FILTERED:
            b_a += tl.load(grad_filtered + o_out, mask=m_read, other=0.0)
        b_g = b_a - tl.sum(b_a * b_f, axis=1)[:, None]
        if HAS_GRAD_LOG_LIKELIHOOD:
            b_g += b_gl[:, None]

        m_seen = m_now & (b_y >= 0)
        b_w = tl.where(m_seen[:, None], b_p * LIFT / b_c[:, None] * b_g, 0.0)

        b_new = b_e / b_c[:, None] * b_g
        if HAS_GRAD_PREDICTED:
            b_new += tl.load(grad_predicted + o_out, mask=m_read, other=0.0)
        b_d = tl.where(m_now[:, None], b_new, b_d)
        b_low = b_low | (tl.abs(b_d) > largest_of(emission)).to(tl.int32)
        tl.store(adjoint + o_out, tl.where(m_now[:, None], b_d, 0.0), mask=m_tile)
        tl.store(weights + o_out, b_w, mask=m_tile)

    b_delicate = b_delicate | (tl.max(b_low, axis=1) > 0)
    b_found = (b_delicate & (b_length > 0)).to(tl.int32)
    tl.store(delicate + o_row, b_found, mask=m_row)
    tl.store(outgoing + (o_row * S)[:, None] + o_s[None, :], b_d, mask=m_tile)
