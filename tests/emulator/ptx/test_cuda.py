"""CUDA kernels against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from . import Memory, PTXError, launch
from .testing import from_bf16, run, to_bf16

RNG = np.random.default_rng(7)


def test_vector_add(cuda):
    n = 300
    x, y = RNG.random((2, n), np.float32)
    out = np.zeros(n, np.float32)
    stats = run(cuda, [x, y, out, n], grid=3, block=128, kernel="vector_add")
    np.testing.assert_array_equal(out, x + y)
    assert stats.opcodes["st.global"] == 10  # two of the twelve warps are beyond the end
    assert stats.load_sectors == stats.load_sectors_ideal == 2 * 38
    assert stats.store_sectors == 38


@pytest.mark.parametrize("seed", range(3))
def test_block_sum(cuda, seed):
    x = RNG.integers(0, 100, 5 * 256).astype(np.float32)
    out = np.zeros(5, np.float32)
    stats = run(cuda, [x, out], grid=5, block=256, kernel="block_sum", seed=seed)
    np.testing.assert_array_equal(out, x.reshape(5, 256).sum(axis=1))
    assert stats.shared_wavefronts == stats.shared_wavefronts_ideal


def test_warp_sum(cuda):
    x = RNG.integers(-50, 50, 128).astype(np.float64)
    out = np.zeros(128)
    run(cuda, [x, out, 16], grid=2, block=64, kernel="warp_sum")
    np.testing.assert_array_equal(out, np.repeat(x.reshape(4, 32).sum(axis=1), 32))
    run(cuda, [x, out, 8], grid=2, block=64, kernel="warp_sum")  # a distance too short
    assert not np.array_equal(out, np.repeat(x.reshape(4, 32).sum(axis=1), 32))


def test_double_math(cuda):
    n = 200
    x = np.concatenate([RNG.random(n - 8) * 40, [1e-300, 1.0, 2.0, 0.5, 3e300, 7e-310, 1e9, 3.0]])
    out = np.zeros((11, n))
    run(cuda, [x, out, n], grid=2, block=128, kernel="double_math")
    with np.errstate(over="ignore"):
        exact = [
            np.log(x), np.exp(x / 50), np.log2(x), np.log1p(x), np.sqrt(x), 1 / x, x**0.3,
            np.exp2(x / 70), np.expm1(x / 90), np.tanh(x / 10), np.floor(x) + np.fmod(x, 3.0),
        ]  # fmt: skip
    np.testing.assert_allclose(out, exact, rtol=1e-15, atol=0)


def test_float_math(cuda):
    n = 128
    x = (RNG.random(n) * 40).astype(np.float32)
    out = np.zeros((8, n), np.float32)
    run(cuda, [x, out, n], grid=1, block=128, kernel="float_math")
    v = x.astype(np.float64)
    exact = [
        np.log(v), np.exp(v / 50), np.log(v), np.tanh(v / 10), np.sqrt(v), v**-0.5, v**0.3,
        np.log1p(v),
    ]  # fmt: skip
    np.testing.assert_allclose(out, exact, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", [np.int32, np.uint32, np.int64, np.uint64])
def test_integer_division(cuda, kind):
    limits = np.iinfo(kind)
    n = 256
    a = RNG.integers(limits.min, limits.max, n, kind, endpoint=True)
    b = RNG.integers(limits.min, limits.max, n, kind) >> RNG.integers(0, limits.bits - 4, n, kind)
    a[:4] = [limits.min, limits.max, 7, 0]
    b = np.where(b == 0, kind(3), b)
    out = np.zeros((3, n), kind)
    name = f"divide_{'s' if limits.min else 'u'}{limits.bits}"
    run(cuda, [a, b, out, n], grid=2, block=128, kernel=name)
    exact = [_truncated(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    np.testing.assert_array_equal(out[0], np.array([q for q, _ in exact], kind))
    np.testing.assert_array_equal(out[1], np.array([r for _, r in exact], kind))
    np.testing.assert_array_equal(out[2], np.array([_truncated(x, 7)[0] for x in a.tolist()], kind))


def _truncated(x, y):
    quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
    return quotient, x - quotient * y


def test_bit_counts(cuda):
    n = 128
    x = RNG.integers(0, 2**32, n, np.uint32)
    y = RNG.integers(0, 2**64, n, np.uint64) >> RNG.integers(0, 63, n, np.uint64)
    x[:2], y[:2] = [0, 0xFFFFFFFF], [0, 1]
    out = np.zeros((10, n), np.uint32)
    run(cuda, [x, y, out, n], grid=1, block=n, kernel="bit_counts")
    a, b = x.tolist(), y.tolist()
    ffs = lambda v: (v & -v).bit_length()  # noqa: E731
    exact = [
        [v.bit_count() for v in a],
        [32 - v.bit_length() for v in a],
        [ffs(v) for v in a],
        [int(f"{v:032b}"[::-1], 2) for v in a],
        [v.bit_count() for v in b],
        [64 - v.bit_length() for v in b],
        [ffs(v) for v in b],
        [(v * (v ^ 0x5555)) >> 96 for v in b],
        [((((v ^ 77) << 32 | v) << (i % 32)) >> 32) & 0xFFFFFFFF for i, v in enumerate(a)],
        [
            sum((v.to_bytes(4, "little") + i.to_bytes(4, "little"))[s] << 8 * k
                for k, s in enumerate((2, 7, 1, 4)))
            for i, v in enumerate(a)
        ],
    ]  # fmt: skip
    np.testing.assert_array_equal(out, exact)


def test_votes(cuda):
    x = RNG.integers(0, 7, 64).astype(np.int32)
    out = np.zeros((6, 64), np.uint32)
    run(cuda, [x, out], block=64, kernel="votes")
    bit = 1 << np.arange(32)
    for warp in range(2):
        here = slice(32 * warp, 32 * warp + 32)
        w = x[here]
        odd, even = bit[w % 2 == 1].sum(), bit[w % 2 == 0].sum()
        assert odd and even
        exact = [
            np.full(32, bit[w > 2].sum()),
            [bit[w == v].sum() for v in w],
            np.full(32, 2 * (w == 5).any() + (w < 7).all()),
            np.full(32, w.sum()),
            np.full(32, w.min()),
            np.where(w % 2 == 1, odd, w + 1000),
        ]
        np.testing.assert_array_equal(out[:, here], exact)


def test_sync_operations(cuda):
    x = RNG.integers(0, 7, 128).astype(np.int32)
    out = np.zeros((6, 128), np.int32)
    run(cuda, [x, out], block=128, kernel="sync_operations")
    warps = x.reshape(4, 32)
    same = warps[:, :, None] == warps[:, None, :]
    first = same.argmax(axis=2) + 32 * np.arange(4)[:, None]
    odd = (same * (np.arange(32) % 2) << np.arange(32)).sum(axis=2).astype(np.uint32)
    exact = [
        np.full(128, (x > 2).sum()),
        np.full(128, 2 * (x == 5).any() + (x < 7).all()),
        x.reshape(-1, 2)[:, ::-1].reshape(-1),
        first.reshape(-1),
        odd.view(np.int32).reshape(-1),
        np.where(np.arange(128) % 8 == 0, x, np.roll(x, 1)),
    ]
    np.testing.assert_array_equal(out, exact)


def test_early_exit(cuda):
    x = np.arange(64, dtype=np.int32)
    stats = run(cuda, [x], block=64, kernel="early_exit")
    np.testing.assert_array_equal(x[::2], np.arange(62, -1, -2))
    np.testing.assert_array_equal(x[1::2], np.arange(1, 64, 2))
    assert stats.exited_before_barrier == 1
    with pytest.raises(PTXError, match="compiled for 64 threads"):
        run(cuda, [x], block=96, kernel="early_exit")


@pytest.mark.parametrize("which", [0, 1])
def test_generic_addresses(cuda, which):
    x = np.zeros((3, 32), np.int32)
    run(cuda, [x, which], kernel="generic_addresses")
    assert x[:, 0].tolist() == ([0, 7, 8] if which else [2, 5, 5])
    assert (x == x[:, :1]).all()


@pytest.mark.parametrize("which", [0, 1])
def test_memory_at_addresses_of_the_host(cuda, which):
    x, memory = np.zeros((3, 32), np.int32), Memory()
    memory.map(x.ctypes.data, x, "x")
    arguments = [x.ctypes.data.to_bytes(8, "little"), which.to_bytes(4, "little")]
    launch(cuda, memory, arguments, (1, 1, 1), (32, 1, 1), kernel="generic_addresses")
    assert x[:, 0].tolist() == ([0, 7, 8] if which else [2, 5, 5])


def test_compare_and_swap(cuda):
    high, tickets = np.zeros(1), np.zeros(64, np.uint64)
    small, tiny = np.arange(64, dtype=np.int16), np.arange(64, dtype=np.uint8)
    run(cuda, [high, tickets, small, tiny], block=64, kernel="compare_and_swap")
    assert high[0] == 63
    assert sorted(tickets) == list(range(7, 71))
    np.testing.assert_array_equal(small, (np.arange(64) * 3 - 70000).astype(np.int16))
    np.testing.assert_array_equal(tiny, np.arange(64) // 2 + 128)


def test_atomics(cuda):
    n = 500
    x = RNG.integers(5, 1000, n).astype(np.int32)
    counts, best, total = np.zeros(8, np.int32), np.array([2**64 - 1], np.uint64), np.zeros(1)
    run(cuda, [x, counts, best, total, n], grid=4, block=128, kernel="atomics")
    np.testing.assert_array_equal(counts, np.bincount(x & 7, minlength=8))
    assert best[0] == min((int(v) << 20) | i for i, v in enumerate(x))
    assert total[0] == x.sum()


def test_async_copy(cuda):
    x = RNG.random((50, 4), np.float32)
    out = np.zeros((4, 64), np.float32)
    stats = run(cuda, [x, out, 50], block=64, kernel="async_copy")
    np.testing.assert_array_equal(out, np.pad(x, ((0, 14), (0, 0)))[::-1].T)
    assert stats.opcodes["cp.async"] > 0


@pytest.mark.parametrize("stride", [0, 1, 2, 5, 8, 32])
def test_bank_conflicts(cuda, stride):
    out = np.zeros(32, np.int32)
    stats = run(cuda, [out, stride], kernel="strided")
    np.testing.assert_array_equal(out, np.arange(32) * stride)
    ways = max(1, np.gcd(stride, 32)) if stride else 1
    reads = stats.shared_wavefronts - 32  # the writes have no conflicts
    assert (reads, stats.shared_wavefronts_ideal) == (ways, 33)


@pytest.mark.parametrize("stride", [0, 1, 2, 8, 100])
def test_sectors(cuda, stride):
    x, out = np.arange(4000, dtype=np.int32), np.zeros(32, np.int32)
    stats = run(cuda, [x, out, stride], kernel="gather")
    np.testing.assert_array_equal(out, np.arange(32) * stride)
    touched = len({4 * stride * i // 32 for i in range(32)})
    assert (stats.load_requests, stats.load_sectors) == (1, touched)
    assert stats.load_sectors_ideal == (4 if stride else 1)


@pytest.mark.parametrize("name", ["f16", "bf16", "tf32", "f64"])
def test_tensor_core_tile(cuda, name):
    m, n, k = {"tf32": (16, 8, 8), "f64": (8, 8, 4)}.get(name, (16, 8, 16))
    a, b = RNG.standard_normal((m, k)), RNG.standard_normal((n, k))
    start = np.zeros((m, n))
    if name == "f16":
        a, b = a.astype(np.float16), b.astype(np.float16)
        stored = [a, b]
    elif name == "bf16":
        stored = [to_bf16(a), to_bf16(b)]
        a, b = from_bf16(stored[0]), from_bf16(stored[1])
    elif name == "tf32":
        stored = [a.astype(np.float32), b.astype(np.float32)]
        a, b = ((((v.view(np.uint32) + 0x1000) >> 13) << 13).view(np.float32) for v in stored)
    else:
        stored = [a, b]
        start[:, ::2], start[:, 1::2] = 0.5, 0.25
    if m == 16 and k == 16:
        start[:8, ::2], start[:8, 1::2], start[8:, ::2], start[8:, 1::2] = 1, 2, 3, 4
    out = np.zeros((m, n), np.float64 if name == "f64" else np.float32)
    stats = run(cuda, [*stored, out], kernel=f"tile_{name}")
    exact = a.astype(np.float64) @ b.astype(np.float64).T + start
    np.testing.assert_allclose(out, exact, rtol=1e-6, atol=1e-6)
    assert stats.opcodes["mma.sync"] == 1


def test_half_math(cuda):
    x = RNG.standard_normal((32, 2)).astype(np.float16)
    y = to_bf16(RNG.standard_normal((32, 2)))
    out, out2 = np.zeros_like(x), np.zeros_like(y)
    run(cuda, [x, out, y, out2], kernel="half_math")
    v = x.astype(np.float64)
    np.testing.assert_array_equal(out, (v * v + (x + np.float16(1.5))).astype(np.float16))
    v = from_bf16(y)
    inner = from_bf16(to_bf16(v * np.float32(1.5)))
    np.testing.assert_array_equal(out2, to_bf16(v.astype(np.float64) ** 2 + inner))


def test_divergence_and_constants(cuda):
    n = 100
    x = RNG.integers(0, 60, 128).astype(np.int32)
    out = np.zeros(n)
    stats = run(cuda, [x, out, n], grid=2, block=64, kernel="divergent")
    np.testing.assert_array_equal(out, [_divergent_reference(x, x[i]) for i in range(n)])
    assert stats.divergent_branches > 0


def _divergent_reference(x, count):
    table, value = [1.5, -2.25, 3.125, 1e300, 0.1], 0.0
    for j in range(count):
        case = x[j] % 7
        if case == 0:
            value += table[0 if j % 5 == 3 else j % 5]
        elif case == 1:
            value -= 1
        elif case == 2:
            value *= 0.5
            if value > 3:
                continue
        elif case == 3:
            value = -value
        elif case == 4:
            value = abs(value) + j
        elif case == 5:
            value = value * value / 4
        else:
            value += 0.125
        if value > 100:
            value = 99.0
            break
    return value


def test_dynamic_shared_memory(cuda):
    x = np.arange(96, dtype=np.int32)
    run(cuda, [x], block=96, kernel="reverse", shared_bytes=4 * 96)
    np.testing.assert_array_equal(x, np.arange(96)[::-1])
    with pytest.raises(PTXError, match="shared store out of bounds"):
        run(cuda, [x], block=96, kernel="reverse", shared_bytes=4 * 95)


def test_choice_of_entry(cuda):
    x = np.arange(32, dtype=np.int32)
    run(cuda, [x], kernel="scaledILi5E")
    np.testing.assert_array_equal(x, 5 * np.arange(32))
    for wanted in ("scaled", "nothing", None):
        with pytest.raises(PTXError, match="entry"):
            run(cuda, [x], kernel=wanted)


def test_arguments(cuda):
    out = np.zeros(32)
    data = np.int32(3).tobytes() + bytes(4) + np.float64(1.25).tobytes()
    run(cuda, [out, data], kernel="struct_argument")
    assert (out == 3.75).all()
    for args in ([out], [out, data, 1], [out, data[:8]], [1.5, data], [bytes(4), data]):
        with pytest.raises(PTXError, match="argument"):
            run(cuda, args, kernel="struct_argument")


def test_calls(cuda):
    x = RNG.random(32)
    exact = [_horner(v, 3) + _horner(2.0, i % 5) for i, v in enumerate(x)]
    run(cuda, [x], kernel="with_calls")
    np.testing.assert_allclose(x, exact, rtol=1e-15)


def _horner(x, n):
    y = 1.0
    for i in range(n):
        y = y * x + i
    return y
