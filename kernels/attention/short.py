"""Attention of short sequences: whole rows of scores stay on the chip, no online softmax.

A program holds all keys of a head (S <= BS) and BT of its queries. When sequences are very short,
PACK heads share one tile, and entries between different heads are hidden like future ones: a
tensor core has no tiles smaller than that anyway.

q, k, v are [B, H, T or S, D] with any strides and contiguous last dimension; heads are counted
through the batch. out and the gradients written here are laid out as [B, T or S, H, D], lse and
entropy as [B, H, T]; weights have contiguous heads of T rows, each of S elements.
"""

import triton
import triton.language as tl

from .captures import (
    add_captured_gradients,
    add_max_logit_gradient,
    captured_rows,
    chosen_heads,
    chosen_rows,
    first_position,
    gradient_rows,
    largest_of_rows,
    store_peak,
    store_received,
    store_top_k,
)
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
    tile_rows,
    visible_keys,
    weights_by_key,
)


@triton.jit
def visible_in_pack(o_slot_q, o_t, o_slot_k, o_s, T, S, CAUSAL: tl.constexpr, PACK: tl.constexpr):
    """visible_keys of PACK heads, each of which sees its own."""
    # The comparison with S is needed where queries are padded alone; with it always, ptxas finds
    # registers for tiles of 256 keys.
    m_visible = visible_keys(o_t, o_s, T, S, CAUSAL) & (o_s < S)
    if PACK > 1:
        m_visible = m_visible & (o_slot_q == o_slot_k)
    return m_visible


@triton.jit
def attention_short_forward_kernel(
    q,
    k,
    v,
    out,
    lse,
    weights,
    entropy,
    received,
    max_logit,
    argmax,
    top_weights,
    top_positions,
    head_places,
    query_places,
    scale,
    num_heads,
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
    STORE_WEIGHTS: tl.constexpr,
    STORE_ENTROPY: tl.constexpr,
    STORE_RECEIVED: tl.constexpr,
    STORE_PEAK: tl.constexpr,
    TOP_K: tl.constexpr,
    ROOM: tl.constexpr,
    CHOSEN: tl.constexpr,
    D: tl.constexpr,
    BT: tl.constexpr,
    BS: tl.constexpr,
    BD: tl.constexpr,
    PACK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    blocks = tl.cdiv(T, BT)
    i_head = (tl.program_id(0) // blocks).to(tl.int64) * PACK
    first = tl.program_id(0) % blocks * BT
    o_slot_q, o_t = tile_rows(BT, PACK)
    o_slot_k, o_s = tile_rows(BS, PACK)
    m_q = (first + o_t < T) & (i_head + o_slot_q < num_heads)
    m_k = (o_s < S) & (i_head + o_slot_k < num_heads)
    p_q = row_pointers(q, i_head, first, o_t, H, q_stride_b, q_stride_h, q_stride_t, o_slot_q, PACK)
    p_k = row_pointers(k, i_head, 0, o_s, H, k_stride_b, k_stride_h, k_stride_s, o_slot_k, PACK)
    p_v = row_pointers(v, i_head, 0, o_s, H, v_stride_b, v_stride_h, v_stride_s, o_slot_k, PACK)
    b_q = load_rows(p_q, m_q, D, BD)
    b_k = load_rows(p_k, m_k, D, BD)
    b_v = load_rows(p_v, m_k, D, BD)
    m_visible = visible_in_pack(
        o_slot_q[:, None], first + o_t[:, None], o_slot_k[None, :], o_s[None, :], T, S, CAUSAL, PACK
    )
    b_t = scores_base2(b_q, b_k, scale, PRECISION)
    b_t = tl.where(m_visible, b_t, float("-inf"))

    o_row, m_row = chosen_rows(
        head_places,
        query_places,
        i_head,
        first,
        o_t,
        m_q,
        H,
        T,
        HC,
        TC,
        CHOSEN,
        o_slot_q,
        PACK,
    )
    b_largest = tl.max(b_t, axis=1)
    b_peak = tl.maximum(b_largest, LOWEST)
    if STORE_PEAK:
        b_position = first_position(b_t, b_peak, o_s[None, :])
        store_peak(max_logit, argmax, b_peak, b_position, o_row, m_row)
    b_t = b_t - b_peak[:, None]
    b_p = tl.exp2(b_t)
    b_sum = tl.sum(b_p, axis=1)
    p_lse = dense_rows(lse, i_head, first, o_t, T, 1, o_slot_q, PACK)
    tl.store(p_lse, (b_peak + tl.log2(b_sum)) * LN2, mask=m_q)
    b_sum = divisor(b_sum)
    if STORE_ENTROPY:
        # Relative to the peak both terms are >= 0: no cancellation, whatever the size of scores.
        b_mean = tl.sum(b_p * tl.maximum(b_t, NO_WEIGHT), axis=1) / b_sum
        p_entropy = captured_rows(entropy, o_row, i_head, first, o_t, T, 1, CHOSEN, o_slot_q, PACK)
        tl.store(p_entropy, not_negative(tl.log2(b_sum) - b_mean), mask=m_row)
    if STORE_RECEIVED:
        o_head, m_head = chosen_heads(head_places, i_head, H, HC, o_slot_k, CHOSEN, PACK)
        store_received(
            received, b_p, b_sum, m_row, o_head, o_s, m_k & m_head, first // BT, blocks, S
        )
    if TOP_K > 0:
        b_largest = b_largest - b_peak
        b_top, b_where = largest_of_rows(b_t, b_largest, o_s[None, :], TOP_K, ROOM)
        b_log2sum = tl.log2(b_sum)
        store_top_k(top_weights, top_positions, b_top, b_where, b_log2sum, o_row, m_row, TOP_K)
    if STORE_WEIGHTS:
        b_w = (b_p / b_sum[:, None]).to(weights.dtype.element_ty)
        m_w = m_row[:, None] & (o_s < S)[None, :]
        if PACK > 1:
            m_w = m_w & (o_slot_q[:, None] == o_slot_k[None, :])
        p_w = captured_rows(weights, o_row, i_head, first, o_t, T, S, CHOSEN, o_slot_q, PACK)
        tl.store(p_w[:, None] + o_s[None, :], b_w, mask=m_w)

    # Unnormalised weights have a largest one of 1, which suits 16-bit formats best.
    b_out = tl.dot(b_p.to(b_v.dtype), b_v, input_precision=PRECISION) / b_sum[:, None]
    p_out = merged_rows(out, i_head, first, o_t, T, H, D, o_slot_q, PACK)
    store_rows(p_out, b_out, m_q, D, BD)


@triton.jit
def attention_short_backward_kernel(
    grad_out,
    grad_weights,
    grad_entropy,
    grad_lse,
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
    grad_q,
    grad_k,
    grad_v,
    scale,
    num_heads,
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
    HAS_GRAD_LSE: tl.constexpr,
    HAS_GRAD_RECEIVED: tl.constexpr,
    HAS_GRAD_MAX_LOGIT: tl.constexpr,
    TOP_K: tl.constexpr,
    CHOSEN: tl.constexpr,
    D: tl.constexpr,
    BT: tl.constexpr,
    BS: tl.constexpr,
    BD: tl.constexpr,
    PACK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """All queries of PACK heads, block after block; gradients of keys and values stay on chip."""
    i_head = tl.program_id(0).to(tl.int64) * PACK
    o_slot_q, o_t = tile_rows(BT, PACK)
    o_slot_k, o_s = tile_rows(BS, PACK)
    m_k = (o_s < S) & (i_head + o_slot_k < num_heads)
    p_k = row_pointers(k, i_head, 0, o_s, H, k_stride_b, k_stride_h, k_stride_s, o_slot_k, PACK)
    p_v = row_pointers(v, i_head, 0, o_s, H, v_stride_b, v_stride_h, v_stride_s, o_slot_k, PACK)
    b_k = load_rows(p_k, m_k, D, BD)
    b_v = load_rows(p_v, m_k, D, BD)
    ACC: tl.constexpr = tl.float64 if q.dtype.element_ty == tl.float64 else tl.float32
    b_gk = tl.zeros((BS * PACK, BD), dtype=ACC)
    b_gv = tl.zeros((BS * PACK, BD), dtype=ACC)
    b_gr = 0.0
    if HAS_GRAD_RECEIVED:
        o_head, m_head = chosen_heads(head_places, i_head, H, HC, o_slot_k, CHOSEN, PACK)
        b_gr = tl.load(grad_received + o_head * S + o_s, mask=m_k & m_head, other=0.0)[:, None]

    for first in range(0, T, BT):
        m_q = (first + o_t < T) & (i_head + o_slot_q < num_heads)
        p_q = row_pointers(
            q, i_head, first, o_t, H, q_stride_b, q_stride_h, q_stride_t, o_slot_q, PACK
        )
        b_q = load_rows(p_q, m_q, D, BD)
        p_lse = dense_rows(lse, i_head, first, o_t, T, 1, o_slot_q, PACK)
        b_lse = tl.load(p_lse, mask=m_q, other=0.0)
        m_visible = m_q[None, :] & visible_in_pack(
            o_slot_q[None, :],
            first + o_t[None, :],
            o_slot_k[:, None],
            o_s[:, None],
            T,
            S,
            CAUSAL,
            PACK,
        )
        b_w, b_log2w = weights_by_key(b_q, b_k, b_lse, scale, m_visible, PRECISION)
        o_row, m_row = chosen_rows(
            head_places,
            query_places,
            i_head,
            first,
            o_t,
            m_q,
            H,
            T,
            HC,
            TC,
            CHOSEN,
            o_slot_q,
            PACK,
        )

        # b_g is the gradient of the weights; that of the scores is w (g - sum w g). The product
        # comes last: it adds to what is there, and fewer tiles are alive at a time.
        b_g = tl.zeros_like(b_w)
        if HAS_GRAD_ENTROPY:
            p_gh = captured_rows(
                grad_entropy, o_row, i_head, first, o_t, T, 1, CHOSEN, o_slot_q, PACK
            )
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
        if HAS_GRAD_WEIGHTS:
            p_gw = gradient_rows(
                grad_weights,
                o_row,
                i_head,
                first,
                o_t,
                H,
                S,
                gw_stride_b,
                gw_stride_h,
                gw_stride_t,
                CHOSEN,
                o_slot_q,
                PACK,
            )
            # Read within bounds only: the causal staircase in a load's mask would make it scalar.
            m_gw = m_row[None, :] & (o_s < S)[:, None]
            if PACK > 1:
                m_gw = m_gw & (o_slot_q[None, :] == o_slot_k[:, None])
            b_gw = tl.load(p_gw[None, :] + o_s[:, None], mask=m_gw, other=0.0)
            b_g += tl.where(m_visible, b_gw, 0.0).to(ACC)
        if HAS_GRAD_OUT:
            p_go = row_pointers(
                grad_out,
                i_head,
                first,
                o_t,
                H,
                go_stride_b,
                go_stride_h,
                go_stride_t,
                o_slot_q,
                PACK,
            )
            b_go = load_rows(p_go, m_q, D, BD)
            b_gv += tl.dot(b_w.to(b_go.dtype), b_go, input_precision=PRECISION)
            b_g += tl.dot(b_v, tl.trans(b_go), input_precision=PRECISION)
        b_offset = -tl.sum(b_w * b_g, axis=0)
        if HAS_GRAD_LSE:
            p_gl = dense_rows(grad_lse, i_head, first, o_t, T, 1, o_slot_q, PACK)
            b_offset += tl.load(p_gl, mask=m_q, other=0.0)
        b_gs = add_max_logit_gradient(
            b_w * (b_g + b_offset[None, :]),
            grad_max_logit,
            argmax,
            o_s[:, None],
            o_row,
            m_row,
            m_visible,
            HAS_GRAD_MAX_LOGIT,
            True,
        ).to(b_q.dtype)

        b_gk += tl.dot(b_gs, b_q, input_precision=PRECISION)
        # Triton gives all products of the loop one arrangement of warps, along their rows. Tall
        # tiles therefore want this one as [BD, BT]: as [BT, BD] warps would repeat its few rows.
        if BS * PACK > 32 and BS * PACK >= BD:
            b_gq = tl.trans(tl.dot(tl.trans(b_k), b_gs, input_precision=PRECISION)) * scale
        else:
            b_gq = tl.dot(tl.trans(b_gs), b_k, input_precision=PRECISION) * scale
        p_gq = merged_rows(grad_q, i_head, first, o_t, T, H, D, o_slot_q, PACK)
        store_rows(p_gq, b_gq, m_q, D, BD)

    p_gk = merged_rows(grad_k, i_head, 0, o_s, S, H, D, o_slot_k, PACK)
    p_gv = merged_rows(grad_v, i_head, 0, o_s, S, H, D, o_slot_k, PACK)
    store_rows(p_gk, b_gk * scale, m_k, D, BD)
    store_rows(p_gv, b_gv, m_k, D, BD)
