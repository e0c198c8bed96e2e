"""The selective scan of state-space models: the public op."""

from typing import Literal, TypeVar, cast, overload

import torch
from torch import Tensor

from bwt import reference
from bwt.kernels import results
from bwt.kernels.contracts import HALVES, SCAN_CHUNK, SELECTIVE_SCAN
from bwt.ops import _checks, _derivatives, _dispatch, _library
from bwt.ops._selective_scan_torch import selective_scan_states_torch, selective_scan_torch

OP = SELECTIVE_SCAN.op
MAX_STATES = SELECTIVE_SCAN.limit("num_states")
ARGUMENTS = [
    _checks.Argument("u", "[B, L, E]", 3),
    _checks.Argument("delta", "[B, L, E]", 3),
    _checks.Argument("A", "[E, N] or [M, E, N]", None, is_parameter=True),
    _checks.Argument("B", "[B, L, N]", 3),
    _checks.Argument("C", "[B, L, N]", 3),
]


Tensors = TypeVar("Tensors", bound=tuple[Tensor | None, ...])


@overload
def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    *,
    delta_softplus: bool = False,
    initial_state: Tensor | None = None,
    return_last_state: Literal[False] = False,
    backend: str = "auto",
) -> Tensor: ...


@overload
def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    *,
    delta_softplus: bool = False,
    initial_state: Tensor | None = None,
    return_last_state: Literal[True],
    backend: str = "auto",
) -> tuple[Tensor, Tensor]: ...


def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    *,
    delta_softplus: bool = False,
    initial_state: Tensor | None = None,
    return_last_state: bool = False,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """A linear recurrence of N states per channel, whose step sizes, inputs and outputs are data.

    With s = delta, or softplus(delta), for every sequence and channel

        h_t = exp(s_t A) h_{t-1} + s_t B_t u_t,   y_t = C_t . h_t + D u_t,

    where h before the start is initial_state, or 0. A sequence may so be taken in segments, each of
    which begins with the last state of the one before: values and gradients are those of the whole.

    For gradients, h is saved every 16 steps and computed again between; further derivatives, and
    those of forward mode and torch.func, take plain torch operations. Where an exponential is
    outside the normal numbers the native kernel takes the largest or smallest of them.

    A batch may hold the sequences of M models, those of each side by side: sequence b then has A
    and D of model b // (B / M), and gradients are of each model. torch.func.vmap comes to this: its
    axis is merged into the batch, whether A and D have it or not.

    Args:
        u, delta: [B, L, E], any strides (no copy is made if the last is 1; so for B and C).
        A: [E, N], or [M, E, N] for M models, a divisor of the batch; N at most 64; negative for a
            state that fades.
        B, C: [B, L, N].
        D: [E] or [M, E], or None for no direct term.
        delta_softplus: step sizes are log(1 + exp(delta)).
            u, delta, B, C are of one dtype: float32, float64, or float16 or bfloat16, which are
            computed in float32 (on a CPU by way of copies). A and D are of the same or, beside
            halves, float32.
        initial_state: [B, E, N] in the dtype of u or, beside halves, float32, in any strides; no
            copy is made of the last state of another call.
        return_last_state: also return h after the last step.
        backend: "auto", "native", "triton", "torch" or "reference".

    Returns:
        y [B, L, E] in the dtype of u; or y and the last state [B, E, N], which is float32 beside
        halves. Gradients flow through both.

    >>> import torch
    >>> one = torch.ones(1, 4, 1)
    >>> selective_scan(one, one, torch.tensor([[-0.693147]]), one, one).flatten()
    tensor([1.0000, 1.5000, 1.7500, 1.8750])
    """
    _check(u, delta, A, B, C)
    _check_skip(D, u, A)
    _check_state(initial_state, u, A)
    if D is not None and A.ndim != D.ndim + 1:
        A, D = _of_as_many_models(A, D)
    chosen = _dispatch.choose(OP, backend, u.device)
    _checks.check_dtype(SELECTIVE_SCAN, chosen, u.dtype, "the arguments")
    tensors = (u, delta, A, B, C, D)
    tensors = tensors if chosen == "triton" else _widened(tensors, u.dtype)
    initial = _wide(initial_state)
    if chosen == "reference":
        options = {"delta_softplus": delta_softplus, "return_last_state": True}
        y, last = _reference(reference.selective_scan, tensors, initial, options)
    elif chosen == "torch":
        y, last = selective_scan_torch(*tensors, initial, delta_softplus)
    else:
        every = SCAN_CHUNK if _checks.is_recorded(*tensors, initial) else 0
        y, _, last = torch.ops.bwt.selective_scan(
            *tensors, _turned(initial), delta_softplus, every, return_last_state
        )
        last = last.transpose(1, 2)
    y = y.to(u.dtype)
    return (y, last) if return_last_state else y


def selective_scan_states(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    *,
    delta_softplus: bool = False,
    initial_state: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """The states h [B, L, E, N] of `selective_scan` after each step, to be looked at: they are N
    times as large as y, and no gradient flows through them. Those of halves are float32. As there,
    A may be that of several models, and initial_state [B, E, N] comes before the first step."""
    _check(u, delta, A, B)
    _check_state(initial_state, u, A)
    chosen = _dispatch.choose(OP, backend, u.device)
    _checks.check_dtype(SELECTIVE_SCAN, chosen, u.dtype, "the arguments")
    tensors = (u, delta, A, B)
    tensors = tensors if chosen == "triton" else _widened(tensors, u.dtype)
    u, delta, A, B = (x.detach() for x in tensors)
    initial = None if initial_state is None else _wide(initial_state.detach())
    if chosen == "reference":
        options = {"delta_softplus": delta_softplus}
        [states] = _reference(reference.selective_scan_states, (u, delta, A, B), initial, options)
        return states
    if chosen == "torch":
        return selective_scan_states_torch(u, delta, A, B, initial, delta_softplus)
    _, states, _ = torch.ops.bwt.selective_scan(
        u, delta, A, B, B, None, _turned(initial), delta_softplus, 1, False
    )
    return states.transpose(2, 3)


def _check(*tensors: Tensor) -> None:
    _checks.check_alike(OP, ARGUMENTS, tensors)
    u, A = tensors[0], tensors[2]
    if A.ndim not in (2, 3):
        raise ValueError(f"{OP}: A must be [E, N] or [M, E, N], got shape {tuple(A.shape)}")
    (batch, steps, channels), states = u.shape, A.shape[-1]
    if not 1 <= states <= MAX_STATES:
        raise ValueError(f"{OP}: A must have 1 to {MAX_STATES} states, got {states}")
    rows = (batch, steps, states)
    matrix = (channels, states) if A.ndim == 2 else (A.shape[0], channels, states)
    wanted = (u.shape, u.shape, matrix, rows, rows)
    for argument, x, shape in zip(ARGUMENTS, tensors, wanted, strict=False):
        if x.shape != shape:
            raise ValueError(
                f"{OP}: {argument.name} must be {argument.layout} = {list(shape)} "
                f"(as u and A say), got {list(x.shape)}"
            )
    if A.ndim == 3:
        _check_models("A", A, batch)


def _check_models(name: str, x: Tensor, batch: int) -> None:
    models = x.shape[0]
    if models < 1 or batch % models:
        raise ValueError(
            f"{OP}: {name} is of {models} models, and u has {batch} sequences; the batch must be a "
            "multiple of the models"
        )


def _check_skip(D: Tensor | None, u: Tensor, A: Tensor) -> None:
    if D is None:
        return
    _check_like("D", D, u)
    channels = u.shape[2:]
    if D.shape == channels:
        return
    models = A.shape[:-2] or D.shape[:1]
    if D.shape != (*models, *channels):
        several = f"[{models[0] if A.ndim == 3 else 'M'}, {channels[0]}]"
        raise ValueError(
            f"{OP}: D must be [E] = {list(channels)} or [M, E] = {several}, got {list(D.shape)}"
        )
    _check_models("D", D, u.shape[0])


def _check_state(state: Tensor | None, u: Tensor, A: Tensor) -> None:
    if state is None:
        return
    _check_like("initial_state", state, u)
    wanted = [u.shape[0], *A.shape[-2:]]
    if list(state.shape) != wanted:
        raise ValueError(
            f"{OP}: initial_state must be [B, E, N] = {wanted}, got {list(state.shape)}"
        )


def _check_like(name: str, x: Tensor, u: Tensor) -> None:
    if isinstance(x, Tensor):
        _checks.check_floating(OP, name, x)
        same = x.dtype == u.dtype or _checks.are_float32_and_half(x.dtype, u.dtype)
        if same and x.device == u.device:
            return
    got = f"{x.dtype} on {x.device}" if isinstance(x, Tensor) else type(x).__name__
    raise ValueError(f"{OP}: {name} must be None or like u {u.dtype} on {u.device}, got {got}")


def _of_as_many_models(A: Tensor, D: Tensor) -> tuple[Tensor, Tensor]:
    """One of them is of several models: so is the other one then."""
    if A.ndim == 2:
        return A.expand(D.shape[0], *A.shape), D
    return A, D.expand(A.shape[0], *D.shape)


def _widened(tensors: Tensors, dtype: torch.dtype) -> Tensors:
    """Halves as float32, in which the states are kept."""
    if dtype not in HALVES:
        return tensors
    # A tuple as long as the first, with None in the same places.
    return cast(Tensors, tuple(None if x is None else x.float() for x in tensors))


def _wide(state: Tensor | None) -> Tensor | None:
    return state.float() if state is not None and state.dtype in HALVES else state


def _turned(state: Tensor | None) -> Tensor | None:
    """Between [B, E, N] and the layout of saved states, [B, N, E]."""
    return None if state is None else state.transpose(1, 2)


def _reference(compute, tensors, initial: Tensor | None, options: dict) -> list[Tensor]:
    _checks.refuse_gradient(OP, "the arguments", *tensors, initial)
    arrays = [None if x is None else x.numpy(force=True) for x in (*tensors, initial)]
    found = compute(*arrays[:-1], **options, initial_state=arrays[-1])
    found = found if isinstance(found, tuple) else (found,)
    return [torch.from_numpy(x).to(tensors[0].dtype) for x in found]


# Of initial and last states, as of the saved ones, the channels lie side by side: [B, N, E].
_library.define(
    "selective_scan(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D, "
    "Tensor? initial, bool softplus, int every, bool last) -> (Tensor, Tensor, Tensor)"
)
_library.define(
    "selective_scan_backward(Tensor grad_y, Tensor? grad_last, Tensor u, Tensor delta, Tensor A, "
    "Tensor B, Tensor C, Tensor? D, Tensor? initial, Tensor states, bool softplus, int every) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


@torch.library.register_fake("bwt::selective_scan")
def _fake(u, delta, A, B, C, D, initial, softplus, every, last):
    return results.selective_scan(u, A, every, last)


@torch.library.register_fake("bwt::selective_scan_backward")
def _fake_backward(grad_y, grad_last, u, delta, A, B, C, D, initial, states, softplus, every):
    return results.selective_scan_gradients(u, delta, A, B, C, D, initial)


def _triton(u, delta, A, B, C, D, initial, softplus, every, last):
    from bwt.kernels.selective_scan import selective_scan_forward

    options = {"softplus": softplus, "every": every, "last": last}
    return selective_scan_forward(u, delta, A, B, C, D, initial, **options)


def _triton_backward(grad_y, grad_last, u, delta, A, B, C, D, initial, states, softplus, every):
    from bwt.kernels import selective_scan as kernels

    return kernels.selective_scan_backward(
        grad_y, grad_last, u, delta, A, B, C, D, initial, states, softplus=softplus, every=every
    )


def _setup_context(ctx, inputs, output) -> None:
    *tensors, ctx.softplus, ctx.every, ctx.last = inputs
    ctx.has_skip, ctx.has_initial = tensors[5] is not None, tensors[6] is not None
    _, states, last = output
    ctx.save_for_backward(*tensors, states)
    ctx.mark_non_differentiable(*((states,) if ctx.last else (states, last)))
    ctx.set_materialize_grads(False)  # of a result that nobody uses


def _backward(ctx, grad_y, _, grad_last):
    grad_y = torch.zeros_like(ctx.saved_tensors[0]) if grad_y is None else grad_y
    if _derivatives.graph_wanted():

        def compute(*tensors):
            *tensors, initial = tensors
            wide = _widened(tuple(tensors), tensors[0].dtype)
            y, last = selective_scan_torch(*wide, _turned(initial), ctx.softplus)
            return y.to(tensors[0].dtype), _turned(last)

        saved, needed = ctx.saved_tensors[:7], ctx.needs_input_grad[:7]
        found = _derivatives.gradients(compute, saved, needed, (grad_y, grad_last))
        return *found, None, None, None
    *gradients, grad_skip, grad_initial = torch.ops.bwt.selective_scan_backward(
        grad_y, grad_last, *ctx.saved_tensors, ctx.softplus, ctx.every
    )
    grad_skip = grad_skip if ctx.has_skip else None
    grad_initial = grad_initial if ctx.has_initial else None
    return *gradients, grad_skip, grad_initial, None, None, None


def _vmap(info, axes, *arguments):
    (*tensors, softplus, every, last), size = arguments, info.batch_size
    # A batched tensor does not say that gradients are wanted.
    every = every or (SCAN_CHUNK if _checks.is_recorded(*tensors) else 0)
    u, delta, B, C, initial = (
        _derivatives.folded(tensors[i], axes[i], size) for i in (0, 1, 3, 4, 6)
    )
    A, D = tensors[2], tensors[5]
    if axes[2] is not None or axes[5] is not None or A.ndim == 3:
        A, D = _models(A, axes[2], 2, size), _models(D, axes[5], 1, size)
    outputs = torch.ops.bwt.selective_scan(u, delta, A, B, C, D, initial, softplus, every, last)
    return tuple(_derivatives.unfolded(x, size) for x in outputs), (0, 0, 0)


def _models(x: Tensor | None, axis: int | None, ndim: int, size: int) -> Tensor | None:
    """The axis of vmap as that of the models; merged with theirs where there are some already."""
    if x is None:
        return None
    x = x.expand(size, *x.shape) if axis is None else x.movedim(axis, 0)
    return x.flatten(0, x.ndim - ndim - 1)


_library.library.impl(OP, _triton, "CUDA")
_library.library.impl(f"{OP}_backward", _triton_backward, "CUDA")
torch.library.register_autograd("bwt::selective_scan", _backward, setup_context=_setup_context)
torch.library.register_vmap("bwt::selective_scan", _vmap)
