"""Which way a call of hmm_filter goes; the ways are described in __init__.py.

Few states go as whole sequences ("rows") or in pieces ("chunks"), whichever is estimated to be done
first. A kernel in which every scheduler of the GPU has w warps takes, for each of its steps,
    max(CHAIN, w * issue) cycles,
because a warp waits CHAIN cycles for its own step before, and each warp-step takes `issue` slots of
a scheduler. Rows of a warp are side by side, so fewer of them would only make more warps wait for
chains of the same length: what helps a small batch is a shorter chain, that is, pieces. With N of
them
    rows:    T steps
    chunks:  T / N steps of S rows for each piece, N * SCAN cycles, T / N steps of a row for each
             piece, and the LAUNCHES of two more kernels.
The estimate depends on nothing but sizes and the number of multiprocessors, so that equal calls on
equal devices have equal results. `issue` was counted in the loop's PTX for sm_80, and so were CHAIN
and SCAN, for 5 states in float32: the executor adds up the latencies of what one warp waits for
(`warp_cycles` in kernels/counted_work.json). LAUNCHES is an estimate. None has been measured on a
GPU.
"""

import functools
import math
from typing import NamedTuple

import torch
import triton

from ..contracts import HMM_FILTER

PATHS = ("rows", "dot", "chunks")
MAX_STATES = HMM_FILTER.backends["triton"].limits["num_states"]
FEW_STATES = 16
DOT_SEQUENCES = 2048  # fewer do not fill a GPU 16 at a time
CHAIN = 158  # cycles from one step to the next
SCAN = 960  # from one piece to the next: a logarithm, an exponential and a division in float64
LAUNCHES = 6000  # cycles that two more kernels take to start
SCHEDULERS = 4  # of a multiprocessor
PROCESSORS = 108  # where there is no GPU to ask: those of an A100


class Plan(NamedTuple):
    path: str
    chunk: int  # steps of a piece
    chunks: int  # pieces of a sequence


def plan(
    B: int,
    T: int,
    S: int,
    own_transition: bool,
    path: str | None = None,
    processors: int = PROCESSORS,
) -> Plan:
    """Which way a call goes; `path` insists on one."""
    if S > MAX_STATES:
        raise ValueError(f"hmm_filter: {S} states are more than {MAX_STATES}")
    chunks = 1
    if S <= FEW_STATES and path in (None, "chunks"):
        chunks = best_pieces(B, T, S, processors, insist=path is not None)
    if path is None:
        many = S > FEW_STATES and not own_transition and B >= DOT_SEQUENCES
        path = "chunks" if chunks > 1 else "dot" if many else "rows"
    if path == "dot" and (own_transition or S <= FEW_STATES):
        raise ValueError(f"hmm_filter: path dot needs a shared transition of > {FEW_STATES} rows")
    if path == "chunks" and S > FEW_STATES:
        raise ValueError(f"hmm_filter: path chunks takes up to {FEW_STATES} states, got {S}")
    if path not in PATHS:
        raise ValueError(f"hmm_filter: path {path!r} is not one of {PATHS}")
    if path != "chunks":
        return Plan(path, T, 1)
    chunk = triton.cdiv(T, chunks)
    return Plan(path, chunk, triton.cdiv(T, chunk))


@functools.lru_cache(maxsize=4096)
def best_pieces(B: int, T: int, S: int, processors: int, insist: bool = False) -> int:
    """Into how many pieces to cut sequences of few states; 1 if whole ones are done first, unless
    one insists on pieces."""
    counts = [2**i for i in range(1, max(2, T.bit_length()))]
    best = min(counts, key=lambda pieces: cycles(B, T, S, pieces, processors))
    if insist or cycles(B, T, S, best, processors) < cycles(B, T, S, 1, processors):
        return best
    return 1


def cycles(B: int, T: int, S: int, pieces: int, processors: int) -> float:
    """The estimate for a call of few states."""
    per_warp = 32 // max(4, triton.next_power_of_2(S))
    issue = 42 + 3 * S  # a shuffle, an addition and a multiply-add for each state

    def step(rows: int) -> float:
        warps = math.ceil(rows / per_warp / (SCHEDULERS * processors))
        return max(CHAIN, warps * issue)

    if pieces == 1:
        return T * step(B)
    steps = math.ceil(T / pieces)
    return steps * (step(B * pieces * S) + step(B * pieces)) + pieces * SCAN + LAUNCHES


@functools.cache
def _processors(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count


def processors(device: torch.device) -> int:
    if device.type != "cuda":
        return PROCESSORS
    return _processors(torch.cuda.current_device() if device.index is None else device.index)
