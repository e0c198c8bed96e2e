"""Single instructions on corner cases."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from . import Memory, PTXError, launch, parse
from .floats import fma64
from .formats import dtype_of
from .testing import compute, from_bf16, run, single_operation

RNG = np.random.default_rng(9)
INT_MIN, INT_MAX = -(2**31), 2**31 - 1
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1
INF, NAN = np.inf, np.nan

# body, types of the inputs, columns of inputs, type of the result, results
INTEGER_CASES = {
    "mul.hi.s64": (
        "mul.hi.s64 %out, %a, %b;", "s64 s64",
        [[LONG_MIN, LONG_MIN, -1, LONG_MAX, -1], [LONG_MIN, 1, 1, LONG_MAX, -1]],
        "s64", [2**62, -1, -1, 2**62 - 1, 0],
    ),
    "mul.hi.u64": (
        "mul.hi.u64 %out, %a, %b;", "u64 u64", [[2**64 - 1, 2**63, 3], [2**64 - 1, 2, 5]],
        "u64", [2**64 - 2, 1, 0],
    ),
    "mul.hi.s32": (
        "mul.hi.s32 %out, %a, %b;", "s32 s32", [[INT_MIN, -1, 65536], [INT_MIN, 1, 65536]],
        "s32", [2**30, -1, 1],
    ),
    "mul.lo.s32": (
        "mul.lo.s32 %out, %a, %b;", "s32 s32", [[INT_MIN, 65537], [-1, 65537]],
        "s32", [INT_MIN, 131073],
    ),
    "mad.wide.s32": (
        "mad.wide.s32 %out, %a, %b, %c;", "s32 s32 s64", [[INT_MIN, -3], [INT_MIN, 5], [-1, 100]],
        "s64", [2**62 - 1, 85],
    ),
    "shl": ("shl.b32 %out, %a, %b;", "u32 u32", [[1, 1, 3, 3], [31, 32, 33, 2**31]], "u32",
            [2**31, 0, 0, 0]),
    "shr.u": ("shr.u32 %out, %a, %b;", "u32 u32", [[2**31, 2**31], [31, 32]], "u32", [1, 0]),
    "shr.s": ("shr.s32 %out, %a, %b;", "s32 u32", [[-8, -8, 8, -8], [1, 40, 40, 2**31]], "s32",
              [-4, -1, 0, -1]),
    "shr.s64": ("shr.s64 %out, %a, %b;", "s64 u32", [[LONG_MIN, LONG_MIN], [63, 64]], "s64",
                [-1, -1]),
    "div": ("div.s32 %out, %a, %b;", "s32 s32", [[7, -7, 7, -7, INT_MIN], [-2, 2, 2, -2, -1]],
            "s32", [-3, -3, 3, 3, INT_MIN]),
    "rem": ("rem.s32 %out, %a, %b;", "s32 s32", [[7, -7, 7, -7, INT_MIN], [-2, 2, 2, -2, -1]],
            "s32", [1, -1, 1, -1, 0]),
    "rem.s64": ("rem.s64 %out, %a, %b;", "s64 s64", [[LONG_MIN, LONG_MIN], [10, -1]], "s64",
                [-8, 0]),
    "bfe.s": (
        "bfe.s32 %out, %a, %b, %c;", "s32 u32 u32",
        [[0b1100, 0b0100, -1, -256, -1, INT_MIN, 5], [2, 2, 0, 8, 40, 28, 0],
         [2, 2, 0, 32, 4, 8, 256]],
        "s32", [-1, 1, 0, -1, -1, -8, 0],
    ),
    "bfe.u": ("bfe.u32 %out, %a, %b, %c;", "u32 u32 u32",
              [[0xABCD1234, 0xABCD1234, 7], [8, 28, 33], [8, 8, 2]], "u32", [0x12, 0xA, 0]),
    "bfi": ("bfi.b32 %out, %a, %b, %c, %d;", "u32 u32 u32 u32",
            [[0xFF, 0xFF, 0xFF], [0, 0x11111111, 5], [4, 28, 32], [4, 8, 8]], "u32",
            [0xF0, 0xF1111111, 5]),
    "bfind.s": ("bfind.s32 %out, %a;", "s32", [[0, -1, 5, -5]], "s32", [-1, -1, 2, 2]),
    "clz": ("clz.b64 %out, %a;", "u64", [[0, 1, 2**63]], "u32", [64, 63, 0]),
    "brev": ("brev.b64 %out, %a;", "u64", [[1, 2**63 + 2]], "u64", [2**63, 2**62 + 1]),
    "sad": ("sad.s32 %out, %a, %b, %c;", "s32 s32 s32", [[3, -3], [-4, 4], [10, 20]], "s32",
            [17, 27]),
    "lop3": ("lop3.b32 %out, %a, %b, %c, 0xCA;", "u32 u32 u32", [[0xF0], [0xAA], [0x55]], "u32",
             [0xA5]),
    "prmt": ("prmt.b32 %out, %a, %b, %c;", "u32 u32 u32",
             [[0x83828180, 0x03020100], [0x07060504, 0x87868584], [0x7B30, 0xF8C5]], "u32",
             [0x07FF8380, 0xFF00FF85]),
    "prmt.b4e": ("prmt.b32.b4e %out, %a, %b, 1;", "u32 u32", [[0x03020100], [0x07060504]], "u32",
                 [0x06070001]),
    "prmt.rc16": ("prmt.b32.rc16 %out, %a, %b, 1;", "u32 u32", [[0x03020100], [0]], "u32",
                  [0x03020302]),
    "shf.l.clamp": ("shf.l.clamp.b32 %out, %a, %b, %c;", "u32 u32 u32",
                    [[0x80000000] * 3, [1] * 3, [1, 32, 40]], "u32", [3, 0x80000000, 0x80000000]),
    "shf.r.wrap": ("shf.r.wrap.b32 %out, %a, %b, %c;", "u32 u32 u32", [[2, 2], [1, 1], [1, 33]],
                   "u32", [0x80000001, 0x80000001]),
    "carry": (
        "mov.b64 {%t0, %t1}, %a; mov.b64 {%t2, %t3}, %b; add.cc.u32 %t4, %t0, %t2;"
        "addc.u32 %t5, %t1, %t3; mov.b64 %out, {%t4, %t5};",
        "u64 u64", [[0xFFFFFFFF, 2**64 - 1], [1, 2]], "u64", [2**32, 1],
    ),
    "borrow": (
        "mov.b64 {%t0, %t1}, %a; mov.b64 {%t2, %t3}, %b; sub.cc.u32 %t4, %t0, %t2;"
        "subc.u32 %t5, %t1, %t3; mov.b64 %out, {%t4, %t5};",
        "u64 u64", [[2**32, 0], [1, 1]], "u64", [2**32 - 1, 2**64 - 1],
    ),
    "cvt.sat": ("cvt.sat.s8.s32 %t0, %a; cvt.s32.s8 %out, %t0;", "s32", [[300, -300, 5]], "s32",
                [127, -128, 5]),
    "cvt.narrow": ("cvt.s8.s32 %t0, %a; cvt.s32.s8 %out, %t0;", "s32", [[300, 200, -1]], "s32",
                   [44, -56, -1]),
    "setp.pair": ("setp.lt.u32 %p|%q, %a, %b; selp.u32 %out, 1, 2, %q;", "u32 u32",
                  [[1, 2], [2, 1]], "u32", [2, 1]),
    "setp.and": ("setp.lt.s32 %p, %a, 5; setp.gt.and.s32 %q, %a, 0, !%p; selp.u32 %out, 1, 0, %q;",
                 "s32", [[9, 3, -1]], "u32", [1, 0, 0]),
}  # fmt: skip

FLOAT_CASES = {
    "rni": ("cvt.rni.s32.f32 %out, %a;", "f32", [[0.5, 1.5, -2.5, 1e20, -1e20, NAN]], "s32",
            [0, 2, -2, INT_MAX, INT_MIN, 0]),
    "rzi": ("cvt.rzi.u32.f64 %out, %a;", "f64", [[-0.9, 3.99, 4294967295.5, 5e9]], "u32",
            [0, 3, 2**32 - 1, 2**32 - 1]),
    "rmi": ("cvt.rmi.s64.f64 %out, %a;", "f64", [[-0.5, 2.0**62, 1e19, -INF]], "s64",
            [-1, 2**62, LONG_MAX, LONG_MIN]),
    "rpi": ("cvt.rpi.f32.f32 %out, %a;", "f32", [[0.2, -0.2, 2.0]], "f32", [1, -0.0, 2]),
    "sat": ("cvt.sat.f32.f32 %out, %a;", "f32", [[-1, 0.25, 7, NAN]], "f32", [0, 0.25, 1, 0]),
    "add.rz": ("add.rz.f32 %out, %a, %b;", "f32 f32",
               [[1, -1], [2.0**-24 * 1.5, -(2.0**-24) * 1.5]], "f32", [1, -1]),
    "add.rp": ("add.rp.f32 %out, %a, %b;", "f32 f32", [[1, 1], [2.0**-80, 0]], "f32",
               [1 + 2.0**-23, 1]),
    "fma.rm": ("fma.rm.f32 %out, %a, %b, %c;", "f32 f32 f32",
               [[1, 1], [1, 1], [-(2.0**-60), 2.0**-60]], "f32", [1 - 2.0**-24, 1]),
    "min": ("min.f32 %out, %a, %b;", "f32 f32", [[NAN, 1, 0.0, NAN], [2, NAN, -0.0, NAN]], "f32",
            [2, 1, -0.0, NAN]),
    "max": ("max.f64 %out, %a, %b;", "f64 f64", [[NAN, -0.0], [2, 0.0]], "f64", [2, 0.0]),
    "max of three": ("max.f32 %out, %a, %b, %c;", "f32 f32 f32",
                     [[NAN, 3, 1, NAN], [2, NAN, -INF, NAN], [1, 4, 0, NAN]], "f32",
                     [2, 4, 1, NAN]),
    "max.NaN of three": ("max.NaN.f32 %out, %a, %b, %c;", "f32 f32 f32",
                         [[1, 5], [2, 3], [NAN, 4]], "f32", [NAN, 5]),
    "max.NaN": ("max.NaN.f32 %out, %a, %b;", "f32 f32", [[NAN, 1], [2, 3]], "f32", [NAN, 3]),
    "copysign": ("copysign.f32 %out, %a, %b;", "f32 f32", [[-0.0, 2], [3, -4]], "f32", [-3, 4]),
    "ftz": ("mul.ftz.f32 %out, %a, %b;", "f32 f32",
            [[2.0**-130, -(2.0**-100)], [2.0**30, 2.0**-30]], "f32", [0, -0.0]),
    "f16": ("cvt.rn.f16.f32 %out, %a;", "f32",
            [[1 + 2.0**-11, 1 + 3 * 2.0**-11, 65519, 65520, 2.0**-25, 1.5 * 2.0**-25]], "f16",
            [1, 1 + 2.0**-9, 65504, INF, 0, 2.0**-24]),
    "f16.add": ("add.f16 %out, %a, %b;", "f16 f16", [[2048, 65504, 1], [1, 32, INF]], "f16",
                [2048, INF, INF]),
    "slct": ("slct.f32.f32 %out, %a, %b, %c;", "f32 f32 f32",
             [[1, 1, 1], [2, 2, 2], [-1, -0.0, NAN]], "f32", [2, 1, 2]),
    "rcp64": ("rcp.rn.f64 %out, %a;", "f64", [[3, -0.0]], "f64", [1 / 3, -INF]),
}  # fmt: skip


@pytest.mark.parametrize("name", [*INTEGER_CASES, *FLOAT_CASES])
def test_instruction(name):
    body, kinds, columns, kind, expected = (INTEGER_CASES | FLOAT_CASES)[name]
    result = compute(body, kinds.split(), columns, kind)
    wanted = np.array(expected, result.dtype)
    np.testing.assert_array_equal(result, wanted)
    if kind[0] == "f":
        np.testing.assert_array_equal(np.signbit(result), np.signbit(wanted))


UNORDERED = ["equ", "neu", "ltu", "leu", "gtu", "geu", "nan"]


@pytest.mark.parametrize("comparison", ["eq", "ne", "lt", "le", "gt", "ge", "num", *UNORDERED])
def test_comparison_with_nan(comparison):
    body = f"setp.{comparison}.f32 %p, %a, %b; selp.u32 %out, 1, 0, %p;"
    result = compute(body, ["f32", "f32"], [[1, 2, 2, NAN, NAN], [2, 1, 2, 1, NAN]], "u32")
    ordered = {
        "eq": [0, 0, 1], "ne": [1, 1, 0], "lt": [1, 0, 0], "le": [1, 0, 1], "gt": [0, 1, 0],
        "ge": [0, 1, 1], "num": [1, 1, 1], "nan": [0, 0, 0],
    }  # fmt: skip
    unordered = comparison in UNORDERED
    plain = comparison.removesuffix("u")
    np.testing.assert_array_equal(result, [*ordered[plain], unordered, unordered])


def test_bf16_rounding():
    values = [1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-20, 3.4e38, -INF, 2.0**-133, NAN]
    body = "cvt.rn.bf16.f32 %out, %a;"
    bits = compute(body, ["f32"], [values], "b16")
    exact = [1, 1 + 2.0**-6, 1 + 2.0**-7, INF, -INF, 2.0**-133, NAN]
    np.testing.assert_array_equal(from_bf16(bits), np.array(exact, np.float32))
    body = "cvt.rn.bf16x2.f32 %out, %a, %b;"
    packed = compute(body, ["f32", "f32"], [[1, -2], [3, 0.5]], "b32")
    np.testing.assert_array_equal(packed, [0x3F804040, 0xC0003F00])


def test_fused_multiply_add_rounds_once():
    x = np.concatenate([RNG.standard_normal(400), RNG.standard_normal(100) * 1e-160, [1e200, 0.0]])
    y = np.concatenate([RNG.standard_normal(400), RNG.standard_normal(100) * 1e-160, [1e200, -1.0]])
    noise = 1 + RNG.integers(-3, 3, x.size) * 2.0**-52
    with np.errstate(all="ignore"):
        z = -(x * y) * np.where(np.arange(x.size) % 2, noise, RNG.standard_normal(x.size))
        z[-2] = -1e308
        result = fma64(x, y, z)
    for a, b, c, got in zip(x[:-2], y, z, result, strict=False):
        assert got == float(Fraction(a) * Fraction(b) + Fraction(c))
    assert result[-2] == INF
    columns = [x[:32], y[:32], z[:32]]
    executed = compute("fma.rn.f64 %out, %a, %b, %c;", ["f64"] * 3, columns, "f64")
    np.testing.assert_array_equal(executed, result[:32])


REFUSED = {
    "opcode": "nonsense.b32 %t0, %t1;",
    "modifier": "add.strange.s32 %t0, %lane, 1;",
    "rounding": "div.rz.f64 %w0, %w1, %w2;",
    "local": "ld.local.u32 %t0, [%at];",
    "register": "add.s32 %t0, %t1, 1;",
    "undeclared": "add.s32 %t0, %missing, 1;",
    "label": "bra nowhere;",
    "call": "call.uni printf, (%t0);",
    "end": "bra.uni last; last:",
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusal_names_the_line(name):
    text = single_operation("mov.u32 %out, %lane;\n\n" + REFUSED[name], ["u32"], "u32")
    if name == "end":
        text = text.replace("ret;", "")
    number = next(i for i, line in enumerate(text.split("\n"), 1) if REFUSED[name] in line)
    mem = Memory()
    args = [mem.add(np.zeros(32, np.uint32)) for _ in range(2)]
    with pytest.raises(PTXError, match="past its end" if name == "end" else f"line {number}"):
        launch(text, mem, args, (1, 1, 1), (32, 1, 1))


def test_local_memory_is_refused():
    text = single_operation(".local .align 4 .b8 depot[16]; mov.u32 %out, %lane;", ["u32"], "u32")
    parse(text)
    with pytest.raises(PTXError, match="one uses local memory: .local .align 4 .b8 depot"):
        launch(text, Memory(), [0, 0], (1, 1, 1), (32, 1, 1))


INTEGER_OPERATIONS = {
    "add.s32": lambda a, b, c: a + b,
    "sub.s64": lambda a, b, c: a - b,
    "mul.lo.u64": lambda a, b, c: a * b,
    "mul.hi.s32": lambda a, b, c: a * b >> 32,
    "mul.hi.u32": lambda a, b, c: a * b >> 32,
    "mul.hi.s64": lambda a, b, c: a * b >> 64,
    "mul.hi.u64": lambda a, b, c: a * b >> 64,
    "mad.lo.s32": lambda a, b, c: a * b + c,
    "mad.hi.s32": lambda a, b, c: (a * b >> 32) + c,
    "min.s64": lambda a, b, c: min(a, b),
    "max.u32": lambda a, b, c: max(a, b),
    "sad.u32": lambda a, b, c: abs(a - b) + c,
}


@pytest.mark.parametrize("name", INTEGER_OPERATIONS)
def test_random_integers(name):
    kind = name.rpartition(".")[2]
    limits = np.iinfo(dtype_of(kind))
    columns = RNG.integers(limits.min, limits.max, (3, 256), limits.dtype, endpoint=True)
    columns[:, :4] = [limits.min, limits.max, 0, 1]
    columns[1, :4] = columns[1, 3::-1]
    three = name.startswith(("mad", "sad"))
    body = f"{name} %out, %a, %b{', %c' if three else ''};"
    result = compute(body, [kind] * 3, list(columns), kind)
    for a, b, c, got in zip(*columns.tolist(), result.tolist(), strict=True):
        assert (INTEGER_OPERATIONS[name](a, b, c) - got) % (1 << limits.bits) == 0


def test_mismatched_barriers():
    body = "setp.lt.u32 %p, %lane, 32; @%p bar.sync 0; @!%p bar.sync 1; mov.u32 %out, 1;"
    with pytest.raises(PTXError, match="deadlock: warps wait at barriers in lines"):
        compute(body, ["u32"], [np.arange(64)], "u32")


def test_branch_table():
    body = """
    table: .branchtargets zero, one, two;
    and.b32 %t0, %a, 3; mov.u32 %out, 9; setp.eq.u32 %p, %t0, 3; @%p bra done;
    brx.idx %t0, table;
    zero: mov.u32 %out, 10; bra.uni done;
    one: mov.u32 %out, 11; bra.uni done;
    two: add.u32 %out, %out, 3;
    done:
    """
    result = compute(body, ["u32"], [np.arange(8)], "u32")
    np.testing.assert_array_equal(result, [10, 11, 12, 9] * 2)


def test_barrier_reduction():
    body = "setp.lt.u32 %p, %a, 3; bar.red.popc.u32 %out, 0, %p;"
    text = single_operation(body, ["u32"], "u32")
    mem, x, out = Memory(), np.arange(96, dtype=np.uint32) % 10, np.zeros(96, np.uint32)
    launch(text, mem, [mem.add(x), mem.add(out)], (1, 1, 1), (96, 1, 1))
    assert (out == np.count_nonzero(x < 3)).all()


STORE_MATRICES = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry one(.param .u64 words, .param .u64 out) {
.shared .align 16 .b8 tile[512];
.reg .b32 %lane, %base, %row, %w<4>; .reg .b64 %from, %to, %step;
mov.u32 %lane, %tid.x;
ld.param.u64 %from, [words]; mul.wide.u32 %step, %lane, 16; add.s64 %from, %from, %step;
ld.global.v4.b32 {%w0, %w1, %w2, %w3}, [%from];
mov.u32 %base, tile; shl.b32 %row, %lane, 4; add.u32 %base, %base, %row;
stmatrix.sync.aligned.m8n8.x4LAYOUT.shared.b16 [%base], {%w0, %w1, %w2, %w3};
bar.warp.sync 0xffffffff;
ld.shared.v4.b32 {%w0, %w1, %w2, %w3}, [%base];
ld.param.u64 %to, [out]; add.s64 %to, %to, %step;
st.global.v4.b32 [%to], {%w0, %w1, %w2, %w3};
ret; }
"""


@pytest.mark.parametrize("layout", ["", ".trans"])
def test_stmatrix(layout):
    """Lane l holds row l // 4 and columns 2 (l % 4), 2 (l % 4) + 1 of each of four matrices, or the
    same of their transposes; lane 8 i + r has the address of row r of matrix i."""
    matrices = RNG.integers(0, 2**16, (4, 8, 8)).astype(np.uint16)
    held = matrices.swapaxes(1, 2) if layout else matrices
    words = np.ascontiguousarray(held).reshape(4, 32, 2).view(np.uint32)[..., 0]  # [matrix, lane]
    out = np.zeros((32, 4), np.uint32)
    run(STORE_MATRICES.replace("LAYOUT", layout), [np.ascontiguousarray(words.T), out])
    np.testing.assert_array_equal(out.view(np.uint16).reshape(4, 8, 8), matrices)


HALVES = ".reg .b16 %h<4>; .reg .b32 %pair; cvt.u16.u32 %h1, %a; "


def test_a_half_that_nobody_writes_may_be_packed_and_shows_if_it_is_used():
    body = HALVES + "mov.b32 %pair, {%h1, %h2}; mov.b32 %out, %pair;"
    x, out = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    run(single_operation(body, ["u32"], "u32"), [x, out])
    assert (out == x + 0xFFFF0000).all()


def test_a_half_that_nobody_writes_may_not_be_computed_with():
    body = HALVES + "add.u16 %h3, %h1, %h2; cvt.u32.u16 %out, %h3;"
    x = np.zeros(32, np.uint32)
    with pytest.raises(PTXError, match="read of register .*h2 before it is written"):
        run(single_operation(body, ["u32"], "u32"), [x, x.copy()])
