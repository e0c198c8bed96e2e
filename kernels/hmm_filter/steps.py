"""What the kernels of hmm_filter share.

A row of a tile is a stretch of one sequence: the whole of it, or, if there are few states and
sequences are cut into `chunks` pieces of `chunk` steps, one of those. Rows are counted through
batch and pieces. Halves are widened to float32 where they are loaded.

Probabilities of a step may be as small as the product of two small numbers. Emissions are
therefore lifted by a power of two, so that c keeps its precision well below the smallest normal
number.

Nothing may be lost, as a state that all but dies out is what is left if the others turn out to be
impossible. A sequence is delicate, and done again with an exponent for each state, if c is above 0
and below 1 (lifted), or if an entry above 0 of transition is below SMALL, of the lifted emission
below 1, of filtered below FLOOR, or an adjoint larger than LARGEST. In all others, filtered *
transition >= FLOOR * SMALL and that times the lifted emission are normal numbers or structural
zeros: nothing was lost, and c = 0 is impossible. The kernels of the recursion look at all but the
matrix, which exact.py and the launcher of gradients look at.
"""

import triton
import triton.language as tl

LIFT_32 = tl.constexpr(2.0**100)
LIFT_64 = tl.constexpr(2.0**996)
SMALL_32 = tl.constexpr(2.0**-40)
SMALL_64 = tl.constexpr(2.0**-400)
FLOOR_32 = tl.constexpr(2.0**-80)
FLOOR_64 = tl.constexpr(2.0**-600)
LARGEST_32 = tl.constexpr(2.0**100)
LARGEST_64 = tl.constexpr(2.0**900)


@triton.jit
def lift_of(pointer):
    if pointer.dtype.element_ty == tl.float64:
        return LIFT_64
    else:
        return LIFT_32


@triton.jit
def lift_exponent_of(pointer):
    if pointer.dtype.element_ty == tl.float64:
        return 996
    else:
        return 100


@triton.jit
def small_of(pointer):
    if pointer.dtype.element_ty == tl.float64:
        return SMALL_64
    else:
        return SMALL_32


@triton.jit
def floor_of(pointer):
    if pointer.dtype.element_ty == tl.float64:
        return FLOOR_64
    else:
        return FLOOR_32


@triton.jit
def largest_of(pointer):
    if pointer.dtype.element_ty == tl.float64:
        return LARGEST_64
    else:
        return LARGEST_32


@triton.jit
def positive_below(b_x, limit):
    return (b_x > 0.0) & (b_x < limit)


@triton.jit
def has_small(transition, S: tl.constexpr, SP: tl.constexpr, BK: tl.constexpr):
    """Whether a matrix has positive entries below SMALL, BK of its rows at a time."""
    o_s = tl.arange(0, SP)
    b_found = tl.zeros((BK, SP), dtype=tl.int1)
    for i_piece in range(0, SP // BK):
        o_k = i_piece * BK + tl.arange(0, BK)
        m_tile = (o_k < S)[:, None] & (o_s < S)[None, :]
        b_tile = tl.load(transition + o_k[:, None] * S + o_s[None, :], mask=m_tile, other=0.0)
        b_found = b_found | positive_below(b_tile, small_of(transition))
    return tl.max(tl.max(b_found.to(tl.int32), axis=1), axis=0)


@triton.jit
def row_places(o_piece, m_row, lengths, T, chunk, chunks, HAS_LENGTHS: tl.constexpr):
    """Sequence, first step, steps that exist and steps that count (0 outside of the mask)."""
    o_b = o_piece // chunks
    first = o_piece % chunks * chunk
    b_steps = tl.where(m_row, tl.minimum(T - first, chunk), 0)
    b_all = lengths_of(lengths, o_b, m_row, T, HAS_LENGTHS)
    b_length = tl.minimum(tl.maximum(b_all - first, 0), b_steps)
    return o_b, first, b_steps.to(tl.int32), b_length.to(tl.int32)


@triton.jit
def lengths_of(lengths, o_b, m_row, T, HAS_LENGTHS: tl.constexpr):
    """Of sequences, 0 to T."""
    if HAS_LENGTHS:
        b_given = tl.load(lengths + o_b, mask=m_row, other=0)
        return tl.minimum(tl.maximum(b_given, 0), T).to(tl.int32)
    else:
        return tl.where(m_row, T, 0)


@triton.jit
def emission_column(
    observations,
    emission,
    o_b,
    o_step,
    m_now,
    T,
    V,
    emission_stride,
    WIDE: tl.constexpr,
    S: tl.constexpr,
    SP: tl.constexpr,
):
    """(symbols [rows], lifted probabilities of them [rows, SP]).

    Missing symbols are -1, and certain; symbols beyond V are impossible.
    """
    o_s = tl.arange(0, SP)
    b_y = tl.load(observations + o_b * T + o_step, mask=m_now, other=-1).to(tl.int64)
    b_y = tl.maximum(b_y, -1)
    m_known = (b_y >= 0) & (b_y < V)
    o_e = (o_b * emission_stride + b_y)[:, None] + (o_s * V)[None, :]
    m_e = m_known[:, None] & (o_s < S)[None, :]
    b_e = tl.load(emission + o_e, mask=m_e, other=0.0).to(WIDE)
    b_e = tl.where((b_y < 0)[:, None] & (o_s < S)[None, :], 1.0, b_e)
    return b_y, b_e * lift_of(emission)


@triton.jit
def load_transition(
    transition,
    o_b,
    m_row,
    transition_stride,
    TRANSPOSED: tl.constexpr,
    WIDE: tl.constexpr,
    S: tl.constexpr,
    SP: tl.constexpr,
):
    """[SP, rows, SP]: from-state, row, to-state, or the states exchanged if TRANSPOSED.

    In this order lanes lie along the last state and the rows, and each has all first states in
    registers, so that sums over them need no shuffles. It would be given up for wide loads of
    what is contiguous in memory, which therefore is hidden: the matrix is loaded only once.
    """
    o_s = tl.arange(0, SP)
    o_hidden = tl.max_contiguous(o_s, [1])
    if TRANSPOSED:
        o_matrix = o_hidden[:, None, None] + (o_s * S)[None, None, :]
    else:
        o_matrix = (o_s * S)[:, None, None] + o_hidden[None, None, :]
    m_matrix = (o_s < S)[:, None, None] & (o_s < S)[None, None, :]
    return tl.load(
        transition + (o_b * transition_stride)[None, :, None] + o_matrix,
        mask=m_row[None, :, None] & m_matrix,
        other=0.0,
    ).to(WIDE)


@triton.jit
def transition_rows(
    transition,
    o_b,
    m_tile,
    transition_stride,
    TRANSPOSED: tl.constexpr,
    WIDE: tl.constexpr,
    S: tl.constexpr,
    SP: tl.constexpr,
):
    """S tiles [rows, SP]: from-state i to each state, or to-state i from each if TRANSPOSED."""
    o_s = tl.arange(0, SP)
    p_matrix = transition + (o_b * transition_stride)[:, None]
    b_rows = ()
    for i in tl.static_range(S):
        o_row = o_s * S + i if TRANSPOSED else i * S + o_s
        b_rows += (tl.load(p_matrix + o_row[None, :], mask=m_tile, other=0.0).to(WIDE),)
    return b_rows


@triton.jit
def one_of_all(b_x, i):
    """Number i of each row [rows, SP], in all of its lanes."""
    return tl.gather(b_x, tl.zeros(b_x.shape, dtype=tl.int32) + i, axis=1)


@triton.jit
def symbols_of(p_y, o_step, b_length, V):
    """Symbols of some steps of rows, -1 where they are missing or beyond the length, V where they
    are impossible."""
    m_step = (o_step >= 0) & (o_step < b_length[:, None])
    b_y = tl.load(p_y + o_step, mask=m_step, other=-1)
    return tl.minimum(tl.maximum(b_y, -1), V).to(tl.int32)


@triton.jit
def emissions_of(b_y, emission, o_e, m_s, V, WIDE: tl.constexpr):
    """p(y | .) [rows, SP]: of missing symbols (-1) 1, of impossible ones (V) 0."""
    b_other = tl.where(m_s & (b_y < 0), 1.0, 0.0).to(emission.dtype.element_ty)
    m_known = m_s & (b_y >= 0) & (b_y < V)
    return tl.load(emission + o_e + b_y, mask=m_known, other=b_other).to(WIDE)


@triton.jit
def above_zero(b_x):
    """Bit patterns that order positive numbers, and put 0 above them all."""
    if b_x.dtype == tl.float64:
        return b_x.to(tl.uint64, bitcast=True) - 1
    else:
        return b_x.to(tl.uint32, bitcast=True) - 1


@triton.jit
def raw_exponent(b_x):
    """Of positive numbers, biased."""
    if b_x.dtype == tl.float64:
        return (b_x.to(tl.int64, bitcast=True) >> 52).to(tl.int32)
    else:
        return b_x.to(tl.int32, bitcast=True) >> 23


@triton.jit
def inverse_power(b_x, LIFT_EXPONENT: tl.constexpr):
    """2^(LIFT_EXPONENT - k) for numbers in [2^k, 2^(k+1))."""
    if b_x.dtype == tl.float64:
        b_power = b_x.to(tl.uint64, bitcast=True) & (0x7FF << 52)
        return (((2046 + LIFT_EXPONENT) << 52) - b_power).to(tl.float64, bitcast=True)
    else:
        b_power = b_x.to(tl.uint32, bitcast=True) & (0xFF << 23)
        return (((254 + LIFT_EXPONENT) << 23) - b_power).to(tl.float32, bitcast=True)


@triton.jit
def mantissa_of(b_x):
    """In [1, 2)."""
    if b_x.dtype == tl.float64:
        b_bits = b_x.to(tl.int64, bitcast=True) & ((1 << 52) - 1)
        return (b_bits | (1023 << 52)).to(tl.float64, bitcast=True)
    else:
        b_bits = b_x.to(tl.int32, bitcast=True) & ((1 << 23) - 1)
        return (b_bits | (127 << 23)).to(tl.float32, bitcast=True)


@triton.jit
def times_shared(
    b_x,
    transition,
    TRANSPOSED: tl.constexpr,
    S: tl.constexpr,
    BB: tl.constexpr,
    SP: tl.constexpr,
    BK: tl.constexpr,
):
    """x [BB, SP] times one matrix for all rows, BK of its rows at a time.

    All of an exact float32 product at once would need more registers than there are.
    """
    o_s = tl.arange(0, SP)
    o_piece = tl.arange(0, SP // BK)
    b_pieces = tl.reshape(b_x, (BB, SP // BK, BK))
    b_product = tl.zeros((BB, SP), dtype=b_x.dtype)
    for i_piece in range(0, SP // BK):
        o_k = i_piece * BK + tl.arange(0, BK)
        b_piece = tl.sum(tl.where((o_piece == i_piece)[None, :, None], b_pieces, 0.0), axis=1)
        if TRANSPOSED:
            p_tile = transition + o_s[:, None] * S + o_k[None, :]
            m_tile = (o_s < S)[:, None] & (o_k < S)[None, :]
            b_tile = tl.trans(tl.load(p_tile, mask=m_tile, other=0.0).to(b_x.dtype))
        else:
            p_tile = transition + o_k[:, None] * S + o_s[None, :]
            m_tile = (o_k < S)[:, None] & (o_s < S)[None, :]
            b_tile = tl.load(p_tile, mask=m_tile, other=0.0).to(b_x.dtype)
        b_product = tl.dot(
            b_piece, b_tile, acc=b_product, input_precision="ieee", out_dtype=b_x.dtype
        )
    return b_product
