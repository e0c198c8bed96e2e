"""Gradients of attention in one launch where a head's keys are too many for one tile.

A program has a whole head. It goes through blocks of keys, whose gradients stay in registers, and
for each through the blocks of queries that see it. A score is computed once for all three
gradients, and pairs of blocks that do not see each other are skipped: two products fewer than
streaming has, and half the tile of short.py is not wasted on hidden keys. That of queries grows in
global memory, which the program alone reads and writes, in a fixed order: no atomics.

Layouts are those of short.py.
"""

import triton
import triton.language as tl

from .stream_backward import offset_of_rows
from .tiles import (
    dense_rows,
    load_rows,
    merged_rows,
    row_pointers,
    store_rows,
    visible_keys,
    weights_by_key,
)


@triton.jit
def attention_blocks_backward_kernel(
    grad_out,
    grad_weights,
    grad_entropy,
    grad_lse,
    q,
    k,
    v,
    out,
    lse,
    entropy,
    offset,
    sums,
    grad_q,
    grad_k,
    grad_v,
    scale,
    H,
    T,
    S,
    go_stride_b,
    go_stride_h,
    go_stride_t,
    gw_stride_b,
    gw_stride_h,
    gw_stride_t,
    q_stride_b,
    q_stride_h,
    q_stride_t,
    k_stride_b,
    k_stride_h,
    k_stride_s,
    v_stride_b,
    v_stride_h,
    v_stride_s,
    out_stride_b,
    out_stride_h,
    out_stride_t,
    CAUSAL: tl.constexpr,
    HAS_GRAD_OUT: tl.constexpr,
    HAS_GRAD_WEIGHTS: tl.constexpr,
    HAS_GRAD_ENTROPY: tl.constexpr,
    HAS_GRAD_LSE: tl.constexpr,
    D: tl.constexpr,
    BT: tl.constexpr,
    BS: tl.constexpr,
    BD: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """sums: laid out as grad_q, in the precision of sums; grad_q itself if it has that. offset:
    from attention_stream_offset_kernel where there is grad_weights, and otherwise absent."""
    i_head = tl.program_id(0).to(tl.int64)
    o_m = tl.arange(0, BT)
    o_n = tl.arange(0, BS)
    ACC: tl.constexpr = tl.float64 if q.dtype.element_ty == tl.float64 else tl.float32

    for first_s in range(0, S, BS):
        o_s = first_s + o_n
        m_k = o_s < S
        p_k = row_pointers(k, i_head, first_s, o_n, H, k_stride_b, k_stride_h, k_stride_s)
        p_v = row_pointers(v, i_head, first_s, o_n, H, v_stride_b, v_stride_h, v_stride_s)
        b_k = load_rows(p_k, m_k, D, BD)
        b_v = load_rows(p_v, m_k, D, BD)
        b_gk = tl.zeros((BS, BD), dtype=ACC)
        b_gv = tl.zeros((BS, BD), dtype=ACC)

        start = 0
        if CAUSAL:  # the first query that sees the first of these keys, rounded down to a block
            start = tl.maximum(first_s - (S - T), 0) // BT * BT
        for first_t in range(start, T, BT):
            o_t = first_t + o_m
            m_q = o_t < T
            p_q = row_pointers(q, i_head, first_t, o_m, H, q_stride_b, q_stride_h, q_stride_t)
            b_q = load_rows(p_q, m_q, D, BD)
            p_lse = dense_rows(lse, i_head, first_t, o_m, T, 1)
            b_lse = tl.load(p_lse, mask=m_q, other=0.0)
            m_visible = m_q[None, :] & visible_keys(o_t[None, :], o_s[:, None], T, S, CAUSAL)
            b_w, b_log2w = weights_by_key(b_q, b_k, b_lse, scale, m_visible, PRECISION)
            if HAS_GRAD_WEIGHTS:
                p_offset = dense_rows(offset, i_head, first_t, o_m, T, 1)
                b_offset = tl.load(p_offset, mask=m_q, other=0.0)
            else:
                b_offset = offset_of_rows(
                    grad_out,
                    grad_entropy,
                    grad_lse,
                    out,
                    entropy,
                    i_head,
                    first_t,
                    o_m,
                    o_m,
                    m_q,
                    H,
                    T,
                    go_stride_b,
                    go_stride_h,
                    go_stride_t,
                    out_stride_b,
                    out_stride_h,
                    out_stride_t,
                    HAS_GRAD_OUT,
                    HAS_GRAD_ENTROPY,
                    HAS_GRAD_LSE,
                    False,
                    D,
                    BD,
                    ACC,
                )
            b_g = tl.zeros_like(b_w) + b_offset[None, :]
            if HAS_GRAD_ENTROPY:
                p_gh = dense_rows(grad_entropy, i_head, first_t, o_m, T, 1)
                b_g -= tl.load(p_gh, mask=m_q, other=0.0)[None, :] * b_log2w
            if HAS_GRAD_WEIGHTS:
                p_gw = row_pointers(
                    grad_weights, i_head, first_t, o_m, H, gw_stride_b, gw_stride_h, gw_stride_t
                )
                m_gw = m_q[None, :] & m_k[:, None]
                b_gw = tl.load(p_gw[None, :] + o_s[:, None], mask=m_gw, other=0.0)
                b_g += tl.where(m_visible, b_gw, 0.0).to(ACC)
            if HAS_GRAD_OUT:
                p_go = row_pointers(
                    grad_out, i_head, first_t, o_m, H, go_stride_b, go_stride_h, go_stride_t
                )
                b_go = load_rows(p_go, m_q, D, BD)
                b_gv += tl.dot(b_w.to(b_go.dtype), b_go, input_precision=PRECISION)
                b_g += tl.dot(b_v, tl.trans(b_go), input_precision=PRECISION)
            b_gs = (b_w * b_g).to(b_q.dtype)
            b_gk += tl.dot(b_gs, b_q, input_precision=PRECISION)
            b_gq = tl.dot(tl.trans(b_gs), b_k, input_precision=PRECISION) * scale
            p_sums = merged_rows(sums, i_head, first_t, o_m, T, H, D)
            if first_s > 0:
                b_gq += load_rows(p_sums, m_q, D, BD)
            end = S
            if CAUSAL:
                end = tl.minimum(S, S - T + first_t + BT)
            if first_s + BS < end:
                store_rows(p_sums, b_gq, m_q, D, BD)
            else:
                p_gq = merged_rows(grad_q, i_head, first_t, o_m, T, H, D)
                store_rows(p_gq, b_gq, m_q, D, BD)

        store_rows(merged_rows(grad_k, i_head, first_s, o_n, S, H, D), b_gk * scale, m_k, D, BD)
        store_rows(merged_rows(grad_v, i_head, first_s, o_n, S, H, D), b_gv, m_k, D, BD)
        tl.debug_barrier()  # the sums of this block are read in the next
