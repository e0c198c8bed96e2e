"""What attention captures: how it is asked for, and how it is returned."""

import operator
from collections.abc import Collection, Sequence

from torch import Tensor

from bwt.kernels.contracts import ATTENTION
from bwt.kernels.results import Captures
from bwt.reference.attention import AttentionOutput, CapturedAttention, TopK

OP = ATTENTION.op
PLAIN = ("weights", "entropy")
NAMES = (*PLAIN, "received", "max_logit", "argmax")
TOP_K = "top_k="
MOST_TOP_K = 16


def indices(name: str, chosen: Sequence[int]) -> tuple[int, ...]:
    """Of the argument with this name, as numbers that can be compared."""
    try:
        return tuple([operator.index(i) for i in chosen])
    except TypeError:
        raise ValueError(
            f"{OP}: {name} must be None or a sequence of indices, got {chosen!r}"
        ) from None


def parse(
    capture: Collection[str],
    heads: tuple[int, ...] | None,
    queries: tuple[int, ...] | None,
    sizes: tuple[int, int],
) -> Captures:
    """`sizes` are the numbers of heads and queries."""
    counts = [] if isinstance(capture, str) else [x for x in capture if _is_top_k(x)]
    if isinstance(capture, str) or not set(capture) <= {*NAMES, *counts}:
        known = ", ".join(f'"{name}"' for name in (*NAMES, f"{TOP_K}n"))
        raise ValueError(f"{OP}: capture takes any of ({known}), got {capture!r}")
    if len(set(counts)) > 1:
        raise ValueError(f"{OP}: capture takes one top_k, got {' and '.join(sorted(counts))}")
    top_k = int(counts[0][len(TOP_K) :]) if counts else 0
    num_heads, num_queries = sizes
    if counts and not 1 <= top_k <= MOST_TOP_K:
        raise ValueError(f"{OP}: top_k takes 1 to {MOST_TOP_K} keys, got {counts[0]}")
    heads = _within("capture_heads", heads, num_heads)
    queries = _within("capture_queries", queries, num_queries)
    if not capture:
        return Captures()
    return Captures(
        "weights" in capture,
        "entropy" in capture,
        "received" in capture,
        "max_logit" in capture or "argmax" in capture,
        top_k,
        heads,
        queries,
    )


def _is_top_k(name: str) -> bool:
    return isinstance(name, str) and name.startswith(TOP_K) and name[len(TOP_K) :].isdecimal()


def _within(name: str, chosen: tuple[int, ...] | None, size: int) -> tuple[int, ...] | None:
    """Counted from the beginning; None if it is all of them in order."""
    if chosen is None:
        return None
    if not chosen or not all([-size <= i < size for i in chosen]):
        raise ValueError(
            f"{OP}: {name} must be some of -{size}..{size - 1}, got {_list(chosen) or 'none'}"
        )
    found = tuple([i % size for i in chosen])
    if len(set(found)) < len(found):
        raise ValueError(f"{OP}: {name} must not repeat an index, got {_list(chosen)}")
    return None if found == tuple(range(size)) else found


def _list(chosen: tuple[int, ...]) -> str:
    return ", ".join(map(str, chosen))


def named(
    outputs: Sequence[Tensor | None], captures: Captures, names: Collection[str]
) -> AttentionOutput | CapturedAttention:
    """As the caller of attention gets them; `names` are those that it asked for."""
    present = captures.present()
    outputs = [x if there else None for x, there in zip(outputs, present, strict=True)]
    out, lse, weights, entropy, received, max_logit, argmax, *top_k = outputs
    if not (captures.received or captures.peak or captures.top_k):
        return AttentionOutput(out, lse, weights, entropy)
    return CapturedAttention(
        out,
        lse,
        weights,
        entropy,
        received,
        max_logit if "max_logit" in names else None,
        argmax if "argmax" in names else None,
        TopK(*top_k) if captures.top_k else None,
    )
