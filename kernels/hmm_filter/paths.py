"""Which way a call of hmm_filter goes; the ways are described in __init__.py."""

import math
from typing import NamedTuple

import triton

from ..contracts import HMM_FILTER

PATHS = ("rows", "dot", "chunks")
MAX_STATES = HMM_FILTER.backends["triton"].limits["num_states"]
SMALL_STATES = 16
DOT_SEQUENCES = 2048  # fewer do not fill a GPU 16 at a time
CHUNKED_STEPS = 2048
CHUNKED_ROWS = 16384  # pieces times states that run side by side


class Plan(NamedTuple):
    path: str
    chunk: int  # steps of a piece
    chunks: int  # pieces of a sequence


def plan(B: int, T: int, S: int, own_transition: bool, path: str | None = None) -> Plan:
    """Which way a call goes; `path` insists on one."""
    if S > MAX_STATES:
        raise ValueError(f"hmm_filter: {S} states are more than {MAX_STATES}")
    chunks = math.isqrt(2 * T)
    if path is None:
        if S <= SMALL_STATES and T >= CHUNKED_STEPS and B * chunks * S <= CHUNKED_ROWS:
            path = "chunks"
        elif S > SMALL_STATES and not own_transition and B >= DOT_SEQUENCES:
            path = "dot"
        else:
            path = "rows"
    if path == "dot" and (own_transition or S <= SMALL_STATES):
        raise ValueError(f"hmm_filter: path dot needs a shared transition of > {SMALL_STATES} rows")
    if path == "chunks" and S > SMALL_STATES:
        raise ValueError(f"hmm_filter: path chunks takes up to {SMALL_STATES} states, got {S}")
    if path not in PATHS:
        raise ValueError(f"hmm_filter: path {path!r} is not one of {PATHS}")
    if path != "chunks":
        return Plan(path, T, 1)
    chunk = triton.cdiv(T, chunks)
    return Plan(path, chunk, triton.cdiv(T, chunk))
