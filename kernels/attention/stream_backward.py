"""Gradients of attention over long sequences: one kernel for keys and values, one for queries.

No atomics, so results do not depend on the order of programs. Layouts are those of
short.py.
"""

import triton
import triton.language as tl

from .captures import (
    add_captured_gradients,
    add_max_logit_gradient,
    captured_rows,
    chosen_heads,
    chosen_rows,
    gradient_rows,
)
from .tiles import (
    dense_rows,
    key_ranges,
    load_rows,
    merged_rows,
    row_pointers,
    store_rows,
    visible_keys,
    weights_by_key,
    weights_from_lse,
)


@triton.jit
def offset_of_rows(
    grad_out,
    grad_entropy,
    grad_lse,
    out,
    entropy,
    i_head,
    first_t,
    o_m,
    o_row,
    m_row,
    H,
    T,
    go_stride_b,
    go_stride_h,
    go_stride_t,
    out_stride_b,
    out_stride_h,
    out_stride_t,
    HAS_GRAD_OUT: tl.constexpr,
    HAS_GRAD_ENTROPY: tl.constexpr,
    HAS_GRAD_LSE: tl.constexpr,
    CHOSEN: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    ACC: tl.constexpr,
):
    """grad_lse - sum w g of queries first_t + o_m, as far as no weights are needed for it: the part
    of grad_out is out . grad_out and the part of the entropy -entropy grad_entropy, whose rows are
    those that were captured."""
    m_q = first_t + o_m < T
    b_offset = tl.zeros((o_m.shape[0],), dtype=ACC)
    if HAS_GRAD_OUT:
        p_go = row_pointers(
            grad_out, i_head, first_t, o_m, H, go_stride_b, go_stride_h, go_stride_t
        )
        b_go = load_rows(p_go, m_q, D, BD)
        p_out = row_pointers(out, i_head, first_t, o_m, H, out_stride_b, out_stride_h, out_stride_t)
        b_out = load_rows(p_out, m_q, D, BD)
        b_offset -= tl.sum(b_go.to(ACC) * b_out.to(ACC), axis=1)
    if HAS_GRAD_ENTROPY:
        p_entropy = captured_rows(entropy, o_row, i_head, first_t, o_m, T, 1, CHOSEN)
        p_gh = captured_rows(grad_entropy, o_row, i_head, first_t, o_m, T, 1, CHOSEN)
        b_entropy = tl.load(p_entropy, mask=m_row, other=0.0)
        b_offset -= b_entropy * tl.load(p_gh, mask=m_row, other=0.0)
    if HAS_GRAD_LSE:
        b_offset += tl.load(dense_rows(grad_lse, i_head, first_t, o_m, T, 1), mask=m_q, other=0.0)
    return b_offset


@triton.jit
def attention_stream_offset_kernel(
    grad_out,
    grad_weights,
    grad_entropy,
    grad_lse,
    grad_received,
    grad_top_k,
    top_weights,
    head_places,
    query_places,
    q,
    k,
    out,
    lse,
    entropy,
    offset,
    scale,
    H,
    T,
    S,
    HC,
    TC,
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
    out_stride_b,
    out_stride_h,
    out_stride_t,
    CAUSAL: tl.constexpr,
    HAS_GRAD_OUT: tl.constexpr,
    HAS_GRAD_WEIGHTS: tl.constexpr,
    HAS_GRAD_ENTROPY: tl.constexpr,
    HAS_GRAD_LSE: tl.constexpr,
    HAS_GRAD_RECEIVED: tl.constexpr,
    TOP_K: tl.constexpr,
    CHOSEN: tl.constexpr,
    D: tl.constexpr,
    BT: tl.constexpr,
    BS: tl.constexpr,
    BD: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """offset = grad_lse - sum w g, the part of a score's gradient that a whole row shares; only
    grad_weights and grad_received need a pass over the keys."""
    blocks = tl.cdiv(T, BT)
    i_head = (tl.program_id(0) // blocks).to(tl.int64)
    i_t = tl.program_id(0) % blocks
    o_m = tl.arange(0, BT)
    first_t = i_t * BT
    o_t = first_t + o_m
    m_q = o_t < T
    ACC: tl.constexpr = tl.float64 if q.dtype.element_ty == tl.float64 else tl.float32
    o_row, m_row = chosen_rows(
        head_places, query_places, i_head, first_t, o_m, m_q, H, T, HC, TC, CHOSEN
    )
    b_offset = offset_of_rows(
        grad_out,
        grad_entropy,
        grad_lse,
        out,
        entropy,
        i_head,
        first_t,
        o_m,
        o_row,
        m_row,
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
        CHOSEN,
        D,
        BD,
        ACC,
    )
    for i in tl.static_range(TOP_K):
        b_top = tl.load(top_weights + o_row * TOP_K + i, mask=m_row, other=0.0)
        b_offset -= b_top * tl.load(grad_top_k + o_row * TOP_K + i, mask=m_row, other=0.0)
    if HAS_GRAD_WEIGHTS or HAS_GRAD_RECEIVED:
        p_q = row_pointers(q, i_head, first_t, o_m, H, q_stride_b, q_stride_h, q_stride_t)
        if HAS_GRAD_WEIGHTS:
            p_gw = gradient_rows(
                grad_weights,
                o_row,
                i_head,
                first_t,
                o_m,
                H,
                S,
                gw_stride_b,
                gw_stride_h,
                gw_stride_t,
                CHOSEN,
            )
        if HAS_GRAD_RECEIVED:
            o_head, m_head = chosen_heads(head_places, i_head, H, HC, 0, CHOSEN, 1)
        b_q = load_rows(p_q, m_q, D, BD)
        p_lse = dense_rows(lse, i_head, first_t, o_m, T, 1)
        b_lse = tl.load(p_lse, mask=m_q, other=0.0)
        end = S
        if CAUSAL:
            end = tl.minimum(S, S - T + (i_t + 1) * BT)
        o_n = tl.arange(0, BS)
        for first_s in range(0, end, BS):
            o_s = first_s + o_n
            b_k = load_rows(
                row_pointers(k, i_head, first_s, o_n, H, k_stride_b, k_stride_h, k_stride_s),
                o_s < S,
                D,
                BD,
            )
            m_visible = m_row[:, None] & visible_keys(o_t[:, None], o_s[None, :], T, S, CAUSAL)
            b_w = weights_from_lse(b_q, b_k, b_lse, scale, m_visible, PRECISION)[0]
            if HAS_GRAD_WEIGHTS:
                # Read within bounds only: the causal staircase in a load's mask would make it
                # scalar.
                m_gw = m_row[:, None] & (o_s < S)[None, :]
                b_gw = tl.load(p_gw[:, None] + o_s[None, :], mask=m_gw, other=0.0)
                b_offset -= tl.sum(b_w * tl.where(m_visible, b_gw, 0.0).to(ACC), axis=1)
            if HAS_GRAD_RECEIVED:
                p_gr = grad_received + o_head * S + o_s
                b_gr = tl.load(p_gr, mask=(o_s < S) & m_head, other=0.0)
                b_offset -= tl.sum(b_w * b_gr[None, :], axis=1)
    tl.store(dense_rows(offset, i_head, first_t, o_m, T, 1), b_offset, mask=m_q)


@triton.jit
def attention_stream_keys_kernel(
    grad_out,
    grad_weights,
    grad_entropy,
    grad_received,
    grad_max_logit,
    argmax,
    grad_top_k,
    top_positions,
    head_places,
    query_places,
    q,
    k,
    v,
    lse,
    offset,
    grad_k,
    grad_v,
    scale,
    H,
    T,
    S,
    HC,
    TC,
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
    CAUSAL: tl.constexpr,
    HAS_GRAD_OUT: tl.constexpr,
    HAS_GRAD_WEIGHTS: tl.constexpr,
    HAS_GRAD_ENTROPY: tl.constexpr,
    HAS_GRAD_RECEIVED: tl.constexpr,
    HAS_GRAD_MAX_LOGIT: tl.constexpr,
    TOP_K: tl.constexpr,
    CHOSEN: tl.constexpr,
    D: tl.constexpr,
    BT: tl.constexpr,
    BS: tl.constexpr,
    BD: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Gradients of a block of keys and values; queries pass by."""
    blocks = tl.cdiv(S, BS)
    i_head = (tl.program_id(0) // blocks).to(tl.int64)
    i_s = tl.program_id(0) % blocks
    o_n = tl.arange(0, BS)
    first_s = i_s * BS
    o_s = first_s + o_n
    m_k = o_s < S
    p_k = row_pointers(k, i_head, first_s, o_n, H, k_stride_b, k_stride_h, k_stride_s)
    p_v = row_pointers(v, i_head, first_s, o_n, H, v_stride_b, v_stride_h, v_stride_s)
    b_k = load_rows(p_k, m_k, D, BD)
    b_v = load_rows(p_v, m_k, D, BD)
    ACC: tl.constexpr = tl.float64 if q.dtype.element_ty == tl.float64 else tl.float32
    b_gk = tl.zeros((BS, BD), dtype=ACC)
    b_gv = tl.zeros((BS, BD), dtype=ACC)
    b_gr = 0.0
    if HAS_GRAD_RECEIVED:
        o_head, m_head = chosen_heads(head_places, i_head, H, HC, 0, CHOSEN, 1)
        b_gr = tl.load(grad_received + o_head * S + o_s, mask=m_k & m_head, other=0.0)[:, None]

    start = 0
    if CAUSAL:  # the first query that sees the first of these keys, rounded down to a block
        start = tl.maximum(i_s * BS - (S - T), 0) // BT * BT
    o_m = tl.arange(0, BT)
    for first_t in range(start, T, BT):
        o_t = first_t + o_m
        m_q = o_t < T
        b_q = load_rows(
            row_pointers(q, i_head, first_t, o_m, H, q_stride_b, q_stride_h, q_stride_t),
            m_q,
            D,
            BD,
        )
        p_lse = dense_rows(lse, i_head, first_t, o_m, T, 1)
        b_lse = tl.load(p_lse, mask=m_q, other=0.0)
        b_offset = tl.load(dense_rows(offset, i_head, first_t, o_m, T, 1), mask=m_q, other=0.0)
        m_visible = m_q[None, :] & visible_keys(o_t[None, :], o_s[:, None], T, S, CAUSAL)
        b_w, b_log2w = weights_by_key(b_q, b_k, b_lse, scale, m_visible, PRECISION)
        o_row, m_row = chosen_rows(
            head_places, query_places, i_head, first_t, o_m, m_q, H, T, HC, TC, CHOSEN
        )
        b_g = tl.zeros_like(b_w) + b_offset[None, :]
        if HAS_GRAD_OUT:
            p_go = row_pointers(
                grad_out, i_head, first_t, o_m, H, go_stride_b, go_stride_h, go_stride_t
            )
            b_go = load_rows(p_go, m_q, D, BD)
            b_g += tl.dot(b_v, tl.trans(b_go), input_precision=PRECISION)
            b_gv += tl.dot(b_w.to(b_go.dtype), b_go, input_precision=PRECISION)
        if HAS_GRAD_WEIGHTS:
            p_gw = gradient_rows(
                grad_weights,
                o_row,
                i_head,
                first_t,
                o_m,
                H,
                S,
                gw_stride_b,
                gw_stride_h,
                gw_stride_t,
                CHOSEN,
            )
            p_gw = p_gw[None, :] + o_s[:, None]
            b_gw = tl.load(p_gw, mask=m_row[None, :] & m_k[:, None], other=0.0)
            b_g += tl.where(m_visible, b_gw, 0.0).to(ACC)
        if HAS_GRAD_ENTROPY:
            p_gh = captured_rows(grad_entropy, o_row, i_head, first_t, o_m, T, 1, CHOSEN)
            b_g -= tl.load(p_gh, mask=m_row, other=0.0)[None, :] * b_log2w
        b_g = add_captured_gradients(
            b_g,
            b_gr,
            grad_top_k,
            top_positions,
            o_s[:, None],
            o_row,
            m_row,
            m_visible,
            HAS_GRAD_RECEIVED,
            TOP_K,
            True,
        )
        b_gs = add_max_logit_gradient(
            b_w * b_g,
            grad_max_logit,
            argmax,
            o_s[:, None],
            o_row,
            m_row,
            m_visible,
            HAS_GRAD_MAX_LOGIT,
            True,
        )
        b_gk += tl.dot(b_gs.to(b_q.dtype), b_q, input_precision=PRECISION)

    store_rows(merged_rows(grad_k, i_head, first_s, o_n, S, H, D), b_gk * scale, m_k, D, BD)
    store_rows(merged_rows(grad_v, i_head, first_s, o_n, S, H, D), b_gv, m_k, D, BD)


@triton.jit
def attention_stream_queries_kernel(
    grad_out,
    grad_weights,
    grad_entropy,
    grad_received,
    grad_max_logit,
    argmax,
    grad_top_k,
    top_positions,
    head_places,
    query_places,
    q,
    k,
    v,
    lse,
    offset,
    grad_q,
    scale,
    H,
    T,
    S,
    HC,
    TC,
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
    CAUSAL: tl.constexpr,
    HAS_GRAD_OUT: tl.constexpr,
    HAS_GRAD_WEIGHTS: tl.constexpr,
    HAS_GRAD_ENTROPY: tl.constexpr,
    HAS_GRAD_RECEIVED: tl.constexpr,
    HAS_GRAD_MAX_LOGIT: tl.constexpr,
    TOP_K: tl.constexpr,
    CHOSEN: tl.constexpr,
    D: tl.constexpr,
    BT: tl.constexpr,
    BS: tl.constexpr,
    BD: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Gradient of a block of queries; keys pass by."""
    blocks = tl.cdiv(T, BT)
    i_head = (tl.program_id(0) // blocks).to(tl.int64)
    i_t = tl.program_id(0) % blocks
    o_m = tl.arange(0, BT)
    first_t = i_t * BT
    o_t = first_t + o_m
    m_q = o_t < T
    p_q = row_pointers(q, i_head, first_t, o_m, H, q_stride_b, q_stride_h, q_stride_t)
    b_q = load_rows(p_q, m_q, D, BD)
    p_lse = dense_rows(lse, i_head, first_t, o_m, T, 1)
    b_lse = tl.load(p_lse, mask=m_q, other=0.0)
    p_offset = dense_rows(offset, i_head, first_t, o_m, T, 1)
    b_offset = tl.load(p_offset, mask=m_q, other=0.0)
    if HAS_GRAD_OUT:
        p_go = row_pointers(
            grad_out, i_head, first_t, o_m, H, go_stride_b, go_stride_h, go_stride_t
        )
        b_go = load_rows(p_go, m_q, D, BD)
    o_row, m_row = chosen_rows(
        head_places, query_places, i_head, first_t, o_m, m_q, H, T, HC, TC, CHOSEN
    )
    if HAS_GRAD_ENTROPY:
        p_gh = captured_rows(grad_entropy, o_row, i_head, first_t, o_m, T, 1, CHOSEN)
        b_gh = tl.load(p_gh, mask=m_row, other=0.0)
    if HAS_GRAD_RECEIVED:
        o_head, m_head = chosen_heads(head_places, i_head, H, HC, 0, CHOSEN, 1)
    ACC: tl.constexpr = tl.float64 if q.dtype.element_ty == tl.float64 else tl.float32
    b_gq = tl.zeros((BT, BD), dtype=ACC)

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
            m_visible = tl.full((1, BS), True, dtype=tl.int1)
            if part:
                m_visible = visible_keys(o_t[:, None], o_s[None, :], T, S, CAUSAL)
            b_w, b_log2w = weights_from_lse(b_q, b_k, b_lse, scale, m_visible, PRECISION)
            b_g = tl.zeros_like(b_w) + b_offset[:, None]
            if HAS_GRAD_OUT:
                b_g += tl.dot(b_go, tl.trans(b_v), input_precision=PRECISION)
            if HAS_GRAD_WEIGHTS:
                p_gw = gradient_rows(
                    grad_weights,
                    o_row,
                    i_head,
                    first_t,
                    o_m,
                    H,
                    S,
                    gw_stride_b,
                    gw_stride_h,
                    gw_stride_t,
                    CHOSEN,
                )
                p_gw = p_gw[:, None] + o_s[None, :]
                b_gw = tl.load(p_gw, mask=m_row[:, None] & m_k[None, :], other=0.0)
                b_g += tl.where(m_visible, b_gw, 0.0).to(ACC)
            if HAS_GRAD_ENTROPY:
                b_g -= b_gh[:, None] * b_log2w
            b_gr = 0.0
            if HAS_GRAD_RECEIVED:
                b_gr = tl.load(grad_received + o_head * S + o_s, mask=m_k & m_head, other=0.0)[
                    None, :
                ]
            b_g = add_captured_gradients(
                b_g,
                b_gr,
                grad_top_k,
                top_positions,
                o_s[None, :],
                o_row,
                m_row,
                m_visible,
                HAS_GRAD_RECEIVED,
                TOP_K,
                False,
            )
            b_gs = add_max_logit_gradient(
                b_w * b_g,
                grad_max_logit,
                argmax,
                o_s[None, :],
                o_row,
                m_row,
                m_visible,
                HAS_GRAD_MAX_LOGIT,
                False,
            )
            b_gq += tl.dot(b_gs.to(b_k.dtype), b_k, input_precision=PRECISION)
    store_rows(merged_rows(grad_q, i_head, first_t, o_m, T, H, D), b_gq * scale, m_q, D, BD)
