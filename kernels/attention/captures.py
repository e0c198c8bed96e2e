"""What the attention kernels capture besides weights: the largest scores of each query, what each
key receives, and the gradients of these.

Heads and queries can be chosen: `head_places` [H] and `query_places` [T] are their places in what
is captured, which has HC heads of TC queries, and -1 for those that it has not.
"""

import triton
import triton.language as tl

from .tiles import LN2, LOWEST, dense_rows, load_rows, row_pointers, visible_keys, weights_by_key

NOWHERE = tl.constexpr(2147483647)  # behind every position


@triton.jit
def chosen_heads(head_places, i_head, H, HC, o_slot, CHOSEN: tl.constexpr, PACK: tl.constexpr):
    """The captured heads, counted through the batch, and which there are."""
    o_head = i_head
    if PACK > 1:
        o_head = i_head + o_slot
    m_head = o_head >= 0
    if CHOSEN:
        b_place = tl.load(head_places + o_head % H)
        m_head = b_place >= 0
        o_head = o_head // H * HC + b_place
    return o_head, m_head


@triton.jit
def chosen_rows(
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
    CHOSEN: tl.constexpr,
    o_slot=0,
    PACK: tl.constexpr = 1,
):
    """The captured row of each query first + o_t, and which there are."""
    o_head, m_head = chosen_heads(head_places, i_head, H, HC, o_slot, CHOSEN, PACK)
    if CHOSEN:
        b_place = tl.load(query_places + first + o_t, mask=m_q, other=-1)
        return o_head * TC + b_place, m_q & m_head & (b_place >= 0)
    else:
        return o_head * T + first + o_t, m_q


@triton.jit
def captured_rows(
    pointer,
    o_row,
    i_head,
    first,
    o_t,
    T,
    width,
    CHOSEN: tl.constexpr,
    o_slot=0,
    PACK: tl.constexpr = 1,
):
    """Their addresses in a contiguous tensor of rows of `width`."""
    if CHOSEN:
        return pointer + o_row * width
    else:
        return dense_rows(pointer, i_head, first, o_t, T, width, o_slot, PACK)


@triton.jit
def gradient_rows(
    pointer,
    o_row,
    i_head,
    first,
    o_t,
    H,
    S,
    stride_b,
    stride_h,
    stride_t,
    CHOSEN: tl.constexpr,
    o_slot=0,
    PACK: tl.constexpr = 1,
):
    """The same in the gradient of weights, which has strides of its own if all are captured."""
    if CHOSEN:
        return pointer + o_row * S
    else:
        return row_pointers(
            pointer, i_head, first, o_t, H, stride_b, stride_h, stride_t, o_slot, PACK
        )


@triton.jit
def first_position(b_t, b_largest, o_s):
    """Where the largest score of each row is; NOWHERE if that is -inf."""
    b_position = tl.min(tl.where(b_t == b_largest[:, None], o_s, NOWHERE), axis=1)
    return tl.where(b_largest > LOWEST, b_position, NOWHERE)


@triton.jit
def later_peak(b_position, b_t, b_largest, b_peak, o_s):
    """Where the largest score of each row is, after one more block of keys, whose largest is
    `b_largest`; `b_peak` was the largest before."""
    return tl.where(b_largest > b_peak, first_position(b_t, b_largest, o_s), b_position)


@triton.jit
def store_peak(max_logit, argmax, b_peak, b_position, o_row, m_row):
    m_seen = b_position != NOWHERE
    tl.store(max_logit + o_row, tl.where(m_seen, b_peak * LN2, float("-inf")), mask=m_row)
    tl.store(argmax + o_row, tl.where(m_seen, b_position, -1).to(tl.int64), mask=m_row)


@triton.jit
def largest_of_rows(b_t, b_largest, o_s, TOP_K: tl.constexpr, ROOM: tl.constexpr):
    """The largest scores of whole rows and where they are, in order; there is ROOM for a power of
    2, the rest of which is -inf at NOWHERE. Each round takes the largest away, at first
    `b_largest`, and finds the largest that is left."""
    b_top = tl.full((b_t.shape[0], ROOM), float("-inf"), dtype=b_t.dtype)
    b_where = tl.full((b_t.shape[0], ROOM), NOWHERE, dtype=tl.int32)
    o_room = tl.arange(0, ROOM)[None, :]
    for i in tl.static_range(TOP_K):
        b_position = first_position(b_t, b_largest, o_s)
        b_top = tl.where(o_room == i, b_largest[:, None], b_top)
        b_where = tl.where(o_room == i, b_position[:, None], b_where)
        if i + 1 < TOP_K:
            b_t = tl.where(o_s == b_position[:, None], float("-inf"), b_t)
            b_largest = tl.max(b_t, axis=1)
    return b_top, b_where


@triton.jit
def later_top_k(b_top, b_where, b_t, b_largest, o_s, TOP_K: tl.constexpr):
    """The same after one more block of keys, with what came of the blocks before."""
    b_merged = tl.full(b_top.shape, float("-inf"), dtype=b_top.dtype)
    b_places = tl.full(b_where.shape, NOWHERE, dtype=tl.int32)
    o_room = tl.arange(0, b_top.shape[1])[None, :]
    for i in tl.static_range(TOP_K):
        b_kept = tl.max(b_top, axis=1)
        # Of equal ones that of an earlier block.
        m_kept = b_kept >= b_largest
        b_position = tl.where(
            m_kept, first_position(b_top, b_kept, b_where), first_position(b_t, b_largest, o_s)
        )
        b_merged = tl.where(o_room == i, tl.maximum(b_kept, b_largest)[:, None], b_merged)
        b_places = tl.where(o_room == i, b_position[:, None], b_places)
        if i + 1 < TOP_K:
            b_top = tl.where(b_where == b_position[:, None], float("-inf"), b_top)
            b_t = tl.where(o_s == b_position[:, None], float("-inf"), b_t)
            b_largest = tl.max(b_t, axis=1)
    return b_merged, b_places


@triton.jit
def store_top_k(
    top_weights, top_positions, b_top, b_where, b_log2sum, o_row, m_row, TOP_K: tl.constexpr
):
    o_room = tl.arange(0, b_top.shape[1])[None, :]
    m_seen = b_where != NOWHERE
    b_weight = tl.where(m_seen, tl.exp2(b_top - b_log2sum[:, None]), 0.0)
    o_top = o_row[:, None] * TOP_K + o_room
    m_top = m_row[:, None] & (o_room < TOP_K)
    tl.store(top_weights + o_top, b_weight, mask=m_top)
    tl.store(top_positions + o_top, tl.where(m_seen, b_where, -1).to(tl.int64), mask=m_top)


@triton.jit
def store_received(received, b_p, b_sum, m_row, o_head, o_s, m_k, i_block, blocks, S):
    """What the keys receive from the rows of this block, of unnormalised weights [rows, keys]."""
    b_factor = tl.where(m_row, 1.0 / b_sum, 0.0)
    b_received = tl.sum(b_p * b_factor[:, None], axis=0)
    tl.store(received + (o_head * blocks + i_block) * S + o_s, b_received, mask=m_k)


@triton.jit
def attention_received_sum_kernel(parts, received, blocks, S, BS: tl.constexpr):
    """received [heads, S] = the sum over the blocks of queries of parts [heads, blocks, S]."""
    column_blocks = tl.cdiv(S, BS)
    i_head = (tl.program_id(0) // column_blocks).to(tl.int64)
    o_s = tl.program_id(0) % column_blocks * BS + tl.arange(0, BS)
    m_k = o_s < S
    b_sum = tl.zeros((BS,), dtype=received.dtype.element_ty)
    for i_block in range(0, blocks):
        b_sum += tl.load(parts + (i_head * blocks + i_block) * S + o_s, mask=m_k, other=0.0)
    tl.store(received + i_head * S + o_s, b_sum, mask=m_k)


@triton.jit
def attention_stream_received_kernel(
    q,
    k,
    lse,
    received,
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
    """What a block of keys receives; queries pass by, and weights come from lse."""
    blocks = tl.cdiv(S, BS)
    i_head = (tl.program_id(0) // blocks).to(tl.int64)
    i_s = tl.program_id(0) % blocks
    o_head, m_head = chosen_heads(head_places, i_head, H, HC, 0, CHOSEN, 1)
    o_n = tl.arange(0, BS)
    first_s = i_s * BS
    o_s = first_s + o_n
    m_k = o_s < S
    p_k = row_pointers(k, i_head, first_s, o_n, H, k_stride_b, k_stride_h, k_stride_s)
    b_k = load_rows(p_k, m_k, D, BD)
    ACC: tl.constexpr = tl.float64 if q.dtype.element_ty == tl.float64 else tl.float32
    b_received = tl.zeros((BS,), dtype=ACC)

    start = 0
    if CAUSAL:  # the first query that sees the first of these keys, rounded down to a block
        start = tl.maximum(i_s * BS - (S - T), 0) // BT * BT
    end = T
    if CHOSEN:
        end = tl.where(m_head, T, start)
    o_m = tl.arange(0, BT)
    for first_t in range(start, end, BT):
        o_t = first_t + o_m
        m_q = o_t < T
        m_row = m_q
        if CHOSEN:
            m_row = m_q & (tl.load(query_places + o_t, mask=m_q, other=-1) >= 0)
        p_q = row_pointers(q, i_head, first_t, o_m, H, q_stride_b, q_stride_h, q_stride_t)
        b_q = load_rows(p_q, m_row, D, BD)
        b_lse = tl.load(dense_rows(lse, i_head, first_t, o_m, T, 1), mask=m_q, other=0.0)
        m_visible = m_row[None, :] & visible_keys(o_t[None, :], o_s[:, None], T, S, CAUSAL)
        b_w = weights_by_key(b_q, b_k, b_lse, scale, m_visible, PRECISION)[0]
        b_received += tl.sum(b_w, axis=1)
    tl.store(received + o_head * S + o_s, b_received, mask=m_k & m_head)


@triton.jit
def add_captured_gradients(
    b_g,
    b_received,
    grad_top_k,
    top_positions,
    o_s,
    o_row,
    m_row,
    m_visible,
    HAS_GRAD_RECEIVED: tl.constexpr,
    TOP_K: tl.constexpr,
    BY_KEY: tl.constexpr,
):
    """Of a tile of weights, [keys, queries] if BY_KEY and [queries, keys] if not: those of what
    keys receive and of the largest weights. `o_s` and `b_received` come as rows or columns of it,
    `o_row` and `m_row` as vectors."""
    if HAS_GRAD_RECEIVED:
        m_tile = m_visible & (m_row[None, :] if BY_KEY else m_row[:, None])
        b_g += tl.where(m_tile, b_received, 0.0)
    for i in tl.static_range(TOP_K):
        b_position = tl.load(top_positions + o_row * TOP_K + i, mask=m_row, other=-1).to(tl.int32)
        b_grad = tl.load(grad_top_k + o_row * TOP_K + i, mask=m_row, other=0.0)
        b_g = add_at(b_g, o_s, b_position, b_grad, m_visible, BY_KEY)
    return b_g


@triton.jit
def add_at(b_g, o_s, b_position, b_grad, m_visible, BY_KEY: tl.constexpr):
    """A gradient for each query at one of the keys that it sees."""
    b_position = b_position[None, :] if BY_KEY else b_position[:, None]
    b_grad = b_grad[None, :] if BY_KEY else b_grad[:, None]
    return b_g + tl.where(m_visible & (o_s == b_position), b_grad, 0.0)


@triton.jit
def add_max_logit_gradient(
    b_gs,
    grad_max_logit,
    argmax,
    o_s,
    o_row,
    m_row,
    m_visible,
    HAS_GRAD_MAX_LOGIT: tl.constexpr,
    BY_KEY: tl.constexpr,
):
    """To a tile of gradients of scores."""
    if HAS_GRAD_MAX_LOGIT:
        b_position = tl.load(argmax + o_row, mask=m_row, other=-1).to(tl.int32)
        b_grad = tl.load(grad_max_logit + o_row, mask=m_row, other=0.0)
        b_gs = add_at(b_gs, o_s, b_position, b_grad, m_visible, BY_KEY)
    return b_gs
