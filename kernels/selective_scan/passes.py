"""The selective scan: device code of both passes.

A program holds BE channels of one sequence and goes through time in tiles of CH steps. Within a
tile the recurrence h_t = a_t h_{t-1} + x_t is an associative scan over pairs (a, x), because
(a1, x1) then (a2, x2) is the pair (a1 a2, a2 x1 + x2); tiles hand their last state on.

All is computed in the dtype of the states. A model has `sequences` of the batch; A_stride and
D_stride lead from one to the next.
"""

import triton
import triton.language as tl


@triton.jit
def then(a1, x1, a2, x2):
    return a1 * a2, x1 * a2 + x2


@triton.jit
def step_sizes(b_delta, mask, SOFTPLUS: tl.constexpr):
    """Steps and their slope in delta; both are 0 outside the mask, where nothing then happens.

    log(1 + w) for w = exp(-|delta|) is log(z) w / (z - 1) with z = 1 + w as rounded, which keeps
    the relative precision of small steps."""
    if SOFTPLUS:
        b_w = tl.exp(-tl.abs(b_delta))
        b_z = 1.0 + b_w
        b_tiny = b_z == 1.0
        b_log = tl.where(b_tiny, b_w, tl.log(b_z) * (b_w / tl.where(b_tiny, 1.0, b_z - 1.0)))
        b_step = tl.maximum(b_delta, 0.0) + b_log
        b_slope = tl.where(b_delta > 0, 1.0, b_w) / b_z
    else:
        b_step = b_delta
        b_slope = tl.full(b_delta.shape, 1.0, dtype=b_delta.dtype)
    return tl.where(mask, b_step, 0.0), tl.where(mask, b_slope, 0.0)


@triton.jit
def load_steps(u, delta, i_b, o_t, m_t, o_e, L, E, SOFTPLUS: tl.constexpr, DTYPE: tl.constexpr):
    """u, steps, slopes [CH, BE] of the times o_t."""
    mask = m_t[:, None] & (o_e < E)[None, :]
    o_row = (i_b * L + o_t)[:, None] * E + o_e[None, :]
    b_u = tl.load(u + o_row, mask=mask, other=0.0).to(DTYPE)
    b_delta = tl.load(delta + o_row, mask=mask, other=0.0).to(DTYPE)
    b_step, b_slope = step_sizes(b_delta, mask, SOFTPLUS)
    return b_u, b_step, b_slope


@triton.jit
def load_states(rows, i_b, o_t, m_t, o_n, L, N, DTYPE: tl.constexpr):
    """B or C [CH, NP] at the times o_t."""
    o_row = (i_b * L + o_t)[:, None] * N + o_n[None, :]
    return tl.load(rows + o_row, mask=m_t[:, None] & (o_n < N)[None, :], other=0.0).to(DTYPE)


@triton.jit
def pick(b_tile, o_t, step):
    """One step [BE, NP] of a tile [CH, BE, NP]."""
    return tl.sum(tl.where((o_t == step)[:, None, None], b_tile, 0.0), axis=0)


@triton.jit
def selective_scan_forward_kernel(
    u,
    delta,
    A,
    B,
    C,
    D,
    y,
    states,
    L,
    E,
    N,
    every,
    saved,
    sequences,
    A_stride,
    D_stride,
    HAS_SKIP: tl.constexpr,
    SAVE: tl.constexpr,
    SOFTPLUS: tl.constexpr,
    NP: tl.constexpr,
    CH: tl.constexpr,
    BE: tl.constexpr,
):
    """states [B, saved, N, E] after the steps every - 1, 2 every - 1, .."""
    DTYPE: tl.constexpr = states.dtype.element_ty
    i_block = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(E, BE)
    i_b = i_block // blocks
    o_e = i_block % blocks * BE + tl.arange(0, BE)
    o_n = tl.arange(0, NP)
    o_i = tl.arange(0, CH)
    m_e = o_e < E
    m_state = m_e[:, None] & (o_n < N)[None, :]
    i_m = i_b // sequences
    o_A = i_m * A_stride + o_e[:, None] * N + o_n[None, :]
    b_A = tl.load(A + o_A, mask=m_state, other=0.0).to(DTYPE)
    if HAS_SKIP:
        b_D = tl.load(D + i_m * D_stride + o_e, mask=m_e, other=0.0).to(DTYPE)
    b_h = tl.zeros((BE, NP), dtype=DTYPE)
    for first in range(0, L, CH):
        o_t = first + o_i
        m_t = o_t < L
        b_u, b_step, _ = load_steps(u, delta, i_b, o_t, m_t, o_e, L, E, SOFTPLUS, DTYPE)
        b_B = load_states(B, i_b, o_t, m_t, o_n, L, N, DTYPE)
        b_C = load_states(C, i_b, o_t, m_t, o_n, L, N, DTYPE)
        b_a = tl.exp(b_step[:, :, None] * b_A[None, :, :])
        b_x = (b_step * b_u)[:, :, None] * b_B[:, None, :]
        b_a, b_x = tl.associative_scan((b_a, b_x), 0, then)
        b_states = b_a * b_h[None, :, :] + b_x
        b_y = tl.sum(b_states * b_C[:, None, :], axis=2)
        if HAS_SKIP:
            b_y += b_D[None, :] * b_u
        o_row = (i_b * L + o_t)[:, None] * E + o_e[None, :]
        tl.store(y + o_row, b_y, mask=m_t[:, None] & m_e[None, :])
        if SAVE:
            o_saved = (o_t + 1) // every - 1
            m_saved = m_t & ((o_t + 1) % every == 0)
            o_state = (i_b * saved + o_saved)[:, None, None] * N + o_n[None, None, :]
            tl.store(
                states + o_state * E + o_e[None, :, None],
                b_states,
                mask=m_saved[:, None, None] & m_state[None, :, :],
            )
        b_h = pick(b_states, o_i, CH - 1)


@triton.jit
def selective_scan_backward_kernel(
    grad_y,
    u,
    delta,
    A,
    B,
    C,
    D,
    states,
    grad_u,
    grad_delta,
    grad_A,
    grad_B,
    grad_C,
    grad_D,
    L,
    E,
    N,
    saved,
    batch,
    sequences,
    A_stride,
    D_stride,
    HAS_SKIP: tl.constexpr,
    SOFTPLUS: tl.constexpr,
    NP: tl.constexpr,
    CH: tl.constexpr,
    BE: tl.constexpr,
):
    """grad_A [B, E, N] and grad_D [B, E] are of each sequence, grad_B and grad_C [blocks, B, L, N]
    of each block of channels; states were saved every CH steps.

    With w_t = a_t g_t, both scans are over tiles of shifted pairs: (a_{t-1}, x_{t-1}) gives the
    state before each step, (a_{t+1}, C_t grad_y_t) backwards the gradient g of the state after."""
    DTYPE: tl.constexpr = states.dtype.element_ty
    i_block = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(E, BE)
    i_b = i_block // blocks
    i_e = i_block % blocks
    o_e = i_e * BE + tl.arange(0, BE)
    o_n = tl.arange(0, NP)
    o_i = tl.arange(0, CH)
    m_e = o_e < E
    m_n = o_n < N
    m_state = m_e[:, None] & m_n[None, :]
    i_m = i_b // sequences
    o_A = i_m * A_stride + o_e[:, None] * N + o_n[None, :]
    b_A = tl.load(A + o_A, mask=m_state, other=0.0).to(DTYPE)
    b_D = tl.zeros((BE,), dtype=DTYPE)
    if HAS_SKIP:
        b_D = tl.load(D + i_m * D_stride + o_e, mask=m_e, other=0.0).to(DTYPE)
    b_g = tl.zeros((BE, NP), dtype=DTYPE)
    b_grad_A = tl.zeros((BE, NP), dtype=DTYPE)
    b_grad_D = tl.zeros((BE,), dtype=DTYPE)
    chunks = tl.cdiv(L, CH)
    for i in range(0, chunks):
        chunk = chunks - 1 - i
        o_t = chunk * CH + o_i
        m_t = o_t < L

        b_u, b_step, _ = load_steps(
            u, delta, i_b, o_t - 1, m_t & (o_i > 0), o_e, L, E, SOFTPLUS, DTYPE
        )
        b_B = load_states(B, i_b, o_t - 1, m_t & (o_i > 0), o_n, L, N, DTYPE)
        b_a = tl.exp(b_step[:, :, None] * b_A[None, :, :])
        b_x = (b_step * b_u)[:, :, None] * b_B[:, None, :]
        b_a, b_x = tl.associative_scan((b_a, b_x), 0, then)
        o_state = (i_b * saved + chunk - 1) * N + o_n
        b_h = tl.load(
            states + o_state[None, :] * E + o_e[:, None], mask=m_state & (chunk > 0), other=0.0
        )
        b_before = b_a * b_h[None, :, :] + b_x

        b_u, b_step, b_slope = load_steps(u, delta, i_b, o_t, m_t, o_e, L, E, SOFTPLUS, DTYPE)
        m_row = m_t[:, None] & m_e[None, :]
        o_row = (i_b * L + o_t)[:, None] * E + o_e[None, :]
        b_dy = tl.load(grad_y + o_row, mask=m_row, other=0.0).to(DTYPE)
        b_B = load_states(B, i_b, o_t, m_t, o_n, L, N, DTYPE)
        b_a = tl.exp(b_step[:, :, None] * b_A[None, :, :])
        b_before *= b_a
        b_x = b_step * b_u
        b_after = b_before + b_x[:, :, None] * b_B[:, None, :]
        m_rows = m_t[:, None] & m_n[None, :]
        o_rows = ((i_e * batch + i_b) * L + o_t)[:, None] * N + o_n[None, :]
        tl.store(grad_C + o_rows, tl.sum(b_after * b_dy[:, :, None], axis=1), mask=m_rows)

        _, b_next, _ = load_steps(u, delta, i_b, o_t + 1, o_t + 1 < L, o_e, L, E, SOFTPLUS, DTYPE)
        b_C = load_states(C, i_b, o_t, m_t, o_n, L, N, DTYPE)
        b_a = tl.exp(b_next[:, :, None] * b_A[None, :, :])
        b_gx = b_dy[:, :, None] * b_C[:, None, :]
        b_a, b_gx = tl.associative_scan((b_a, b_gx), 0, then, reverse=True)
        b_grad = b_a * b_g[None, :, :] + b_gx
        b_g = pick(b_grad, o_i, 0)

        tl.store(grad_B + o_rows, tl.sum(b_grad * b_x[:, :, None], axis=1), mask=m_rows)
        b_grad_x = tl.sum(b_grad * b_B[:, None, :], axis=2)
        b_along = b_grad * b_before
        b_grad_A += tl.sum(b_along * b_step[:, :, None], axis=0)
        b_grad_step = tl.sum(b_along * b_A[None, :, :], axis=2) + b_grad_x * b_u
        tl.store(grad_delta + o_row, b_grad_step * b_slope, mask=m_row)
        tl.store(grad_u + o_row, b_grad_x * b_step + b_dy * b_D[None, :], mask=m_row)
        b_grad_D += tl.sum(b_dy * b_u, axis=0)
    o_grad = (i_b * E + o_e)[:, None] * N + o_n[None, :]
    tl.store(grad_A + o_grad, b_grad_A, mask=m_state)
    tl.store(grad_D + i_b * E + o_e, b_grad_D, mask=m_e)
