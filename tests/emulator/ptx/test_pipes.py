"""What a launch says of its work: parts of the processor, operations, and the cycles of a warp."""

import numpy as np
import pytest

from emulator.ptx import Memory, launch
from emulator.ptx.pipes import LATENCY

HEAD = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p)
{
.reg .pred %p<4>;
.reg .b32 %r<8>;
.reg .f32 %f<16>;
.reg .f64 %d<4>;
.reg .b64 %rd<4>;
ld.param.u64 %rd1, [p];
ld.global.f32 %f1, [%rd1];
"""


def run(body: str, warps: int = 1):
    memory, x = Memory(), np.ones(64, np.float32)
    text = HEAD + body + "\nret;\n}\n"
    sizes = {"grid": (1, 1, 1), "block": (32 * warps, 1, 1)}
    return launch(text, memory, [memory.add(x)], **sizes, timed=True)


def chain(n: int) -> str:
    return "\n".join(f"fma.rn.f32 %f{i + 1}, %f{i}, %f{i}, %f{i};" for i in range(1, n + 1))


def test_instructions_are_counted_by_the_part_that_executes_them():
    stats = run("fma.rn.f32 %f2, %f1, %f1, %f1;\nex2.approx.f32 %f3, %f2;\n", warps=2)
    assert stats.pipes["fp32"] == stats.pipes["special"] == stats.pipes["global"] == 2
    assert stats.operations == {"fp32": 2 * 64, "special": 2 * 32, "global": 0, "control": 0}
    assert sum(stats.pipes.values()) == stats.instructions


def test_a_double_and_an_integer_have_parts_of_their_own():
    stats = run(
        "cvt.f64.f32 %d1, %f1;\nadd.f64 %d2, %d1, %d1;\nmov.u32 %r1, 3;\nadd.u32 %r2, %r1, %r1;"
    )
    assert stats.pipes["fp64"] == 2 and stats.pipes["integer"] == 1
    assert stats.operations["fp64"] == 32


@pytest.mark.parametrize("length", [1, 4, 10])
def test_a_chain_waits_for_each_of_its_links(length):
    alone, chained = run(""), run(chain(length))
    # The first waits for the load, each for the one before; the last result is not awaited.
    assert chained.cycles_of_a_warp >= LATENCY["global"] + (length - 1) * LATENCY["fp32"]
    assert chained.cycles_of_a_warp <= alone.cycles_of_a_warp + LATENCY["global"] + 4 * length + 4


def test_what_does_not_depend_is_not_waited_for():
    independent = "\n".join(f"fma.rn.f32 %f{i}, %f1, %f1, %f1;" for i in range(2, 10))
    assert run(independent).cycles_of_a_warp < run(chain(8)).cycles_of_a_warp


def test_a_load_ahead_hides_what_a_load_in_time_shows():
    """Two steps of a loop: the address of the second load depends on the first, or does not."""
    dependent = "cvt.rzi.u64.f32 %rd2, %f1;\nadd.u64 %rd3, %rd1, 64;\nand.b64 %rd2, %rd2, 0;\n"
    dependent += "add.u64 %rd3, %rd3, %rd2;\nld.global.f32 %f2, [%rd3];\nadd.f32 %f3, %f2, %f1;"
    ahead = "ld.global.f32 %f2, [%rd1+64];\nadd.f32 %f3, %f2, %f1;"
    assert run(dependent).cycles_of_a_warp > 2 * LATENCY["global"]
    assert run(ahead).cycles_of_a_warp < 2 * LATENCY["global"]


def test_the_longest_warp_is_the_one_that_is_timed():
    """One warp of four goes through ten links more."""
    body = "mov.u32 %r1, %tid.x;\nshr.u32 %r2, %r1, 5;\nsetp.ne.u32 %p1, %r2, 2;\n@%p1 bra END;\n"
    assert run(body + chain(10) + "\nEND:", warps=4).cycles_of_a_warp > 10 * LATENCY["fp32"]
    assert run(body + chain(10) + "\nEND:", warps=2).cycles_of_a_warp < 10 * LATENCY["fp32"]


def test_what_a_block_has_loaded_comes_from_its_cache():
    again = "add.u64 %rd2, %rd1, %rd3;\nld.global.f32 %f2, [%rd2];\nadd.f32 %f3, %f2, %f2;"
    dependent = "cvt.rzi.u64.f32 %rd3, %f1;\nand.b64 %rd3, %rd3, 0;\n"
    other = dependent + "add.u64 %rd3, %rd3, 128;\n"
    warm, cold = run(dependent + again), run(other + again)
    assert LATENCY["global"] < warm.cycles_of_a_warp < 1.3 * LATENCY["global"]
    assert cold.cycles_of_a_warp > 2 * LATENCY["global"]
