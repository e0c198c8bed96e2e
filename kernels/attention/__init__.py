"""Attention with captured weights and entropy: launchers.

    t = log2(e) scale q k^T,  w = 2^(t - max t) / sum,  out = w v
    lse = ln sum e^(scale q k^T),  entropy = -sum w log2 w
    gradient of a score: w (g - sum w g + grad_lse),
        g = grad_out v^T + grad_weights - grad_entropy log2 w

Layouts: q [B, H, T, D], k, v [B, H, S, D], S >= T, the last query aligned with the last key;
weights [B, H, T, S]; lse, entropy [B, H, T] in float32. out and the gradients of q, k, v lie in
memory as [B, T or S, H, D], so that heads can be merged without a copy.
"""

from functools import partial

import torch
import triton

from .. import plans, results
from ..configs import Config, Launch, architecture, lookup
from ..contracts import ATTENTION
from ..launching import Launcher
from .blocks import attention_blocks_backward_kernel
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
    precision="ieee",
):
    """(out, lse, weights | None, entropy | None).

    `precision` is that of products of float32: exact, or tf32 on tensor cores.
    """
    call = Call.of(q, k, v, causal, scale, capture_weights, capture_entropy)
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
    *,
    causal,
    scale,
    precision="ieee",
):
    """(grad_q, grad_k, grad_v); incoming gradients may be None, and so may entropy where there is
    no grad_entropy."""
    incoming = (grad_out, grad_weights, grad_entropy, grad_lse)
    call = Call.of(q, k, v, causal, scale)
    return call.backward(*incoming, q, k, v, out, lse, entropy, precision)


class Call:
    """Calls that differ in nothing but the values of their tensors."""

    def __init__(self, q, k, v, causal, scale, capture_weights, capture_entropy):
        self.device = q.device
        self.options = causal, scale
        self.captures = capture_weights, capture_entropy
        self.is_empty = q.numel() == 0
        self.are_rows_dense = all(x.stride(-1) == 1 for x in (q, k, v))
        self.launcher = Launcher(q.device)

    @classmethod
    def of(cls, q, k, v, *options):
        options = (*options, False, False)[:4]
        layouts = [(x.dtype, x.shape, x.stride()) for x in (q, k, v)]
        signature = (cls, q.device, options, *layouts)
        return plans.find(signature) or plans.keep(signature, cls(q, k, v, *options))

    def forward(self, q, k, v, precision):
        if not self.are_rows_dense:
            q, k, v = (_last_contiguous(x) for x in (q, k, v))
        outputs = results.attention(q, k, *self.captures)
        if not self.is_empty:
            make = partial(self._launches, forward_launches, precision)
            self.launcher.run(("forward", precision), (q, k, v, *outputs), make)
        return outputs

    def backward(
        self,
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
        precision,
    ):
        gradients = results.merged_heads(q), results.merged_heads(k), results.merged_heads(v)
        if self.is_empty or grad_out is grad_weights is grad_entropy is grad_lse is None:
            return tuple(x.zero_() for x in gradients)
        if not self.are_rows_dense:
            q, k, v = (_last_contiguous(x) for x in (q, k, v))
        if grad_out is not None:
            grad_out = _last_contiguous(grad_out.to(q.dtype))
        if grad_weights is not None:
            grad_weights = _last_contiguous(grad_weights)
        if grad_entropy is None:
            entropy = None
        else:
            grad_entropy, entropy = grad_entropy.contiguous(), entropy.contiguous()
        if grad_lse is not None:
            grad_lse = grad_lse.contiguous()
        out = _last_contiguous(out)
        incoming = (grad_out, grad_weights, grad_entropy, grad_lse)
        layouts = [x if x is None else (x.dtype, x.stride()) for x in incoming]
        flags = ("backward", precision, out.stride(), *layouts)
        saved = (q, k, v, out, lse.contiguous(), entropy)
        make = partial(self._launches, backward_launches, precision)
        self.launcher.run(flags, (*incoming, *saved, *gradients), make)
        return gradients

    def _launches(self, launches, precision, *tensors):
        causal, scale = self.options
        options = {"causal": causal, "scale": scale, "precision": precision}
        return launches(*tensors, **options, arch=architecture(self.device))


def forward_launches(
    q, k, v, out, lse, weights, entropy, *, causal, scale, precision, arch
) -> list[Launch]:
    """What attention_forward runs."""
    mode, common = _common(q, k, causal, scale, precision)
    common |= {"q": q, "k": k, "lse": lse} | _strides(q=q, k=k)
    values = {"v": v, "out": out, "entropy": entropy, "STORE_ENTROPY": entropy is not None}
    values |= _strides(v=v)
    heads, (queries, keys) = q.shape[0] * q.shape[1], (q.shape[2], k.shape[2])

    config = _short_config("short_forward", mode, common["BD"], arch, keys)
    if config is not None:
        groups = triton.cdiv(heads, config.tiles["PACK"])
        arguments = common | values | {"num_heads": heads}
        arguments |= {"weights": weights, "STORE_WEIGHTS": weights is not None}
        grid = groups * triton.cdiv(queries, config.tiles["BT"])
        return [Launch(attention_short_forward_kernel, grid, arguments, config)]

    [config] = lookup("attention", "stream_forward", mode, common["BD"], arch)
    grid = heads * triton.cdiv(queries, config.tiles["BT"])
    launches = [Launch(attention_stream_forward_kernel, grid, common | values, config)]
    if weights is not None:
        [config] = lookup("attention", "stream_weights", mode, common["BD"], arch)
        tiles = triton.cdiv(queries, config.tiles["BT"]) * triton.cdiv(keys, config.tiles["BS"])
        arguments = common | {"weights": weights}
        launches.append(Launch(attention_stream_weights_kernel, heads * tiles, arguments, config))
    return launches


def backward_launches(
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
    grad_q,
    grad_k,
    grad_v,
    *,
    causal,
    scale,
    precision,
    arch,
) -> list[Launch]:
    """What attention_backward runs."""
    mode, common = _common(q, k, causal, scale, precision)
    common |= {"q": q, "k": k, "lse": lse} | _strides(q=q, k=k, go=grad_out, gw=grad_weights)
    common |= _incoming(grad_out=grad_out, grad_weights=grad_weights, grad_entropy=grad_entropy)
    values = {"v": v} | _strides(v=v)
    heads, (queries, keys) = q.shape[0] * q.shape[1], (q.shape[2], k.shape[2])

    config = _short_config("short_backward", mode, common["BD"], arch, keys)
    if config is not None:
        arguments = common | values | _incoming(grad_lse=grad_lse) | {"num_heads": heads}
        arguments |= {"grad_q": grad_q, "grad_k": grad_k, "grad_v": grad_v}
        grid = triton.cdiv(heads, config.tiles["PACK"])
        return [Launch(attention_short_backward_kernel, grid, arguments, config)]

    def blocks(kernel, length, tile):
        [config] = lookup("attention", kernel, mode, common["BD"], arch)
        return heads * triton.cdiv(length, config.tiles[tile]), config

    offset = torch.empty_like(lse)
    shared = common | values | {"offset": offset}
    rows = _incoming(grad_lse=grad_lse) | {"out": out, "entropy": entropy} | _strides(out=out)
    grid, config = blocks("stream_offset", queries, "BT")
    arguments = common | rows | {"offset": offset}
    first = Launch(attention_stream_offset_kernel, grid, arguments, config)
    if keys <= BLOCKED_KEYS:
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
    grid, config = blocks("stream_keys", keys, "BS")
    arguments = shared | {"grad_k": grad_k, "grad_v": grad_v}
    second = Launch(attention_stream_keys_kernel, grid, arguments, config)
    grid, config = blocks("stream_queries", queries, "BT")
    third = Launch(attention_stream_queries_kernel, grid, shared | {"grad_q": grad_q}, config)
    return [first, second, third]


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


def _short_config(kernel, mode, head_size, arch, keys) -> Config | None:
    """The smallest tile that holds all keys, or None if they have to be streamed."""
    configs = lookup("attention", kernel, mode, head_size, arch)
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
    batch=2,
    heads=3,
) -> dict[str, Launch]:
    """The launches of one call by name, on tensors without memory."""
    dtypes = {name: dtype for dtype, name in DTYPES.items()}
    dtype = dtypes.get(mode, torch.float32)

    def empty(*shape, dtype=dtype):
        return torch.empty((batch, heads, *shape), dtype=dtype, device="meta")

    q, grad_out = empty(queries, head_size), empty(queries, head_size)
    k, v = empty(keys, head_size), empty(keys, head_size)
    out, grad_q, grad_k, grad_v = (results.merged_heads(x) for x in (q, q, k, v))
    rows = [empty(queries, dtype=torch.float32) for _ in range(4)]
    lse, entropy, grad_lse, grad_entropy = rows
    weights = empty(queries, keys)
    options = {
        "causal": causal,
        "scale": None,
        "precision": "tf32" if mode == "tf32" else "ieee",
        "arch": arch,
    }
    if not captured:
        weights = entropy = grad_lse = grad_entropy = None
    launches = forward_launches(q, k, v, out, lse, weights, entropy, **options)
    incoming = (grad_out, weights, grad_entropy, grad_lse)
    launches += backward_launches(
        *incoming, q, k, v, out, lse, entropy, grad_q, grad_k, grad_v, **options
    )
    return {launch.name: launch for launch in launches}


STREAM_KEYS = 512  # more than any tile or program holds
VARIANTS = {
    "plain": {"captured": False, "odd": False},
    "captured": {"captured": True, "odd": False},
    "ragged": {"captured": True, "odd": True},
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
                    length = keys - choice["odd"]
                    launches = example_launches(
                        mode=mode,
                        head_size=head_size,
                        queries=length,
                        keys=length,
                        arch=arch,
                        captured=choice["captured"],
                    )
                    for kernel, launch in launches.items():
                        if keys == _example_keys(launch):
                            yield f"{kernel}.{mode}.D{head_size}.S{keys}.{variant}", launch
