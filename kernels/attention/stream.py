"""Attention of long sequences: keys pass by in blocks, with the softmax kept up to date.

Entropy rides along: with p = 2^(t - peak), the sum of p (t - peak) is carried beside the sum of p
and shifted whenever the peak moves, so no weights are materialised for it. Weights are written by
a second pass from lse, and what keys receive is summed by another one (captures.py). The largest
scores are kept up to date like the peak.

Layouts are those of short.py.
"""

import triton
import triton.language as tl

from .captures import (
    NOWHERE,
    captured_rows,
    chosen_rows,
    later_peak,
    later_top_k,
    store_peak,
    store_top_k,
)
from .tiles import (
    LN2,
    LOWEST,
    NO_WEIGHT,
    dense_rows,
    divisor,
    key_ranges,
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
    max_logit,
    argmax,
    top_weights,
    top_positions,
    head_places,
    query_places,
    scale,
    H,
    T,
    S,
    HC,
    TC,
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
    STORE_PEAK: tl.constexpr,
    TOP_K: tl.constexpr,
    ROOM: tl.constexpr,
    CHOSEN: tl.constexpr,
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
    b_position = tl.full((BT,), NOWHERE, dtype=tl.int32)  # of the peak
    b_top = tl.full((BT, ROOM), float("-inf"), dtype=ACC)
    b_where = tl.full((BT, ROOM), NOWHERE, dtype=tl.int32)

    seen, end = key_ranges(first_t, T, S, CAUSAL, BT, BS)
    o_n = tl.arange(0, BS)
    # First the blocks of which every query sees all, without a mask. Exact float32, which has no
    # tensor cores, lacks the registers for two loops.
    ONE_LOOP: tl.constexpr = PRECISION == "ieee" and q.dtype.element_ty == tl.float32
    seen = 0 if ONE_LOOP else seen
    for part in tl.static_range(1 if ONE_LOOP else 0, 2):
        for first_s in range(seen if part else 0, end if part else seen, BS):
            o_s = first_s + o_n
            m_k = o_s < (S if part else seen)
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
            b_t = scores_base2(b_q, b_k, scale, PRECISION)
            if part:
                m_visible = visible_keys(o_t[:, None], o_s[None, :], T, S, CAUSAL)
                b_t = tl.where(m_visible, b_t, float("-inf"))
            b_largest = tl.max(b_t, axis=1)
            if STORE_PEAK:
                b_position = later_peak(b_position, b_t, b_largest, b_peak, o_s[None, :])
            if TOP_K > 0:
                b_top, b_where = later_top_k(b_top, b_where, b_t, b_largest, o_s[None, :], TOP_K)
            b_later = tl.maximum(b_peak, b_largest)
            b_t = b_t - b_later[:, None]
            b_p = tl.exp2(b_t)
            b_shift = b_peak - b_later
            b_shrink = tl.exp2(b_shift)
            if STORE_ENTROPY:
                b_moment += b_sum * tl.maximum(b_shift, NO_WEIGHT)
                b_new = tl.sum(b_p * tl.maximum(b_t, NO_WEIGHT), axis=1)
                b_moment = b_moment * b_shrink + b_new
            b_sum = b_sum * b_shrink + tl.sum(b_p, axis=1)
            b_out = b_out * b_shrink[:, None]
            b_out += tl.dot(b_p.to(b_v.dtype), b_v, input_precision=PRECISION)
            b_peak = b_later

    o_row, m_row = chosen_rows(
        head_places, query_places, i_head, first_t, o_m, m_q, H, T, HC, TC, CHOSEN
    )
    if STORE_PEAK:
        store_peak(max_logit, argmax, b_peak, b_position, o_row, m_row)
    if TOP_K > 0:
        b_log2sum = b_peak + tl.log2(divisor(b_sum))
        store_top_k(top_weights, top_positions, b_top, b_where, b_log2sum, o_row, m_row, TOP_K)
    tl.store(dense_rows(lse, i_head, first_t, o_m, T, 1), (b_peak + tl.log2(b_sum)) * LN2, mask=m_q)
    b_sum = divisor(b_sum)
    if STORE_ENTROPY:
        b_entropy = not_negative(tl.log2(b_sum) - b_moment / b_sum)
        p_entropy = captured_rows(entropy, o_row, i_head, first_t, o_m, T, 1, CHOSEN)
        tl.store(p_entropy, b_entropy, mask=m_row)
    store_rows(merged_rows(out, i_head, first_t, o_m, T, H, D), b_out / b_sum[:, None], m_q, D, BD)


@triton.jit
def attention_stream_weights_kernel(
    q,
    k,
    lse,
    weights,
    head_places,
    query_places,
    scale,
    H,
    T,
    S,
    HC,
    TC,
    q_stride_b,
    q_stride_h,
    q_stride_t,
    k_stride_b,
    k_stride_h,
    k_stride_s,
    CAUSAL: tl.constexpr,
    CHOSEN: tl.constexpr,
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
    o_row, m_row = chosen_rows(
        head_places, query_places, i_head, first_t, o_m, m_q, H, T, HC, TC, CHOSEN
    )
    p_w = captured_rows(weights, o_row, i_head, first_t, o_m, T, S, CHOSEN)
    p_w = p_w[:, None] + o_s[None, :]
    m_w = m_row[:, None] & (o_s < S)[None, :]
    b_w = tl.zeros((BT, BS), dtype=weights.dtype.element_ty)
    # A tile whose first key comes after its last query's stays zero without any product.
    is_seen = (not CAUSAL) or i_s * BS <= S - T + i_t * BT + BT - 1
    if CHOSEN:
        is_seen = is_seen & (tl.max(m_row.to(tl.int32), axis=0) > 0)
    if is_seen:
        p_q = row_pointers(q, i_head, first_t, o_m, H, q_stride_b, q_stride_h, q_stride_t)
        p_k = row_pointers(k, i_head, first_s, o_n, H, k_stride_b, k_stride_h, k_stride_s)
        b_q = load_rows(p_q, m_q, D, BD)
        b_k = load_rows(p_k, o_s < S, D, BD)
        p_lse = dense_rows(lse, i_head, first_t, o_m, T, 1)
        b_lse = tl.load(p_lse, mask=m_q, other=0.0)
        m_visible = visible_keys(o_t[:, None], o_s[None, :], T, S, CAUSAL)
        b_w = weights_from_lse(b_q, b_k, b_lse, scale, m_visible, PRECISION)[0].to(b_w.dtype)
    tl.store(p_w, b_w, mask=m_w)
