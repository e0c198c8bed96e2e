"""The selective scan: device code of both passes.

A program holds BE channels of one sequence and goes through time in tiles of CH steps (tiles.py).
Each input is read once in a pass.

All is computed in the dtype of the states. A model has `sequences` of the batch. Strides are those
of sequences (_b), times (_t), models (_m), states (_n) and channels (_e).
"""

import triton
import triton.language as tl

from .tiles import (
    advance,
    load_chunk,
    load_rates,
    load_rows,
    over_channels,
    over_states,
    part,
    pick,
    put,
    retreat,
    settle,
    spread,
    step_sizes,
)


@triton.jit
def selective_scan_forward_kernel(
    u,
    delta,
    A,
    B,
    C,
    D,
    initial,
    y,
    states,
    last,
    L,
    E,
    N,
    saved,
    sequences,
    u_b,
    u_t,
    delta_b,
    delta_t,
    B_b,
    B_t,
    C_b,
    C_t,
    A_m,
    D_m,
    HAS_SKIP: tl.constexpr,
    HAS_INITIAL: tl.constexpr,
    LAST: tl.constexpr,
    EVERY: tl.constexpr,
    SOFTPLUS: tl.constexpr,
    NP: tl.constexpr,
    NR: tl.constexpr,
    CH: tl.constexpr,
    BE: tl.constexpr,
):
    """states [B, saved, N, E] after the steps EVERY - 1, 2 EVERY - 1, ..; last [B, N, E]."""
    DTYPE: tl.constexpr = states.dtype.element_ty
    NQ: tl.constexpr = NP // NR
    i_block = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(E, BE)
    i_b = i_block // blocks
    i_m = i_b // sequences
    o_i = tl.arange(0, CH)
    o_e = (i_block % blocks * BE).to(tl.int32) + tl.arange(0, BE)
    m_e = o_e < E
    o_n = tl.arange(0, NP)
    o_s = (tl.arange(0, NQ) * NR)[:, None, None] + tl.arange(0, NR)[None, None, :]
    o_c = o_e[None, :, None]
    m_state = (o_s < N) & m_e[None, :, None]
    b_A = load_rates(A + i_m * A_m, o_e, m_e, o_n, N, NR).to(DTYPE)
    if HAS_SKIP:
        b_D = tl.load(D + i_m * D_m + o_e, mask=m_e, other=0.0).to(DTYPE)
    if HAS_INITIAL:
        b_h = tl.load(initial + i_b * N * E + (o_s * E + o_c), mask=m_state, other=0.0)
        b_h = settle(b_h, CH)
    else:
        b_h = tl.zeros((NQ, BE, NR), dtype=DTYPE)
    for first in range(0, L, CH):
        o_t = first + o_i
        m_t = o_t < L
        m_row = m_t[:, None] & m_e[None, :]
        b_u = load_rows(u + i_b * u_b, o_t, m_t, o_e, m_e, u_t, DTYPE)
        b_delta = load_rows(delta + i_b * delta_b, o_t, m_t, o_e, m_e, delta_t, DTYPE)
        b_B = load_rows(B + i_b * B_b, o_t, m_t, o_n, o_n < N, B_t, DTYPE)
        b_C = load_rows(C + i_b * C_b, o_t, m_t, o_n, o_n < N, C_t, DTYPE)
        b_step, _ = step_sizes(b_delta, m_row, SOFTPLUS)
        b_a = tl.exp(b_step[:, None, :, None] * b_A[None, :, :, :])
        b_x = (b_step * b_u)[:, None, :, None] * spread(b_B, NR)
        b_h, b_faded = advance(b_h, b_a, b_x)
        b_states = b_faded + b_x
        b_y = over_states(b_states * spread(b_C, NR))
        if HAS_SKIP:
            b_y += b_D[None, :] * b_u
        tl.store(y + (i_b * L + o_t)[:, None] * E + o_e[None, :], b_y, mask=m_row)
        if EVERY > 0 and EVERY % CH == 0:
            if (first + CH) % EVERY == 0 and first + CH <= L:
                o_saved = i_b * saved + (first + CH) // EVERY - 1
                tl.store(states + o_saved * N * E + (o_s * E + o_c), b_h, mask=m_state)
        elif EVERY > 0:
            o_saved = (i_b * saved + (o_t + 1) // EVERY - 1)[:, None, None, None]
            m_saved = (m_t & ((o_t + 1) % EVERY == 0))[:, None, None, None]
            o_state = (o_saved * N + o_s[None, :, :, :]) * E + o_c[None, :, :, :]
            tl.store(states + o_state, b_states, mask=m_saved & m_state[None, :, :, :])
    if LAST:
        tl.store(last + i_b * N * E + (o_s * E + o_c), b_h, mask=m_state)


@triton.jit
def selective_scan_backward_kernel(
    grad_y,
    grad_last,
    u,
    delta,
    A,
    B,
    C,
    D,
    initial,
    states,
    grad_u,
    grad_delta,
    grad_A,
    grad_B,
    grad_C,
    grad_D,
    grad_initial,
    L,
    E,
    N,
    saved,
    batch,
    sequences,
    grad_y_b,
    grad_y_t,
    grad_last_b,
    grad_last_n,
    grad_last_e,
    u_b,
    u_t,
    delta_b,
    delta_t,
    B_b,
    B_t,
    C_b,
    C_t,
    A_m,
    D_m,
    HAS_SKIP: tl.constexpr,
    HAS_INITIAL: tl.constexpr,
    HAS_LAST: tl.constexpr,
    SOFTPLUS: tl.constexpr,
    NP: tl.constexpr,
    NR: tl.constexpr,
    PARTS: tl.constexpr,
    WARPS: tl.constexpr,
    LANES: tl.constexpr,
    CH: tl.constexpr,
    BE: tl.constexpr,
):
    """grad_A [B, E, N] and grad_D [B, E] are of each sequence, grad_B and grad_C [blocks, B, L, N]
    of each block of channels; grad_initial is [B, N, E]. states were saved every PARTS * CH steps.

    Such a chunk is loaded at once. The states before each of its tiles are computed first; then the
    tiles are gone through from the last one, each forwards again for its states, then back."""
    SPAN: tl.constexpr = PARTS * CH
    DTYPE: tl.constexpr = states.dtype.element_ty
    NQ: tl.constexpr = NP // NR
    i_block = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(E, BE)
    i_b = i_block // blocks
    i_e = i_block % blocks
    i_m = i_b // sequences
    o_i = tl.arange(0, CH)
    o_e = (i_e * BE).to(tl.int32) + tl.arange(0, BE)
    m_e = o_e < E
    o_n = tl.arange(0, NP)
    m_n = o_n < N
    # Not known to be neighbours, or a thread would load several of them and few steps.
    o_near, o_near_n = tl.minimum(o_e, E - 1), tl.minimum(o_n, N - 1)
    o_s = (tl.arange(0, NQ) * NR)[:, None, None] + tl.arange(0, NR)[None, None, :]
    o_c = o_e[None, :, None]
    m_state = (o_s < N) & m_e[None, :, None]
    b_A = load_rates(A + i_m * A_m, o_e, m_e, o_n, N, NR).to(DTYPE)
    b_D = tl.zeros((BE,), dtype=DTYPE)
    if HAS_SKIP:
        b_D = tl.load(D + i_m * D_m + o_e, mask=m_e, other=0.0).to(DTYPE)
    if HAS_LAST:
        o_last = o_s * grad_last_n + o_c * grad_last_e
        b_g = tl.load(grad_last + i_b * grad_last_b + o_last, mask=m_state, other=0.0)
        b_g = settle(b_g, CH)
    else:
        b_g = tl.zeros((NQ, BE, NR), dtype=DTYPE)
    b_grad_A = tl.zeros((NQ, BE, NR), dtype=DTYPE)
    b_grad_D = tl.zeros((BE,), dtype=DTYPE)
    chunks = tl.cdiv(L, SPAN)
    for i in range(0, chunks):
        chunk = chunks - 1 - i
        first = chunk * SPAN
        start = states + (i_b * saved + chunk - 1) * N * E
        m_start = m_state & (chunk > 0)
        if HAS_INITIAL:
            m_start = m_state
            if chunk == 0:
                start = initial + i_b * N * E
        b_start = tl.load(start + (o_s * E + o_c), mask=m_start, other=0.0)
        b_us = load_chunk(u + i_b * u_b, first, L, o_near, m_e, u_t, CH, PARTS, DTYPE)
        b_deltas = load_chunk(
            delta + i_b * delta_b, first, L, o_near, m_e, delta_t, CH, PARTS, DTYPE
        )
        b_dys = load_chunk(
            grad_y + i_b * grad_y_b, first, L, o_near, m_e, grad_y_t, CH, PARTS, DTYPE
        )
        b_Bs = load_chunk(B + i_b * B_b, first, L, o_near_n, m_n, B_t, CH, PARTS, DTYPE)
        b_Cs = load_chunk(C + i_b * C_b, first, L, o_near_n, m_n, C_t, CH, PARTS, DTYPE)
        o_all = first + (tl.arange(0, PARTS) * CH)[:, None] + o_i[None, :]
        m_all = (o_all < L)[:, :, None] & m_e[None, None, :]
        b_steps, b_slopes = step_sizes(b_deltas, m_all, SOFTPLUS)
        b_grad_D += tl.sum(tl.sum(b_dys * b_us, axis=0), axis=0)
        b_h = settle(b_start, CH)
        b_starts = put(tl.zeros((PARTS, NQ, BE, NR), dtype=DTYPE), 0, b_h)
        for before in range(0, PARTS - 1):
            b_step, b_B = part(b_steps, before), part(b_Bs, before)
            b_moved = b_step * part(b_us, before)
            b_a = tl.exp(b_step[:, None, :, None] * b_A[None, :, :, :])
            b_h, _ = advance(b_h, b_a, b_moved[:, None, :, None] * spread(b_B, NR))
            b_starts = put(b_starts, before + 1, b_h)
        for k in range(0, PARTS):
            j = PARTS - 1 - k
            o_t = first + j * CH + o_i
            m_t = o_t < L
            b_u, b_step = part(b_us, j), part(b_steps, j)
            b_dy = part(b_dys, j)
            b_B, b_C = spread(part(b_Bs, j), NR), spread(part(b_Cs, j), NR)
            b_size = b_step[:, None, :, None]
            b_moved = (b_step * b_u)[:, None, :, None]
            b_weight = b_dy[:, None, :, None]
            b_a = tl.exp(b_size * b_A[None, :, :, :])
            b_x = b_moved * b_B
            _, b_faded = advance(pick(b_starts, j), b_a, b_x)
            m_rows = m_t[:, None] & m_n[None, :]
            o_rows = (i_e * batch + i_b) * L * N + (o_t[:, None] * N + o_n[None, :])
            b_grad_C = over_channels((b_faded + b_x) * b_weight, WARPS, LANES)
            tl.store(grad_C + o_rows, b_grad_C, mask=m_rows)
            b_g, b_grad = retreat(b_g, b_a, b_weight * b_C)
            tl.store(grad_B + o_rows, over_channels(b_grad * b_moved, WARPS, LANES), mask=m_rows)
            b_grad_x = over_states(b_grad * b_B)
            b_along = b_grad * b_faded
            b_grad_A += tl.sum(b_along * b_size, axis=0)
            b_grad_step = over_states(b_along * b_A[None, :, :, :]) + b_grad_x * b_u
            m_row = m_t[:, None] & m_e[None, :]
            o_row = (i_b * L + o_t)[:, None] * E + o_e[None, :]
            tl.store(grad_delta + o_row, b_grad_step * part(b_slopes, j), mask=m_row)
            tl.store(grad_u + o_row, b_grad_x * b_step + b_dy * b_D[None, :], mask=m_row)
    tl.store(grad_A + i_b * E * N + (o_c * N + o_s), b_grad_A, mask=m_state)
    tl.store(grad_D + i_b * E + o_e, b_grad_D, mask=m_e)
    if HAS_INITIAL:
        tl.store(grad_initial + i_b * N * E + (o_s * E + o_c), b_g, mask=m_state)
