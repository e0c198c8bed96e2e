"""Exact posterior over bijections: the public op."""

import torch
from torch import Tensor

from bwt import reference
from bwt.kernels.contracts import BIJECTION_POSTERIOR, INTEGERS
from bwt.ops import _checks, _derivatives, _dispatch, _library
from bwt.ops._bijection_posterior_torch import bijection_posterior_torch
from bwt.reference.bijection_posterior import BijectionPosterior, contradiction

OP = BIJECTION_POSTERIOR.op
CHANNEL_DTYPES = BIJECTION_POSTERIOR.dtypes
MAX_SYMBOLS = BIJECTION_POSTERIOR.limit("num_symbols")
MAX_NOISY_SYMBOLS = BIJECTION_POSTERIOR.limit("num_noisy_symbols")
SIZES = (int, torch.SymInt)
NO_FAULT = 0x7F7F7F7F7F7F7F7F  # kNoFault of csrc/host_device


def bijection_posterior(
    keys: Tensor,
    values: Tensor,
    num_symbols: int,
    *,
    channel: Tensor | None = None,
    check: bool = True,
    backend: str = "auto",
) -> BijectionPosterior:
    """Posterior of a uniformly drawn bijection, step by step, exactly.

    Row t is p(pi(keys[t]) = . | pairs before t). Without a channel, values are pi(key) itself, and
    the cost is that of writing the output. With a channel, values are drawn from
    channel[pi(key), .] and the posterior comes from dynamic programming over subsets of values:
    sum_i i * C(V, i) multiply-adds per sequence if no key repeats, at most V * 2^(V-1); a repeated
    key rebuilds the levels above it. Gradients flow to the channel; second derivatives, and those
    of forward mode and torch.func, take plain torch operations.

    Args:
        keys, values: [B, K] int32 or int64 in [0, num_symbols), any strides; keys may repeat.
        num_symbols: V, at most 4096; at most 24 with a channel.
        channel: [V, V] float32 or float64, row-stochastic p(observed | true).
        check: False takes values on trust: nothing is read back from the device, so that the host
            need not wait for it. From an id out of range or a contradiction on, rows are zero and
            log_evidence is -inf then (backend "torch" takes the nearest id instead), and a channel
            that is no channel gives rows that are no distributions. On the CPU the native backend
            checks the ids all the same, which costs nothing there, and the reference checks all.
        backend: "auto", "native", "cuda", "torch" or "reference".

    Returns:
        BijectionPosterior(posterior [B, K, V], entropy [B, K] in bits, log_evidence [B, K] with
        log p(values[0..t] | keys[0..t])), in the channel's dtype or torch's default dtype.

    Raises:
        ValueError: an argument is malformed, or the evidence contradicts itself (probability
            zero). Inside torch.compile and torch.func this is not checked: from the contradiction
            on, rows are zero and log_evidence is -inf.

    >>> import torch
    >>> keys, values = torch.tensor([[0, 2, 0]]), torch.tensor([[1, 3, 1]])
    >>> bijection_posterior(keys, values, 4).entropy
    tensor([[2.0000, 1.5850, 0.0000]])
    """
    _check_ids(keys, values)
    _check_symbols(num_symbols, noisy=channel is not None)
    unseen = torch.compiler.is_compiling() or _derivatives.transformed()
    if channel is not None:
        _check_channel(channel, num_symbols, keys.device)
        if check and not unseen:
            _checks.check_distributions(OP, "channel", channel)
    chosen = _dispatch.choose(OP, backend, keys.device, differentiable=channel is not None)
    if chosen == "reference":
        return _reference(keys, values, num_symbols, channel)
    dtype = torch.get_default_dtype() if channel is None else channel.dtype
    if chosen == "torch":
        exact = None if channel is None else channel.double()
        *outputs, fault = bijection_posterior_torch(keys, values, num_symbols, exact, dtype)
    elif channel is None:
        *outputs, fault = _op.default(keys, values, num_symbols, dtype)
    else:
        *outputs, fault = _op.noisy(keys, values, channel.double(), dtype)
    if (check or chosen == "native") and not unseen:
        _raise_fault(int(fault), keys, values, num_symbols, contradictions=check)
    return BijectionPosterior(*outputs)


def _check_ids(keys: Tensor, values: Tensor) -> None:
    for name, ids in (("keys", keys), ("values", values)):
        _checks.check_tensor(OP, name, ids, INTEGERS)
        if ids.ndim != 2:
            raise ValueError(f"{OP}: {name} must be [batch, steps], got shape {tuple(ids.shape)}")
    if (keys.shape, keys.dtype, keys.device) != (values.shape, values.dtype, values.device):
        raise ValueError(
            f"{OP}: keys and values must agree in shape, dtype and device, got "
            f"{tuple(keys.shape)} {keys.dtype} on {keys.device} and "
            f"{tuple(values.shape)} {values.dtype} on {values.device}"
        )


def _check_symbols(num_symbols: int, *, noisy: bool) -> None:
    if isinstance(num_symbols, bool) or not isinstance(num_symbols, SIZES):
        raise ValueError(f"{OP}: num_symbols must be an int, got {type(num_symbols).__name__}")
    limit = MAX_NOISY_SYMBOLS if noisy else MAX_SYMBOLS
    if not 1 <= num_symbols <= limit:
        reason = " with a channel (its table of subsets has 2^V entries)" if noisy else ""
        raise ValueError(f"{OP}: num_symbols must be 1 to {limit}{reason}, got {num_symbols}")


def _check_channel(channel: Tensor, num_symbols: int, device: torch.device) -> None:
    _checks.check_tensor(OP, "channel", channel, CHANNEL_DTYPES)
    if tuple(channel.shape) != (num_symbols, num_symbols) or channel.device != device:
        raise ValueError(
            f"{OP}: channel must be [{num_symbols}, {num_symbols}] on {device}, "
            f"got {tuple(channel.shape)} on {channel.device}"
        )


def _reference(keys, values, num_symbols, channel) -> BijectionPosterior:
    _checks.refuse_gradient(OP, "the channel", channel)
    dtype = torch.get_default_dtype() if channel is None else channel.dtype
    _raise_fault(_range_fault(keys, values, num_symbols), keys, values, num_symbols)
    arrays = reference.bijection_posterior(
        keys.numpy(force=True),
        values.numpy(force=True),
        num_symbols,
        channel=None if channel is None else channel.numpy(force=True),
    )
    return BijectionPosterior(*(torch.from_numpy(array).to(dtype) for array in arrays))


def _range_fault(keys: Tensor, values: Tensor, num_symbols: int) -> int:
    """The first id out of range, in the code of the kernels."""
    codes = [
        torch.where((ids < 0) | (ids >= num_symbols), step * 4 + code, NO_FAULT)
        for code, ids in enumerate((keys, values))
        for step in [torch.arange(ids.numel()).view(ids.shape)]
    ]
    return min(int(code.min()) if code.numel() else NO_FAULT for code in codes)


def _raise_fault(
    fault: int, keys: Tensor, values: Tensor, num_symbols: int, *, contradictions: bool = True
) -> None:
    row, kind = divmod(fault, 4)
    if fault == NO_FAULT or (kind == 2 and not contradictions):
        return
    b, t = divmod(row, keys.shape[1])
    key, value = int(keys[b, t]), int(values[b, t])
    if kind == 2:
        raise ValueError(contradiction(b, t, key, value))
    name, got = ("keys", key) if kind == 0 else ("values", value)
    raise ValueError(
        f"{OP}: {name}[{b}, {t}] is {got}; ids must be 0 to {num_symbols - 1} "
        f"(num_symbols={num_symbols})"
    )


# Two overloads, because the one without a channel has no gradient and need not pass autograd.
_library.define(
    "bijection_posterior(Tensor keys, Tensor values, int num_symbols, ScalarType dtype) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)
_library.define(
    "bijection_posterior.noisy(Tensor keys, Tensor values, Tensor channel, ScalarType dtype) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)
_library.define(
    "bijection_posterior_backward(Tensor grad_posterior, Tensor grad_entropy, "
    "Tensor grad_later_evidence, Tensor keys, Tensor values, Tensor channel) -> Tensor"
)


_op = torch.ops.bwt.bijection_posterior


@torch.library.register_fake("bwt::bijection_posterior")
def _fake(keys, values, num_symbols, dtype):
    batch, length = keys.shape
    return (
        keys.new_empty((batch, length, num_symbols), dtype=dtype),
        keys.new_empty((batch, length), dtype=dtype),
        keys.new_empty((batch, length), dtype=dtype),
        keys.new_empty((1,), dtype=torch.int64),
    )


@torch.library.register_fake("bwt::bijection_posterior.noisy")
def _fake_noisy(keys, values, channel, dtype):
    return _fake(keys, values, channel.shape[0], dtype)


@torch.library.register_fake("bwt::bijection_posterior_backward")
def _fake_backward(grad_posterior, grad_entropy, grad_later_evidence, keys, values, channel):
    return channel.new_empty(channel.shape)  # dense, whatever the strides of the channel


def _setup_context(ctx, inputs, output) -> None:
    keys, values, channel, ctx.dtype = inputs
    ctx.save_for_backward(keys, values, channel)


def _backward(ctx, grad_posterior, grad_entropy, grad_log_evidence, _):
    keys, values, channel = ctx.saved_tensors
    if not ctx.needs_input_grad[2]:
        return None, None, None, None
    shape = keys.shape
    incoming = (grad_posterior, grad_entropy, grad_log_evidence)
    if _derivatives.graph_wanted():

        def compute(channel):
            return bijection_posterior_torch(keys, values, len(channel), channel, ctx.dtype)[:3]

        return None, None, *_derivatives.gradients(compute, (channel,), (True,), incoming), None

    def dense(grad, size):
        return keys.new_zeros(size, dtype=ctx.dtype) if grad is None else grad.contiguous()

    # The evidence of a step is part of that of every later step.
    later = dense(grad_log_evidence, shape).double().flip(-1).cumsum(-1).flip(-1)
    grad_channel = torch.ops.bwt.bijection_posterior_backward(
        dense(grad_posterior, (*shape, channel.shape[0])),
        dense(grad_entropy, shape),
        later.contiguous(),
        keys,
        values,
        channel,
    )
    return None, None, grad_channel, None


torch.library.register_autograd(
    "bwt::bijection_posterior.noisy", _backward, setup_context=_setup_context
)


def _vmap(info, axes, keys, values, *options):
    """Of both overloads, unless there is a channel for each element of the axis."""
    size, op = info.batch_size, _op.noisy if isinstance(options[0], Tensor) else _op.default
    if axes[2] is not None:
        arguments = (keys, values, *options)
        return tuple(_derivatives.one_by_one(op, size, axes, arguments)), (0, 0, 0, 0)
    ids = (_derivatives.folded(keys, axes[0], size), _derivatives.folded(values, axes[1], size))
    *outputs, fault = op(*ids, *options)
    return (*(_derivatives.unfolded(x, size) for x in outputs), fault), (0, 0, 0, None)


torch.library.register_vmap("bwt::bijection_posterior", _vmap)
torch.library.register_vmap("bwt::bijection_posterior.noisy", _vmap)
