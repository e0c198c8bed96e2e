"""Attention of long sequences: keys pass by in blocks, with the softmax kept up to date.

Entropy rides along: with p = 2^(t - peak), the sum of p (t - peak) is carried beside the sum of p
and shifted whenever the peak moves, so no weights are materialised for it. Weights are written by
a second pass from lse.

Layouts are those of short.py.
"""

import triton
import triton.language as tl

from .tiles import (
    LN2,
    LOWEST,
    NO_WEIGHT,
    dense_rows,
    divisor,
    load_rows,
    merged_rows,
    not_negative,
    row_pointers,
    scores_base2,
    store_rows,
    visible_keys,
    weights_from_lse,
)


@triton.jit
def attention_stream_forward_kernel(
    q,
    k,
    v,
    out,
    lse,
    entropy,
    scale,
    H,
    T,
    S,
    q_stride_b,
    q_stride_h,
    q_stride_t,
    k_stride_b,
    k_stride_h,
    k_stride_s,
    v_stride_b,
    v_stride_h,
    v_stride_s,
    CAUSAL: tl.constexpr,
    STORE_ENTROPY: tl.constexpr,
    D: tl.constexpr,
    BT: tl.constexpr,
    BS: tl.constexpr,
    BD: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program per block of queries of a head."""
    blocks = tl.cdiv(T, BT)
    i_head = (tl.program_id(0) // blocks).to(tl.int64)
    i_t = tl.program_id(0) % blocks
    o_m = tl.arange(0, BT)
    first_t = i_t * BT
    o_t = first_t + o_m
    m_q = o_t < T
    b_q = load_rows(
        row_pointers(q, i_head, first_t, o_m, H, q_stride_b, q_stride_h, q_stride_t),
        m_q,
        D,
        BD,
    )
    ACC: tl.constexpr = tl.float64 if q.dtype.element_ty == tl.float64 else tl.float32
    b_peak = tl.full((BT,), LOWEST, dtype=ACC)
    b_sum = tl.zeros((BT,), dtype=ACC)
    b_moment = tl.zeros((BT,), dtype=ACC)  # sum of p (t - peak)
    b_out = tl.zeros((BT, BD), dtype=ACC)

    end = S
    if CAUSAL:
        end = tl.minimum(S, S - T + (i_t + 1) * BT)
    o_n = tl.arange(0, BS)
    for first_s in range(0, end, BS):
        o_s = first_s + o_n
        m_k = o_s < S
        b_k = load_rows(
            row_pointers(k, i_head, first_s, o_n, H, k_stride_b, k_stride_h, k_stride_s),
            m_k,
            D,
            BD,
        )
        b_v = load_rows(
            row_pointers(v, i_head, first_s, o_n, H, v_stride_b, v_stride_h, v_stride_s),
            m_k,
            D,
            BD,
        )
        m_visible = visible_keys(i_head, o_t[:, None], i_head, o_s[None, :], T, S, CAUSAL, 1)
        b_t = scores_base2(b_q, b_k, scale, m_visible, PRECISION)
        b_top = tl.maximum(b_peak, tl.max(b_t, axis=1))
        b_t = b_t - b_top[:, None]
        b_p = tl.exp2(b_t)
        b_shift = b_peak - b_top
        b_shrink = tl.exp2(b_shift)
        if STORE_ENTROPY:
            b_moment += b_sum * tl.maximum(b_shift, NO_WEIGHT)
            b_new = tl.sum(b_p * tl.maximum(b_t, NO_WEIGHT), axis=1)
            b_moment = b_moment * b_shrink + b_new
        b_sum = b_sum * b_shrink + tl.sum(b_p, axis=1)
        b_out = b_out * b_shrink[:, None]
        b_out += tl.dot(b_p.to(b_v.dtype), b_v, input_precision=PRECISION)
        b_peak = b_top

    tl.store(dense_rows(lse, i_head, first_t, o_m, T, 1), (b_peak + tl.log2(b_sum)) * LN2, mask=m_q)
    b_sum = divisor(b_sum)
    if STORE_ENTROPY:
        b_entropy = not_negative(tl.log2(b_sum) - b_moment / b_sum)
        tl.store(dense_rows(entropy, i_head, first_t, o_m, T, 1), b_entropy, mask=m_q)
    store_rows(merged_rows(out, i_head, first_t, o_m, T, H, D), b_out / b_sum[:, None], m_q, D, BD)


@triton.jit
def attention_stream_weights_kernel(
    q,
    k,
    lse,
    weights,
    scale,
    H,
    T,
    S,
    q_stride_b,
    q_stride_h,
    q_stride_t,
    k_stride_b,
    k_stride_h,
    k_stride_s,
    CAUSAL: tl.constexpr,
    D: tl.constexpr,
    BT: tl.constexpr,
    BS: tl.constexpr,
    BD: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program per tile of weights."""
    row_blocks = tl.cdiv(T, BT)
    column_blocks = tl.cdiv(S, BS)
    i_s = tl.program_id(0) % column_blocks
    i_t = tl.program_id(0) // column_blocks % row_blocks
    i_head = (tl.program_id(0) // column_blocks // row_blocks).to(tl.int64)
    o_m = tl.arange(0, BT)
    first_t = i_t * BT
    o_t = first_t + o_m
    o_n = tl.arange(0, BS)
    first_s = i_s * BS
    o_s = first_s + o_n
    m_q = o_t < T
    p_w = dense_rows(weights, i_head, first_t, o_m, T, S)[:, None] + o_s[None, :]
    m_w = m_q[:, None] & (o_s < S)[None, :]
    b_w = tl.zeros((BT, BS), dtype=weights.dtype.element_ty)
    # A tile whose first key comes after its last query's stays zero without any product.
    if (not CAUSAL) or i_s * BS <= S - T + i_t * BT + BT - 1:
        p_q = row_pointers(q, i_head, first_t, o_m, H, q_stride_b, q_stride_h, q_stride_t)
        p_k = row_pointers(k, i_head, first_s, o_n, H, k_stride_b, k_stride_h, k_stride_s)
        b_q = load_rows(p_q, m_q, D, BD)
        b_k = load_rows(p_k, o_s < S, D, BD)
        p_lse = dense_rows(lse, i_head, first_t, o_m, T, 1)
        b_lse = tl.load(p_lse, mask=m_q, other=0.0)
        m_visible = visible_keys(i_head, o_t[:, None], i_head, o_s[None, :], T, S, CAUSAL, 1)
        b_w = weights_from_lse(b_q, b_k, b_lse, scale, m_visible, PRECISION)[0].to(b_w.dtype)
    tl.store(p_w, b_w, mask=m_w)
