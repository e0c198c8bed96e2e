"""Attention with captured weights and what is asked of them: launchers.

    t = log2(e) scale q k^T,  w = 2^(t - max t) / sum,  out = w v
    lse = ln sum e^(scale q k^T),  entropy = -sum w log2 w
    received = column sums of w,  max_logit = ln(2) max t
    gradient of a score: w (g - sum w g + grad_lse), and grad_max_logit at the largest,
        g = grad_out v^T + grad_weights - grad_entropy log2 w + grad_received,
            and grad_top_k at the positions of the largest weights

Layouts: q [B, H, T, D], k, v [B, H, S, D], S >= T, the last query aligned with the last key;
weights [B, H, T, S]; lse, entropy, max_logit [B, H, T], received [B, H, S] and the weights of top_k
[B, H, T, n] in float32, positions in int64; all but lse are of chosen heads and queries. out and
the gradients of q, k, v lie in memory as [B, T or S, H, D], so that heads can be merged without a
copy.
"""

from functools import partial
from typing import Any

import torch
import triton

from .. import plans, results
from ..configs import MAX_REGISTERS, C, Config, Launch, architecture, lookup
from ..contracts import ATTENTION
from ..launching import Launcher
from ..results import Captures
from .blocks import attention_blocks_backward_kernel
from .captures import attention_received_sum_kernel, attention_stream_received_kernel
from .short import attention_short_backward_kernel, attention_short_forward_kernel
from .stream import attention_stream_forward_kernel, attention_stream_weights_kernel
from .stream_backward import (
    attention_stream_keys_kernel,
    attention_stream_offset_kernel,
    attention_stream_queries_kernel,
)

HEAD_SIZES = (16, 32, 64, 128)  # padded, up to the limit of the contract
MAX_HEAD_SIZE = ATTENTION.backends["triton"].limits["head_size"]
PRECISIONS = ("ieee", "tf32")
BLOCKED_KEYS = 256  # the most whose gradients one program computes, block by block
ASKED_KEYS = 128  # the most whose scores stay in registers beside the largest of them
DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64"}


def attention_forward(
    q,
    k,
    v,
    *,
    causal,
    scale,
    capture_weights,
    capture_entropy,
    capture_received=False,
    capture_peak=False,
    top_k=0,
    heads=None,
    queries=None,
    precision="ieee",
):
    """What results.attention lists.

    `precision` is that of products of float32: exact, or tf32 on tensor cores.
    """
    captured = (capture_weights, capture_entropy, capture_received, capture_peak, top_k)
    call = Call.of(q, k, v, causal, scale, Captures(*captured, heads, queries))
    return call.forward(q, k, v, precision)


def attention_backward(
    grad_out,
    grad_weights,
    grad_entropy,
    grad_lse,
    q,
    k,
    v,
    out,
    lse,
    entropy,
    grad_received=None,
    grad_max_logit=None,
    grad_top_k=None,
    argmax=None,
    top_weights=None,
    top_positions=None,
    *,
    causal,
    scale,
    heads=None,
    queries=None,
    precision="ieee",
):
    """(grad_q, grad_k, grad_v); incoming gradients may be None, and so may be what was captured
    where there is no gradient of it."""
    incoming = (grad_out, grad_weights, grad_entropy, grad_lse)
    incoming += (grad_received, grad_max_logit, grad_top_k)
    saved = (q, k, v, out, lse, entropy, argmax, top_weights, top_positions)
    call = Call.of(q, k, v, causal, scale, Captures(heads=heads, queries=queries))
    return call.backward(incoming, saved, precision)


class Call:
    """Calls that differ in nothing but the values of their tensors."""

    def __init__(self, q, k, v, causal, scale, captures):
        self.device = q.device
        self.options = causal, scale, captures
        self.places = _places(captures, q)
        self.is_empty = q.numel() == 0
        self.are_rows_dense = all(x.stride(-1) == 1 for x in (q, k, v))
        self.launcher = Launcher(q.device)

    @classmethod
    def of(cls, q, k, v, *options):
        layouts = [(x.dtype, x.shape, x.stride()) for x in (q, k, v)]
        signature = (cls, q.device, options, *layouts)
        return plans.find(signature) or plans.keep(signature, cls(q, k, v, *options))

    def forward(self, q, k, v, precision):
        if not self.are_rows_dense:
            q, k, v = (_last_contiguous(x) for x in (q, k, v))
        outputs = results.attention(q, k, self.options[2])
        if not self.is_empty:
            make = partial(self._launches, forward_launches, precision)
            tensors = (q, k, v, *outputs, *self.places)
            self.launcher.run(("forward", precision), tensors, make)
        return outputs

    def backward(self, incoming, saved, precision):
        """Of the gradients of out, weights, entropy, lse, received, max_logit and top_k, and from
        q, k, v, out, lse, entropy, argmax and top_k; any of them may be None but q, k, v, out and
        lse."""
        q, k, v, out, lse, entropy, argmax, top_weights, top_positions = saved
        gradients = results.merged_heads(q), results.merged_heads(k), results.merged_heads(v)
        if self.is_empty or all(x is None for x in incoming):
            return tuple(x.zero_() for x in gradients)
        if not self.are_rows_dense:
            q, k, v = (_last_contiguous(x) for x in (q, k, v))
        grad_out, grad_weights, *rows = incoming
        rows = [x if x is None else x.contiguous() for x in rows]
        grad_entropy, _, _, grad_max_logit, grad_top_k = rows
        if grad_out is not None:
            grad_out = _last_contiguous(grad_out.to(q.dtype))
        if grad_weights is not None:
            whole = self.places[0] is None
            grad_weights = _last_contiguous(grad_weights) if whole else grad_weights.contiguous()
        # What there is no gradient of is not read.
        captured = (
            None if grad_entropy is None else entropy.contiguous(),
            None if grad_max_logit is None else argmax.contiguous(),
            None if grad_top_k is None else top_weights.contiguous(),
            None if grad_top_k is None else top_positions.contiguous(),
        )
        out = _last_contiguous(out)
        incoming = (grad_out, grad_weights, *rows)
        layouts = [x if x is None else (x.dtype, x.shape[-1], x.stride()) for x in incoming]
        flags = ("backward", precision, out.stride(), *layouts)
        saved = (q, k, v, out, lse.contiguous(), *captured)
        make = partial(self._launches, backward_launches, precision)
        self.launcher.run(flags, (*incoming, *saved, *gradients, *self.places), make)
        return gradients

    def _launches(self, launches, precision, *tensors):
        causal, scale, captures = self.options
        options = {"causal": causal, "scale": scale, "precision": precision}
        options["captures"] = captures
        return launches(*tensors, **options, arch=architecture(self.device))


def forward_launches(
    q,
    k,
    v,
    out,
    lse,
    weights,
    entropy,
    received,
    max_logit,
    argmax,
    top_weights,
    top_positions,
    head_places,
    query_places,
    *,
    causal,
    scale,
    captures,
    precision,
    arch,
) -> list[Launch]:
    """What attention_forward runs."""
    mode, common = _common(q, k, causal, scale, precision)
    common |= {"q": q, "k": k, "lse": lse} | _strides(q=q, k=k)
    common |= _chosen(captures, q, head_places, query_places)
    values = {"v": v, "out": out, "entropy": entropy, "STORE_ENTROPY": entropy is not None}
    values |= _strides(v=v)
    values |= {"max_logit": max_logit, "argmax": argmax, "STORE_PEAK": argmax is not None}
    values |= {"top_weights": top_weights, "top_positions": top_positions}
    values |= {"TOP_K": captures.top_k, "ROOM": triton.next_power_of_2(max(captures.top_k, 1))}
    heads, (queries, keys) = q.shape[0] * q.shape[1], (q.shape[2], k.shape[2])

    asked = (received, argmax, top_weights, head_places)
    is_asked = any(x is not None for x in asked)  # for more than weights and entropy
    config = _short_config("short_forward", mode, common["BD"], arch, keys, is_asked)
    if config is not None and not (is_asked and keys > ASKED_KEYS):
        groups = triton.cdiv(heads, config.tiles["PACK"])
        blocks = triton.cdiv(queries, config.tiles["BT"])
        arguments = common | values | {"num_heads": heads}
        arguments |= {"weights": weights, "STORE_WEIGHTS": weights is not None}
        arguments |= {"received": received, "STORE_RECEIVED": received is not None}
        if received is None or blocks == 1:
            return [Launch(attention_short_forward_kernel, groups * blocks, arguments, config)]
        arguments["received"] = parts = received.new_empty(
            (received.shape[0] * received.shape[1], blocks, keys)
        )
        first = Launch(attention_short_forward_kernel, groups * blocks, arguments, config)
        return [first, _sum_of_blocks(parts, received)]

    [config] = _configs("stream_forward", mode, common["BD"], arch, is_asked)
    grid = heads * triton.cdiv(queries, config.tiles["BT"])
    launches = [Launch(attention_stream_forward_kernel, grid, common | values, config)]
    if weights is not None:
        [config] = _configs("stream_weights", mode, common["BD"], arch, is_asked)
        tiles = triton.cdiv(queries, config.tiles["BT"]) * triton.cdiv(keys, config.tiles["BS"])
        arguments = common | {"weights": weights}
        launches.append(Launch(attention_stream_weights_kernel, heads * tiles, arguments, config))
    if received is not None:
        # A pass over the queries for each block of keys, as that of their gradients.
        [config] = _configs("stream_keys", mode, common["BD"], arch, is_asked)
        grid = heads * triton.cdiv(keys, config.tiles["BS"])
        arguments = common | {"received": received}
        launches.append(Launch(attention_stream_received_kernel, grid, arguments, config))
    return launches


def _sum_of_blocks(parts, received) -> Launch:
    heads, blocks, keys = parts.shape
    config = C(1, 1, BS=128)
    arguments = {"parts": parts, "received": received, "blocks": blocks, "S": keys}
    grid = heads * triton.cdiv(keys, config.tiles["BS"])
    return Launch(attention_received_sum_kernel, grid, arguments, config)


def backward_launches(
    grad_out,
    grad_weights,
    grad_entropy,
    grad_lse,
    grad_received,
    grad_max_logit,
    grad_top_k,
    q,
    k,
    v,
    out,
    lse,
    entropy,
    argmax,
    top_weights,
    top_positions,
    grad_q,
    grad_k,
    grad_v,
    head_places,
    query_places,
    *,
    causal,
    scale,
    captures,
    precision,
    arch,
) -> list[Launch]:
    """What attention_backward runs."""
    mode, common = _common(q, k, causal, scale, precision)
    common |= {"q": q, "k": k, "lse": lse} | _strides(q=q, k=k, go=grad_out, gw=grad_weights)
    common |= _incoming(grad_out=grad_out, grad_weights=grad_weights, grad_entropy=grad_entropy)
    captured = _incoming(grad_received=grad_received) | {"grad_top_k": grad_top_k}
    captured["TOP_K"] = 0 if grad_top_k is None else grad_top_k.shape[-1]
    captured |= _chosen(captures, q, head_places, query_places)
    peaks = _incoming(grad_max_logit=grad_max_logit)
    peaks |= {"argmax": argmax, "top_positions": top_positions}
    further = (grad_received, grad_max_logit, grad_top_k, head_places)
    is_asked = any(x is not None for x in further)  # for more than weights and entropy
    values = {"v": v} | _strides(v=v)
    heads, (queries, keys) = q.shape[0] * q.shape[1], (q.shape[2], k.shape[2])

    config = _short_config("short_backward", mode, common["BD"], arch, keys, is_asked)
    if config is not None:
        arguments = common | captured | peaks | values | _incoming(grad_lse=grad_lse)
        arguments |= {"num_heads": heads, "grad_q": grad_q, "grad_k": grad_k, "grad_v": grad_v}
        grid = triton.cdiv(heads, config.tiles["PACK"])
        return [Launch(attention_short_backward_kernel, grid, arguments, config)]

    def blocks(kernel, length, tile):
        [config] = _configs(kernel, mode, common["BD"], arch, is_asked)
        return heads * triton.cdiv(length, config.tiles[tile]), config

    offset = torch.empty_like(lse)
    shared = common | values | {"offset": offset}
    rows = _incoming(grad_lse=grad_lse) | {"out": out, "entropy": entropy} | _strides(out=out)
    grid, config = blocks("stream_offset", queries, "BT")
    arguments = common | captured | rows | {"offset": offset, "top_weights": top_weights}
    first = Launch(attention_stream_offset_kernel, grid, arguments, config)
    if keys <= BLOCKED_KEYS and not is_asked:
        [config] = lookup("attention", "blocks_backward", mode, common["BD"], arch)
        sums = grad_q
        if grad_q.dtype != lse.dtype:
            sums = torch.empty(grad_q.shape, dtype=lse.dtype, device=grad_q.device)
        arguments = shared | rows | {"grad_k": grad_k, "grad_v": grad_v}
        arguments |= {"grad_q": grad_q, "sums": sums}
        if grad_weights is None:
            arguments["offset"] = None
        last = Launch(attention_blocks_backward_kernel, heads, arguments, config)
        return [last] if grad_weights is None else [first, last]
    shared |= captured | peaks
    grid, config = blocks("stream_keys", keys, "BS")
    arguments = shared | {"grad_k": grad_k, "grad_v": grad_v}
    second = Launch(attention_stream_keys_kernel, grid, arguments, config)
    grid, config = blocks("stream_queries", queries, "BT")
    third = Launch(attention_stream_queries_kernel, grid, shared | {"grad_q": grad_q}, config)
    return [first, second, third]


def _places(captures, q):
    """Of heads and of queries in what is captured of chosen ones, or None twice."""
    if captures.heads is None and captures.queries is None:
        return None, None
    places = []
    for size, chosen in zip(q.shape[1:3], (captures.heads, captures.queries), strict=True):
        row = [-1] * size
        for place, index in enumerate(range(size) if chosen is None else chosen):
            row[index] = place
        places.append(torch.tensor(row, dtype=torch.int32, device=q.device))
    return places


def _chosen(captures, q, head_places, query_places) -> dict:
    """Arguments that say of which heads and queries to capture."""
    heads = queries = None  # nobody asks
    if head_places is not None:
        heads = q.shape[1] if captures.heads is None else len(captures.heads)
        queries = q.shape[2] if captures.queries is None else len(captures.queries)
    places = {"head_places": head_places, "query_places": query_places}
    return places | {"HC": heads, "TC": queries, "CHOSEN": head_places is not None}


def _last_contiguous(x):
    return x if x.stride(-1) == 1 else x.contiguous()


def _common(q, k, causal, scale, precision):
    """The mode that the table knows, and the arguments all kernels have."""
    head_size = q.shape[-1]
    if head_size > MAX_HEAD_SIZE:
        raise ValueError(f"attention: head size {head_size} is above {MAX_HEAD_SIZE}")
    if precision not in PRECISIONS:
        raise ValueError(f"attention: precision {precision!r} is not one of {PRECISIONS}")
    mode = DTYPES.get(q.dtype) or {"ieee": "fp32", "tf32": "tf32"}[precision]
    return mode, {
        "scale": float(head_size**-0.5 if scale is None else scale),
        "H": q.shape[1],
        "T": q.shape[2],
        "S": k.shape[2],
        "CAUSAL": causal,
        "D": head_size,
        "BD": next(size for size in HEAD_SIZES if size >= head_size),
        "PRECISION": "tf32" if mode == "tf32" else "ieee",
    }


def _strides(**tensors) -> dict[str, int]:
    """All but the last, as q_stride_b, q_stride_h, q_stride_t; 0 for a tensor that is absent."""
    strides = {}
    for name, x in tensors.items():
        for i, letter in enumerate("bhs" if name in ("k", "v") else "bht"):
            strides[f"{name}_stride_{letter}"] = 0 if x is None else x.stride(i)
    return strides


def _incoming(**gradients) -> dict:
    return gradients | {f"HAS_{name.upper()}": x is not None for name, x in gradients.items()}


def _configs(kernel, mode, head_size, arch, is_asked) -> tuple[Config, ...]:
    """Those of the table; what is asked for besides weights and entropy needs more registers."""
    configs = lookup("attention", kernel, mode, head_size, arch)
    if is_asked and arch.startswith("sm_"):
        return tuple(config._replace(registers=MAX_REGISTERS) for config in configs)
    return configs


def _short_config(kernel, mode, head_size, arch, keys, is_asked) -> Config | None:
    """The smallest tile that holds all keys, or None if they have to be streamed."""
    configs = _configs(kernel, mode, head_size, arch, is_asked)
    return next((config for config in configs if config.tiles["BS"] >= keys), None)


def example_launches(
    *,
    mode,
    head_size,
    queries,
    keys,
    arch,
    causal=True,
    captured=True,
    asked=(False, False, 0),
    chosen=(None, None),
    batch=2,
    heads=3,
) -> dict[str, Launch]:
    """The launches of one call by name, on tensors without memory.

    captured: weights and entropy, and gradients of all.
    asked: whether what keys receive and the peaks are captured, and how many of top_k.
    chosen: heads and queries of which.
    """
    dtypes = {name: dtype for dtype, name in DTYPES.items()}
    dtype = dtypes.get(mode, torch.float32)
    captures = Captures(captured, captured, *asked, *chosen)

    def empty(*shape, dtype=dtype):
        return torch.empty((batch, heads, *shape), dtype=dtype, device="meta")

    q, k, v = (empty(length, head_size) for length in (queries, keys, keys))
    grad_q, grad_k, grad_v = (results.merged_heads(x) for x in (q, k, v))
    outputs = results.attention(q, k, captures)
    out, lse, weights, entropy, received, max_logit, argmax, *top_k = outputs
    places = _places(captures, q)
    options = {
        "causal": causal,
        "scale": None,
        "precision": "tf32" if mode == "tf32" else "ieee",
        "arch": arch,
        "captures": captures,
    }
    launches = forward_launches(q, k, v, *outputs, *places, **options)
    grad_lse = empty(queries, dtype=torch.float32) if captured else None
    incoming = [empty(queries, head_size), weights, entropy, grad_lse]
    incoming += [received, max_logit, top_k[0]]
    incoming = [x if x is None else torch.empty_like(x) for x in incoming]
    saved = (q, k, v, out, lse, entropy, argmax, *top_k)
    given = (*incoming, *saved, grad_q, grad_k, grad_v, *places)
    launches += backward_launches(*given, **options)
    return {launch.name: launch for launch in launches}


STREAM_KEYS = 512  # more than any tile or program holds
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"captured": False, "odd": False},
    "captured": {"captured": True, "odd": False},
    "ragged": {"captured": True, "odd": True},
    "asked": {"captured": False, "odd": False, "asked": (True, True, 4), "chosen": ((0,), (0,))},
}


def _example_keys(launch) -> int:
    """With how many keys a kernel's entry is compiled ahead of time."""
    if launch.kernel is attention_blocks_backward_kernel:
        return BLOCKED_KEYS
    return launch.config.tiles["BS"] if "PACK" in launch.config.tiles else STREAM_KEYS


def specialisations(arch: str):
    """(name, launch) of every entry of the table, as an ordinary call would compile it."""
    for mode in ("fp16", "bf16", "tf32", "fp32"):
        for head_size in HEAD_SIZES:
            sizes = {
                config.tiles["BS"]
                for kernel in ("short_forward", "short_backward")
                for config in lookup("attention", kernel, mode, head_size, arch)
            }
            for keys in (*sorted(sizes | {BLOCKED_KEYS}), STREAM_KEYS):
                for variant, choice in VARIANTS.items():
                    choice = dict(choice)
                    length = keys - choice.pop("odd")
                    shape = {"head_size": head_size, "queries": length, "keys": length}
                    launches = example_launches(mode=mode, arch=arch, **shape, **choice)
                    for kernel, launch in launches.items():
                        if keys == _example_keys(launch):
                            yield f"{kernel}.{mode}.D{head_size}.S{keys}.{variant}", launch
