"""What the attention kernels share: addresses of tiles, visibility, products.

Scores are kept in base 2, t = log2(e) * scale * q k^T, because the hardware's exponential is exp2
and entropies are wanted in bits.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
# exp2 of it is 0 in every precision, so terms cut off at it carry no weight; unlike -inf it can be
# multiplied by 0.
NO_WEIGHT = tl.constexpr(-1.0e4)
# The peak of a query that sees no score but -inf: unlike -inf it can be subtracted from that.
LOWEST = tl.constexpr(-3.4028234e38)


@triton.jit
def tile_rows(SIZE: tl.constexpr, PACK: tl.constexpr):
    """Slot and position of each row of a tile that holds SIZE positions of PACK heads."""
    o_row = tl.arange(0, SIZE * PACK)
    if PACK == 1:
        o_slot = tl.zeros((1,), dtype=tl.int32)
        o_position = o_row
    else:
        o_slot = o_row // SIZE
        o_position = o_row % SIZE
    return o_slot, o_position


@triton.jit
def row_pointers(
    pointer,
    i_head,
    first,
    o_row,
    H,
    stride_b,
    stride_h,
    stride_row,
    o_slot=0,
    PACK: tl.constexpr = 1,
):
    """Addresses of rows first + o_row of heads i_head + o_slot, counted through the batch.

    Scalars are int64, because tensors may be larger than 2^31; what differs within a tile stays
    int32, because registers are scarce.
    """
    pointer += tl.cast(first, tl.int64) * stride_row
    if PACK == 1:
        pointer += i_head // H * stride_b + i_head % H * stride_h
    else:
        pointer += (i_head + o_slot) // H * stride_b + (i_head + o_slot) % H * stride_h
    return pointer + o_row * stride_row


@triton.jit
def dense_rows(pointer, i_head, first, o_row, length, width, o_slot=0, PACK: tl.constexpr = 1):
    """The same in a contiguous tensor whose heads have `length` rows of `width`."""
    pointer += (i_head * length + first) * width
    if PACK > 1:
        pointer += o_slot.to(tl.int64) * length * width
    return pointer + o_row * width


@triton.jit
def merged_rows(
    pointer, i_head, first, o_row, length, H, D: tl.constexpr, o_slot=0, PACK: tl.constexpr = 1
):
    """The same in [B, length, H, D], the layout of results: heads can be merged without a copy."""
    if PACK > 1:
        i_head = i_head + o_slot
    return pointer + ((i_head // H * length + first) * H + i_head % H) * D + o_row * (H * D)


@triton.jit
def load_rows(p_rows, m_rows, D: tl.constexpr, BD: tl.constexpr):
    """[rows, BD] from the addresses of the rows; zeros beyond the mask and beyond D."""
    o_d = tl.arange(0, BD)
    m_tile = m_rows[:, None]
    if D != BD:
        m_tile = m_tile & (o_d < D)[None, :]
    return tl.load(p_rows[:, None] + o_d[None, :], mask=m_tile, other=0.0)


@triton.jit
def store_rows(p_rows, b_rows, m_rows, D: tl.constexpr, BD: tl.constexpr):
    o_d = tl.arange(0, BD)
    m_tile = m_rows[:, None]
    if D != BD:
        m_tile = m_tile & (o_d < D)[None, :]
    b_rows = b_rows.to(p_rows.dtype.element_ty)
    tl.store(p_rows[:, None] + o_d[None, :], b_rows, mask=m_tile)


@triton.jit
def visible_keys(o_t, o_s, T, S, CAUSAL: tl.constexpr):
    """Which keys a query sees; places come as rows and columns of the tile. Queries beyond T see
    keys too, so that each has a finite maximum, and there even some that do not exist."""
    if CAUSAL:
        return o_s <= o_t + (S - T)
    else:
        return o_s < S


@triton.jit
def key_ranges(first_t, T, S, CAUSAL: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr):
    """For a block of queries: up to which key every one of them sees whole blocks of keys, so that
    these need no mask, and up to which key some query sees any."""
    end, seen = S, S
    if CAUSAL:
        end = tl.minimum(S, S - T + first_t + BT)
        seen = tl.minimum(S, S - T + first_t + 1)
    return seen // BS * BS, end


@triton.jit
def scores_base2(b_q, b_k, scale, PRECISION: tl.constexpr):
    """[queries, keys] in base 2."""
    return tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION) * (scale * LOG2E)


@triton.jit
def divisor(b_sum):
    """Of unnormalised weights: their sum, at least the 1 of the largest, if there is one at all."""
    return tl.maximum(b_sum, 1.0)


@triton.jit
def not_negative(b_x):
    """Unlike a maximum, leaves NaN as it is."""
    return tl.where(b_x < 0.0, 0.0, b_x)


@triton.jit
def finite(b_lse):
    """To be subtracted; that of a query that sees no score but -inf is -inf, too."""
    return tl.where(b_lse == float("-inf"), 0.0, b_lse)


@triton.jit
def weights_from_lse(b_q, b_k, b_lse, scale, m_visible, PRECISION: tl.constexpr):
    """Normalised weights and their base-2 logarithms (finite where hidden), from the stored lse."""
    b_t = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
    b_log2w = b_t * (scale * LOG2E) - (finite(b_lse) * LOG2E)[:, None]
    return tl.where(m_visible, tl.exp2(b_log2w), 0.0), tl.maximum(b_log2w, NO_WEIGHT)


@triton.jit
def weights_by_key(b_q, b_k, b_lse, scale, m_visible, PRECISION: tl.constexpr):
    """The same as [keys, queries]: the layout in which gradients of keys can be summed without
    moving the weights between threads."""
    b_t = tl.dot(b_k, tl.trans(b_q), input_precision=PRECISION)
    b_log2w = b_t * (scale * LOG2E) - (finite(b_lse) * LOG2E)[None, :]
    return tl.where(m_visible, tl.exp2(b_log2w), 0.0), tl.maximum(b_log2w, NO_WEIGHT)
