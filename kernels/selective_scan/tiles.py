"""The selective scan: what the device code of both passes shares.

States are [NQ, BE, NR], those of BE channels: NQ of the NP padded states lie in a thread and NR in
neighbouring lanes, since Triton by default gives the last dimensions to lanes, the middle one to
warps too, and the first to registers. A tile of CH steps before them is in registers then, so that
picking a step of it costs nothing and the recurrence is one multiply-add after the other.
"""

import triton
import triton.language as tl


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
def load_rates(A, o_e, m_e, o_n, N, NR: tl.constexpr):
    """A of channels as [NQ, BE, NR]."""
    mask = m_e[:, None] & (o_n < N)[None, :]
    b_A = tl.load(A + o_e[:, None] * N + o_n[None, :], mask=mask, other=0.0)
    b_A = tl.reshape(b_A, (o_e.shape[0], o_n.shape[0] // NR, NR))
    return tl.permute(b_A, (1, 0, 2))


@triton.jit
def load_rows(rows, o_t, m_t, o_e, m_e, stride, DTYPE: tl.constexpr):
    """u, delta or grad_y [CH, BE] at the times o_t of a sequence."""
    o_row = o_t.to(tl.int64)[:, None] * stride + o_e[None, :]
    return tl.load(rows + o_row, mask=m_t[:, None] & m_e[None, :], other=0.0).to(DTYPE)


@triton.jit
def load_chunk(
    rows, first, L, o_e, m_e, stride, CH: tl.constexpr, PARTS: tl.constexpr, DTYPE: tl.constexpr
):
    """The rows of PARTS tiles, [PARTS, CH, BE]."""
    o_t = first + (tl.arange(0, PARTS) * CH)[:, None] + tl.arange(0, CH)[None, :]
    o_row = o_t.to(tl.int64)[:, :, None] * stride + o_e[None, None, :]
    mask = (o_t < L)[:, :, None] & m_e[None, None, :]
    return tl.load(rows + o_row, mask=mask, other=0.0).to(DTYPE)


@triton.jit
def part(b_parts, j):
    """Tile j [CH, BE] of a chunk."""
    m_part = (tl.arange(0, b_parts.shape[0]) == j)[:, None, None]
    return tl.sum(tl.where(m_part, b_parts, 0.0), axis=0)


@triton.jit
def spread(b_rows, NR: tl.constexpr):
    """B or C [CH, NP] beside states: [CH, NQ, 1, NR]."""
    CH: tl.constexpr = b_rows.shape[0]
    return tl.reshape(b_rows, (CH, b_rows.shape[1] // NR, NR))[:, :, None, :]


@triton.jit
def bits(b_tile):
    """As whole numbers: of a sum of them that picks one, the compiler drops the zeros."""
    WHOLE: tl.constexpr = tl.int64 if b_tile.dtype == tl.float64 else tl.int32
    return b_tile.to(WHOLE, bitcast=True)


@triton.jit
def pick(b_tile, step):
    """One step of a tile."""
    m_step = (tl.arange(0, b_tile.shape[0]) == step)[:, None, None, None]
    return tl.sum(tl.where(m_step, bits(b_tile), 0), axis=0).to(b_tile.dtype, bitcast=True)


@triton.jit
def put(b_tile, step, b_step):
    """The tile with another step."""
    m_step = (tl.arange(0, b_tile.shape[0]) == step)[:, None, None, None]
    return tl.where(m_step, b_step[None, :, :, :], b_tile)


@triton.jit
def settle(b_state, CH: tl.constexpr):
    """A state that was loaded, where the tiles of CH steps have theirs. Otherwise it stays where
    the load has put it, and goes there and back through shared memory in every step."""
    b_tile = tl.zeros((CH, b_state.shape[0], b_state.shape[1], b_state.shape[2]), b_state.dtype)
    return pick(put(b_tile, 0, b_state), 0)


# What follows has these written out, as a call takes the interpreter long.
@triton.jit
def advance(b_h, b_a, b_x):
    """h_t = a_t h_{t-1} + x_t through a tile: the state after it, and a_t h_{t-1} of each step."""
    o_i = tl.arange(0, b_a.shape[0])[:, None, None, None]
    b_a_bits, b_x_bits = bits(b_a), bits(b_x)
    b_faded = tl.zeros_like(b_a)
    for step in tl.static_range(b_a.shape[0]):
        m_step = o_i == step
        b_h *= tl.sum(tl.where(m_step, b_a_bits, 0), axis=0).to(b_a.dtype, bitcast=True)
        b_faded = tl.where(m_step, b_h[None, :, :, :], b_faded)
        b_h += tl.sum(tl.where(m_step, b_x_bits, 0), axis=0).to(b_a.dtype, bitcast=True)
    return b_h, b_faded


@triton.jit
def retreat(b_g, b_a, b_q):
    """g_t = q_t + a_{t+1} g_{t+1} back through a tile, from a g of the step after it: that of its
    first step, and g of each step."""
    o_i = tl.arange(0, b_a.shape[0])[:, None, None, None]
    b_a_bits, b_q_bits = bits(b_a), bits(b_q)
    b_grad = tl.zeros_like(b_a)
    for step in tl.static_range(b_a.shape[0] - 1, -1, -1):
        m_step = o_i == step
        b_g += tl.sum(tl.where(m_step, b_q_bits, 0), axis=0).to(b_a.dtype, bitcast=True)
        b_grad = tl.where(m_step, b_g[None, :, :, :], b_grad)
        b_g *= tl.sum(tl.where(m_step, b_a_bits, 0), axis=0).to(b_a.dtype, bitcast=True)
    return b_g, b_grad


@triton.jit
def over_states(b_tile):
    """[CH, NQ, BE, NR] -> [CH, BE]."""
    return tl.sum(tl.sum(b_tile, axis=1), axis=2)


@triton.jit
def over_channels(b_tile, WARPS: tl.constexpr, LANES: tl.constexpr):
    """[CH, NQ, BE, NR] -> [CH, NP].

    First in each warp, then over the warps, whose sums move to neighbouring lanes for it: what
    Triton does with a sum across warps has conflicts of eight in the banks of shared memory."""
    CH: tl.constexpr = b_tile.shape[0]
    NQ: tl.constexpr = b_tile.shape[1]
    BE: tl.constexpr = b_tile.shape[2]
    NR: tl.constexpr = b_tile.shape[3]
    SIDE: tl.constexpr = LANES // NR if LANES // NR < BE else BE
    W: tl.constexpr = WARPS if WARPS < BE // SIDE else BE // SIDE
    b_tile = tl.reshape(b_tile, (CH, NQ, BE // (W * SIDE), W, SIDE, NR))
    b_warps = tl.sum(tl.sum(b_tile, axis=2), axis=3)
    b_warps = tl.reshape(tl.permute(b_warps, (0, 1, 3, 2)), (CH * NQ * NR, W))
    return tl.reshape(tl.sum(b_warps, axis=1), (CH, NQ * NR))
