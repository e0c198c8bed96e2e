"""Softmax attention that also returns its exact weights and their entropy: the public op."""

from collections.abc import Collection
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bwt import reference
from bwt.kernels import plans, results
from bwt.kernels.contracts import ATTENTION, HALVES
from bwt.ops import _checks, _derivatives, _dispatch, _eager, _library
from bwt.ops._attention_torch import attention_torch
from bwt.reference.attention import AttentionOutput

OP = ATTENTION.op
CAPTURES = ("weights", "entropy")
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
    backend: str = "auto",
) -> AttentionOutput:
    """softmax(scale * q k^T) v, with the weights and their entropy if asked for.

    Weights are the exact normalised ones: rows sum to 1, masked entries are exactly 0. Gradients
    flow through out, lse, weights and entropy alike; further derivatives, and those of forward mode
    and torch.func, take plain torch operations. Float32 products are exact on a GPU unless
    torch.set_float32_matmul_precision allows TF32. Float16 and bfloat16 are computed in float32 on
    a CPU; their lse and entropy are float32.

    What a query does not see has no influence on it, nor it on the gradients there: a NaN or an
    infinity of a hidden key, value or later query does not spread. One that it sees spreads within
    its row. A query all of whose scores are -inf has weights 0, out 0, lse -inf, entropy 0 and
    gradients 0. On a GPU, whose products take whole tiles, both hold for finite inputs only: a NaN
    or an infinity may spread to other queries of a tile, which may be those of another head.

    Args:
        q: [B, H, T, D], any strides (no copy is made if the last is 1, as in a fused projection).
        k, v: [B, H, S, D], S >= T.
        causal: query t sees keys 0..S-T+t, that is, the last query sees the last key.
        scale: of the scores; 1/sqrt(D) by default.
        capture: any of "weights", "entropy".
        backend: "auto", "native", "triton", "torch" or "reference".

    Returns:
        AttentionOutput(out [B, H, T, D], lse [B, H, T], weights [B, H, T, S] | None,
        entropy [B, H, T] in bits | None).

    >>> import torch
    >>> x = torch.zeros(1, 1, 3, 2)
    >>> attention(x, x, x, capture={"weights"}).weights[0, 0]
    tensor([[1.0000, 0.0000, 0.0000],
            [0.5000, 0.5000, 0.0000],
            [0.3333, 0.3333, 0.3333]])
    """
    scale = None if scale is None else float(scale)
    options = (type(causal), causal, scale, frozenset(capture), backend)
    signature = _eager.signature(OP, options, q, k, v)
    call = signature and plans.find(signature)
    if call is None:
        call = _prepare(q, k, v, causal, scale, capture, backend, is_plain=signature is not None)
        if signature is not None:
            plans.keep(signature, call)
    chosen, scale, wants_weights, wants_entropy, kernels = call
    if kernels is not None:
        return AttentionOutput(*_direct(q, k, v, kernels))
    if chosen == "reference":
        out, lse, weights, entropy = _reference(q, k, v, causal, scale)
    elif chosen == "torch":
        compute = _differentiable if _derivatives.beyond_kernels() else attention_torch
        out, lse, weights, entropy = compute(q, k, v, causal, scale)
    else:
        wide = chosen == "native" and q.dtype in HALVES
        tensors = [x.float() for x in (q, k, v)] if wide else (q, k, v)
        out, lse, weights, entropy = torch.ops.bwt.attention(
            *tensors, causal, scale, wants_weights, wants_entropy
        )
        if wide:
            out, weights = out.to(q.dtype), weights.to(q.dtype)
    return AttentionOutput(
        out, lse, weights if wants_weights else None, entropy if wants_entropy else None
    )


class Call(NamedTuple):
    """What follows from the arguments besides their values."""

    chosen: str
    scale: float
    wants_weights: bool
    wants_entropy: bool
    kernels: Any  # those of a GPU, where nothing but autograd takes part


def _prepare(q, k, v, causal, scale, capture, backend, is_plain) -> Call:
    _check(q, k, v, causal, capture)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    chosen = _dispatch.choose(OP, backend, q.device)
    _checks.check_dtype(ATTENTION, chosen, q.dtype, "q, k and v")
    _checks.check_limit(ATTENTION, chosen, "head_size", q.shape[-1])
    wanted = tuple(name in capture for name in CAPTURES)
    is_direct = is_plain and chosen == "triton"
    kernels = _kernels().Call.of(q, k, v, causal, scale, *wanted) if is_direct else None
    return Call(chosen, scale, *wanted, kernels)


def _check(q: Tensor, k: Tensor, v: Tensor, causal: bool, capture: Collection[str]) -> None:
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
    if isinstance(capture, str) or not set(capture) <= set(CAPTURES):
        raise ValueError(f'{OP}: capture takes any of ("weights", "entropy"), got {capture!r}')
    if not isinstance(causal, bool):
        raise ValueError(f"{OP}: causal must be True or False, got {causal!r}")


def _reference(q, k, v, causal, scale):
    _checks.refuse_gradient(OP, "q, k and v", q, k, v)
    arrays = reference.attention(
        *(x.detach().double().numpy() for x in (q, k, v)),
        causal=causal,
        scale=scale,
        capture=CAPTURES,
    )
    out, lse, weights, entropy = (torch.from_numpy(array) for array in arrays)
    rows = torch.float32 if q.dtype in HALVES else q.dtype
    return out.to(q.dtype), lse.to(rows), weights.to(q.dtype), entropy.to(rows)


_library.define(
    "attention(Tensor q, Tensor k, Tensor v, bool causal, float scale, bool weights, bool entropy)"
    " -> (Tensor, Tensor, Tensor, Tensor)"
)
_library.define(
    "attention_backward(Tensor? grad_out, Tensor? grad_weights, Tensor? grad_entropy, "
    "Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor weights, "
    "Tensor entropy, bool causal, float scale) -> (Tensor, Tensor, Tensor)"
)


@torch.library.register_fake("bwt::attention")
def _fake(q, k, v, causal, scale, weights, entropy):
    return _as_tensors(results.attention(q, k, weights, entropy))


def _as_tensors(outputs):
    """As the schema has them: what is not captured has no elements."""
    out, lse, weights, entropy = outputs
    return (
        out,
        lse,
        out.new_empty(0) if weights is None else weights,
        lse.new_empty(0) if entropy is None else entropy,
    )


@torch.library.register_fake("bwt::attention_backward")
def _fake_backward(
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
):
    return tuple(results.merged_heads(x) for x in (q, k, v))


def _setup_context(ctx, inputs, output) -> None:
    q, k, v, ctx.causal, ctx.scale, ctx.weights, ctx.entropy = inputs
    ctx.save_for_backward(q, k, v, *output)
    # Absent gradients stay None: a zero for the weights would be as large as the weights.
    ctx.set_materialize_grads(False)


def _backward(ctx, grad_out, grad_lse, grad_weights, grad_entropy):
    grad_weights = grad_weights if ctx.weights else None
    grad_entropy = grad_entropy if ctx.entropy else None
    incoming = (grad_out, grad_lse, grad_weights, grad_entropy)
    needed = ctx.needs_input_grad[:3]
    gradients = _gradients(ctx.saved_tensors, needed, incoming, ctx.causal, ctx.scale)
    return *gradients, None, None, None, None


def _gradients(saved, needed, incoming, causal, scale):
    if _derivatives.graph_wanted():
        return _derivatives.gradients(
            lambda q, k, v: _differentiable(q, k, v, causal, scale),
            saved[:3],
            needed,
            incoming,
        )
    grad_out, grad_lse, grad_weights, grad_entropy = incoming
    incoming = (grad_out, grad_weights, grad_entropy, grad_lse)
    return torch.ops.bwt.attention_backward(*incoming, *saved, causal, scale)


class _Direct(torch.autograd.Function):
    """The kernels of a GPU without the dispatcher; what is not captured is None."""

    @staticmethod
    def forward(ctx, q, k, v, kernels):
        outputs = kernels.forward(q, k, v, _precision())
        ctx.kernels = kernels
        ctx.save_for_backward(q, k, v, *outputs)
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx, grad_out, grad_lse, grad_weights, grad_entropy):
        q, k, v, *outputs = ctx.saved_tensors
        incoming = (grad_out, grad_lse, grad_weights, grad_entropy)
        if torch.is_grad_enabled() or not _eager.is_plain(q, *incoming):
            saved, needed = (q, k, v, *_as_tensors(outputs)), ctx.needs_input_grad[:3]
            return *_gradients(saved, needed, incoming, *ctx.kernels.options), None
        out, lse, _, entropy = outputs
        incoming = (grad_out, grad_weights, grad_entropy, grad_lse)
        saved = (q, k, v, out, lse, entropy)
        return *ctx.kernels.backward(*incoming, *saved, _precision()), None


_direct = _eager.applied(_Direct)


def _differentiable(q, k, v, causal, scale):
    """Plain torch operations in the precision of the kernels."""
    if q.dtype not in HALVES:
        return attention_torch(q, k, v, causal, scale)
    out, lse, weights, entropy = attention_torch(q.float(), k.float(), v.float(), causal, scale)
    return out.to(q.dtype), lse, weights.to(q.dtype), entropy


def _vmap(info, axes, q, k, v, causal, scale, weights, entropy):
    size = info.batch_size
    tensors = (
        _derivatives.folded(x, axis, size) for x, axis in zip((q, k, v), axes[:3], strict=True)
    )
    outputs = torch.ops.bwt.attention(*tensors, causal, scale, weights, entropy)
    captured = (True, True, weights, entropy)
    return tuple(
        _derivatives.unfolded(x, size) if is_there else x
        for x, is_there in zip(outputs, captured, strict=True)
    ), tuple(0 if is_there else None for is_there in captured)


def _precision() -> str:
    """Of float32 products on a GPU: torch's own switch, exact by default."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


@cache
def _kernels():
    from bwt.kernels import attention

    return attention


def _triton_forward(q, k, v, causal, scale, weights, entropy):
    call = _kernels().Call.of(q, k, v, causal, scale, weights, entropy)
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
):
    incoming = (grad_out, grad_weights, grad_entropy, grad_lse)
    call = _kernels().Call.of(q, k, v, causal, scale)
    return call.backward(*incoming, q, k, v, out, lse, entropy, _precision())


_library.library.impl(OP, _triton_forward, "CUDA")
_library.library.impl(f"{OP}_backward", _triton_backward, "CUDA")
torch.library.register_autograd("bwt::attention", _backward, setup_context=_setup_context)
torch.library.register_vmap("bwt::attention", _vmap)
