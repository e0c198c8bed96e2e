"""Softmax attention that also returns its exact weights and what is asked of them: the op."""

import math
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bwt import reference
from bwt.kernels import plans, results
from bwt.kernels.contracts import ATTENTION, HALVES
from bwt.kernels.results import Captures
from bwt.ops import _attention_captures, _checks, _derivatives, _dispatch, _eager, _library
from bwt.ops._attention_torch import attention_torch
from bwt.reference.attention import AttentionOutput, CapturedAttention

OP = ATTENTION.op
MAX_HEAD_SIZE = ATTENTION.limit("head_size")
ARGUMENTS = [_checks.Argument(name, "[batch, heads, time, size]", 4) for name in "qkv"]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = True,
    scale: float | None = None,
    capture: Collection[str] = (),
    capture_heads: Sequence[int] | None = None,
    capture_queries: Sequence[int] | None = None,
    backend: str = "auto",
) -> AttentionOutput | CapturedAttention:
    """softmax(scale * q k^T) v, with the weights, or what is asked of them, from the same pass.

    Weights are the exact normalised ones: rows sum to 1, masked entries are exactly 0. Nothing but
    captured weights takes memory of T x S. Gradients flow through all that is not a position;
    further derivatives, and those of forward mode and torch.func, take plain torch operations. All
    modes work but torch.func.jacrev of a jacrev; torch.func.hessian is forward over reverse mode.
    Float32 products are exact on a GPU unless torch.set_float32_matmul_precision allows TF32.
    Float16 and bfloat16 are computed in float32 on a CPU; all results but out and weights are
    float32 then.

    What a query does not see has no influence on it, nor it on the gradients there: a NaN or an
    infinity of a hidden key, value or later query does not spread. One that it sees spreads within
    its row, where positions then mean nothing. A query all of whose scores are -inf has weights 0,
    out 0, lse -inf, entropy 0, a largest score of -inf at position -1, and gradients 0. On a GPU,
    whose products take whole tiles, both hold for finite inputs only: a NaN or an infinity may
    spread to other queries of a tile, which may be those of another head.

    Args:
        q: [B, H, T, D], any strides (no copy is made if the last is 1, as in a fused projection).
        k, v: [B, H, S, D], S >= T.
        causal: query t sees keys 0..S-T+t, that is, the last query sees the last key.
        scale: of the scores; 1/sqrt(D) by default.
        capture: any of
            "weights": [B, H, T, S];
            "entropy": [B, H, T], of the weights of each query, in bits;
            "received": [B, H, S], the sum over the queries of the weights that each key gets;
            "max_logit": [B, H, T], the largest scaled score that a query sees;
            "argmax": [B, H, T], its position, the first if there are several;
            "top_k=n": the n <= 16 largest weights of each query in descending order and their
            positions, each [B, H, T, n]; of equal scores the first. Where fewer keys have a score
            above -inf, or n > S, 0 at position -1.
        capture_heads, capture_queries: indices of the heads and queries of which to capture, in
            this order; negative ones count from the end. All captures have these only, and received
            sums over these queries. All by default.
        backend: "auto", "native", "triton", "torch" or "reference".

    Returns:
        AttentionOutput(out [B, H, T, D], lse [B, H, T], weights | None, entropy | None), or, if
        more was captured, CapturedAttention with received | None, max_logit | None, argmax | None
        and top_k: TopK(weights, positions) | None behind these four.

    >>> import torch
    >>> x = torch.zeros(1, 1, 3, 2)
    >>> attention(x, x, x, capture={"weights"}).weights[0, 0]
    tensor([[1.0000, 0.0000, 0.0000],
            [0.5000, 0.5000, 0.0000],
            [0.3333, 0.3333, 0.3333]])
    >>> attention(x, x, x, capture={"received"}).received[0, 0]
    tensor([1.8333, 0.8333, 0.3333])
    """
    scale = None if scale is None else float(scale)
    heads = queries = None
    if capture_heads is not None:
        heads = _attention_captures.indices("capture_heads", capture_heads)
    if capture_queries is not None:
        queries = _attention_captures.indices("capture_queries", capture_queries)
    options = (type(causal), causal, scale, frozenset(capture), heads, queries, backend)
    signature = _eager.signature(OP, options, q, k, v)
    call = signature and plans.find(signature)
    if call is None:
        asked = (capture, heads, queries)
        call = _prepare(q, k, v, causal, scale, asked, backend, is_plain=signature is not None)
        if signature is not None:
            plans.keep(signature, call)
    chosen, scale, captures, kernels = call
    if kernels is not None:
        outputs = _direct(q, k, v, kernels)
    elif chosen == "reference":
        outputs = _reference(q, k, v, causal, scale, captures)
    elif chosen == "torch":
        # On a GPU in the dtype of q, as tensor cores take it: the baseline of the benchmarks.
        is_wide = q.is_cpu or _derivatives.beyond_kernels()
        compute = _differentiable if is_wide else attention_torch
        outputs = compute(q, k, v, causal, scale, captures)
    else:
        wide = chosen == "native" and q.dtype in HALVES
        tensors = [x.float() for x in (q, k, v)] if wide else (q, k, v)
        outputs = torch.ops.bwt.attention(*tensors, causal, scale, *captures)
        if wide:
            out, lse, weights, *rest = outputs
            outputs = (out.to(q.dtype), lse, weights.to(q.dtype), *rest)
    return _attention_captures.named(outputs, captures, capture)


Indices = tuple[int, ...] | None
Asked = tuple[Collection[str], Indices, Indices]  # what to capture, of which heads and queries


class Call(NamedTuple):
    """What follows from the arguments besides their values."""

    chosen: str
    scale: float
    captures: Captures
    kernels: Any  # those of a GPU, where nothing but autograd takes part


def _prepare(q, k, v, causal, scale, asked: Asked, backend, is_plain) -> Call:
    _check(q, k, v, causal)
    captures = _attention_captures.parse(*asked, (q.shape[1], q.shape[2]))
    if scale is None:
        scale = q.shape[-1] ** -0.5
    elif not abs(scale) < math.inf:  # nan is not
        raise ValueError(f"{OP}: scale must be finite, got {scale}")
    chosen = _dispatch.choose(OP, backend, q.device)
    _checks.check_dtype(ATTENTION, chosen, q.dtype, "q, k and v")
    _checks.check_limit(ATTENTION, chosen, "head_size", q.shape[-1])
    is_direct = is_plain and chosen == "triton"
    kernels = _kernels().Call.of(q, k, v, causal, scale, captures) if is_direct else None
    return Call(chosen, scale, captures, kernels)


def _check(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> None:
    _checks.check_alike(OP, ARGUMENTS, (q, k, v))
    (batch, heads, queries, size), keys = q.shape, k.shape[2]
    if k.shape != (batch, heads, keys, size) or v.shape != k.shape:
        raise ValueError(
            f"{OP}: k and v must both be [{batch}, {heads}, S, {size}] like q, "
            f"got {tuple(k.shape)} and {tuple(v.shape)}"
        )
    if not 1 <= queries <= keys:
        raise ValueError(f"{OP}: needs 1 <= T <= S, got T={queries} queries and S={keys} keys")
    if not 1 <= size <= MAX_HEAD_SIZE:
        raise ValueError(f"{OP}: head size must be 1 to {MAX_HEAD_SIZE}, got {size}")
    if not isinstance(causal, bool):
        raise ValueError(f"{OP}: causal must be True or False, got {causal!r}")


def _reference(q, k, v, causal, scale, captures):
    _checks.refuse_gradient(OP, "q, k and v", q, k, v)
    names = (*_attention_captures.NAMES, f"top_k={max(captures.top_k, 1)}")
    found = reference.attention(
        *(x.double().numpy(force=True) for x in (q, k, v)),
        causal=causal,
        scale=scale,
        capture=names,
        capture_heads=captures.heads,
        capture_queries=captures.queries,
    )
    tensors = [torch.from_numpy(array) for array in (*found[:7], *found.top_k)]
    out, lse, weights, *rest = tensors
    rows = torch.float32 if q.dtype in HALVES else q.dtype
    rest = [x.to(rows) if x.is_floating_point() else x for x in rest]
    return out.to(q.dtype), lse.to(rows), weights.to(q.dtype), *rest


CAPTURED = (
    "bool weights, bool entropy, bool received=False, bool peak=False, int top_k=0, "
    "int[]? heads=None, int[]? queries=None"
)
_library.define(
    f"attention(Tensor q, Tensor k, Tensor v, bool causal, float scale, {CAPTURED})"
    f" -> ({', '.join(['Tensor'] * len(Captures().present()))})"
)
_library.define(
    "attention_backward(Tensor? grad_out, Tensor? grad_weights, Tensor? grad_entropy, "
    "Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor? weights, "
    "Tensor? entropy, bool causal, float scale, Tensor? grad_received=None, "
    "Tensor? grad_max_logit=None, Tensor? grad_top_k=None, Tensor? argmax=None, "
    "Tensor? top_weights=None, Tensor? top_positions=None, int[]? heads=None, "
    "int[]? queries=None) -> (Tensor, Tensor, Tensor)"
)


@torch.library.register_fake("bwt::attention")
def _fake(q, k, v, causal, scale, *captures):
    return _as_tensors(results.attention(q, k, Captures(*captures)))


def _as_tensors(outputs):
    """As the schema has them: what is not captured has no elements."""
    out, lse, *captured = outputs
    likes = (out, lse, lse, lse, torch.int64, lse, torch.int64)
    return (
        out,
        lse,
        *(
            lse.new_empty(0, dtype=like if like is torch.int64 else like.dtype) if x is None else x
            for x, like in zip(captured, likes, strict=True)
        ),
    )


@torch.library.register_fake("bwt::attention_backward")
def _fake_backward(grad_out, grad_weights, grad_entropy, grad_lse, q, k, v, *others):
    return tuple(results.merged_heads(x) for x in (q, k, v))


def _setup_context(ctx, inputs, output) -> None:
    q, k, v, ctx.causal, ctx.scale, *captures = inputs
    ctx.captures = captures = Captures(*captures)
    output = [x if there else None for x, there in zip(output, captures.present(), strict=True)]
    # The native gradient reads whole weights instead of computing them again; no other one does.
    keeps_weights = q.is_cpu and captures.heads is None and captures.queries is None
    _save(ctx, q, k, v, output, keeps_weights)


def _save(ctx, q, k, v, outputs, keeps_weights):
    out, lse, weights, entropy, _, _, argmax, *top_k = outputs
    weights = weights if keeps_weights else None
    ctx.save_for_backward(q, k, v, out, lse, weights, entropy, argmax, *top_k)
    # Absent gradients stay None: a zero for the weights would be as large as the weights.
    ctx.set_materialize_grads(False)


def _backward(ctx, *incoming):
    present = ctx.captures.present()
    incoming = [x if there else None for x, there in zip(incoming, present, strict=True)]
    saved, needed = ctx.saved_tensors, ctx.needs_input_grad[:3]
    gradients = _gradients(saved, needed, incoming, ctx.causal, ctx.scale, ctx.captures)
    return *gradients, *[None] * (2 + len(ctx.captures))


def _gradients(saved, needed, incoming, causal, scale, captures):
    if _derivatives.graph_wanted():
        return _derivatives.gradients(
            lambda q, k, v: _differentiable(q, k, v, causal, scale, captures),
            saved[:3],
            needed,
            incoming,
        )
    first, others = _in_order(incoming)
    return torch.ops.bwt.attention_backward(
        *first, *saved[:7], causal, scale, *others, *saved[7:], captures.heads, captures.queries
    )


def _in_order(incoming):
    """Incoming gradients as the kernels take them: without those of positions."""
    grad_out, grad_lse, grad_weights, grad_entropy, received, max_logit, _, top_k, _ = incoming
    return (grad_out, grad_weights, grad_entropy, grad_lse), (received, max_logit, top_k)


class _Direct(torch.autograd.Function):
    """The kernels of a GPU without the dispatcher; what is not captured is None."""

    @staticmethod
    def forward(ctx, q, k, v, kernels):
        outputs = kernels.forward(q, k, v, _precision())
        ctx.kernels = kernels
        _save(ctx, q, k, v, outputs, keeps_weights=False)
        return outputs

    @staticmethod
    def backward(ctx, *incoming):
        q, k, v, out, lse, _, *captured = saved = ctx.saved_tensors
        if torch.is_grad_enabled() or not _eager.is_plain(q, *incoming):
            needed = ctx.needs_input_grad[:3]
            return *_gradients(saved, needed, incoming, *ctx.kernels.options), None
        first, others = _in_order(incoming)
        saved = (q, k, v, out, lse, *captured)
        return *ctx.kernels.backward((*first, *others), saved, _precision()), None


_direct = _eager.applied(_Direct)


def _differentiable(q, k, v, causal, scale, captures):
    """Plain torch operations in the precision of the kernels."""
    if q.dtype not in HALVES:
        return attention_torch(q, k, v, causal, scale, captures)
    wide = attention_torch(q.float(), k.float(), v.float(), causal, scale, captures)
    out, lse, weights, *captured = wide
    return out.to(q.dtype), lse, weights if weights is None else weights.to(q.dtype), *captured


def _vmap(info, axes, q, k, v, causal, scale, *captures):
    size = info.batch_size
    tensors = (
        _derivatives.folded(x, axis, size) for x, axis in zip((q, k, v), axes[:3], strict=True)
    )
    outputs = torch.ops.bwt.attention(*tensors, causal, scale, *captures)
    present = Captures(*captures).present()
    return tuple(
        _derivatives.unfolded(x, size) if is_there else x
        for x, is_there in zip(outputs, present, strict=True)
    ), tuple(0 if is_there else None for is_there in present)


def _precision() -> str:
    """Of float32 products on a GPU: torch's own switch, exact by default."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


@cache
def _kernels():
    from bwt.kernels import attention

    return attention


def _triton_forward(q, k, v, causal, scale, *captures):
    call = _kernels().Call.of(q, k, v, causal, scale, _hashable(*captures))
    return _as_tensors(call.forward(q, k, v, _precision()))


def _triton_backward(
    grad_out,
    grad_weights,
    grad_entropy,
    grad_lse,
    q,
    k,
    v,
    out,
    lse,
    weights,
    entropy,
    causal,
    scale,
    grad_received=None,
    grad_max_logit=None,
    grad_top_k=None,
    argmax=None,
    top_weights=None,
    top_positions=None,
    heads=None,
    queries=None,
):
    incoming = (grad_out, grad_weights, grad_entropy, grad_lse)
    incoming += (grad_received, grad_max_logit, grad_top_k)
    saved = (q, k, v, out, lse, entropy, argmax, top_weights, top_positions)
    captures = _hashable(heads=heads, queries=queries)
    call = _kernels().Call.of(q, k, v, causal, scale, captures)
    return call.backward(incoming, saved, _precision())


def _hashable(*captures, **others) -> Captures:
    """From the dispatcher, which has lists."""
    asked = Captures(*captures, **others)
    heads, queries = (x if x is None else tuple(x) for x in (asked.heads, asked.queries))
    return asked._replace(heads=heads, queries=queries)


_library.library.impl(OP, _triton_forward, "CUDA")
_library.library.impl(f"{OP}_backward", _triton_backward, "CUDA")
torch.library.register_autograd("bwt::attention", _backward, setup_context=_setup_context)
torch.library.register_vmap("bwt::attention", _vmap)
