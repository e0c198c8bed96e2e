"""What an instruction asks of a processor: which of its parts executes it, how many operations it
is worth, and how long a warp waits for its result."""

from __future__ import annotations

import re

from .program import Instruction

WARP = 32
SPECIAL_FUNCTIONS = {"ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh", "div"}
ARITHMETIC = {"add": 1, "sub": 1, "mul": 1, "fma": 2, "mad": 2, "min": 1, "max": 1, "neg": 1}
# Cycles until a result can be used, as microbenchmarks of sm_80 have them; global: from DRAM.
LATENCY = {
    "fp32": 4,
    "fp64": 8,
    "integer": 4,
    "control": 2,
    "special": 18,
    "tensor": 33,
    "shared": 29,
    "shuffle": 23,
    "barrier": 20,
    "global": 480,
}
CACHED = 33  # of a load that the multiprocessor's own cache serves


def pipe_of(instruction: Instruction) -> str:
    """A key of LATENCY."""
    name, words = instruction.name, instruction.modifiers
    if name in ("mma", "wgmma"):
        return "tensor"
    if name == "cp":
        return "control" if "commit_group" in words else "global"
    if name in ("ld", "st", "atom", "red"):
        spaces = {word.partition("::")[0] for word in words}
        if "shared" in spaces:
            return "shared"
        # Parameters are constants, which instructions read by themselves.
        return "control" if spaces & {"param", "const"} else "global"
    if name in ("ldmatrix", "stmatrix"):
        return "shared"
    if name in ("shfl", "vote", "match", "redux"):
        return "shuffle"
    if name in ("bar", "barrier"):
        return "barrier"
    if name in ("bra", "brx", "exit", "ret", "call", "mov", "membar", "fence", "griddepcontrol"):
        return "control"
    if "f64" in words:
        return "fp64"
    if name in SPECIAL_FUNCTIONS:
        return "special"
    is_float = any(word in ("f32", "f16", "f16x2", "bf16", "bf16x2") for word in words)
    return "fp32" if is_float else "integer"


def operations_of(instruction: Instruction) -> int:
    """Floating-point operations of a warp; a multiply-add counts as two."""
    words = instruction.modifiers
    if instruction.name == "mma":
        shape = next(word for word in words if re.fullmatch(r"m\d+n\d+k\d+", word))
        m, n, k = map(int, re.findall(r"\d+", shape))
        return 2 * m * n * k
    if not any(re.fullmatch(r"b?f(16|32|64)(x2)?", word) for word in words):
        return 0
    pairs = 2 if any(word.endswith("x2") for word in words) else 1
    each = 1 if instruction.name in SPECIAL_FUNCTIONS else ARITHMETIC.get(instruction.name, 0)
    return WARP * pairs * each


def cycles_of_a_warp(
    steps: list, trace: list[tuple[int, int]], cold: dict[int, float] | None = None
) -> int:
    """How long a warp takes that has a processor for itself.

    `trace` lists the stretches (first, end) of steps that it went through, from branch to branch.
    Within a stretch instructions start in the best order, at most one a cycle, each as soon as its
    operands are there: compilers order them so. No instruction starts before the branch that leads
    to it, but results may be awaited across branches. `cold` is the share of a step's loads that
    the cache does not serve: all of them unless it says otherwise.
    """
    ready: dict[str, int] = {}
    now = copied = 0
    for first, end in trace:
        last = now
        for place, step in enumerate(steps[first:end], start=first):
            start = max((ready[name] for name in step.reads if name in ready), default=0)
            start = max(start, now)
            wait = LATENCY[step.pipe]
            if cold and place in cold:
                wait = round(CACHED + cold[place] * (wait - CACHED))
            if "cp.async.wait" in step.text:
                start = max(
                    start, copied
                )  # at most: those of the last group may still be under way
            elif step.pipe == "global" and step.key == "cp.async":
                copied = max(copied, start + wait)
            for name in step.writes:
                ready[name] = start + wait
            last = max(last, start + (wait if step.pipe == "barrier" else 0))
        now = max(now + end - first, last + 1)
    return now
