"""Filtering of hidden Markov models: the public op."""

import torch
from torch import Tensor

from bwt.kernels import plans, results
from bwt.kernels.contracts import HALVES, HMM_FILTER, INTEGERS, ROW_SUM_TOLERANCE
from bwt.ops import _checks, _derivatives, _dispatch, _eager, _library
from bwt.ops._hmm_filter_torch import hmm_filter_backward_wide, hmm_filter_torch
from bwt.reference.hmm_filter import HMMFilterOutput
from bwt.reference.hmm_filter import hmm_filter as hmm_filter_reference

OP = HMM_FILTER.op
DTYPES = HMM_FILTER.dtypes
MAX_STATES, MAX_SYMBOLS = HMM_FILTER.limit("num_states"), HMM_FILTER.limit("num_symbols")
PARAMETERS = {"initial": 1, "transition": 2, "emission": 2}  # dimensions when shared
Arguments = tuple[Tensor, Tensor, Tensor, Tensor]  # observations, then the parameters


def hmm_filter(
    observations: Tensor,
    initial: Tensor,
    transition: Tensor,
    emission: Tensor,
    *,
    lengths: Tensor | None = None,
    check: bool = True,
    backend: str = "auto",
) -> HMMFilterOutput:
    """Filtered and predicted state distributions of hidden Markov models, and the likelihood.

    With e_t = emission[:, y_t], all ones where y_t is missing,

        predicted_0 = initial,  predicted_t = filtered_{t-1} transition,
        c_t = sum(predicted_t * e_t),  filtered_t = predicted_t * e_t / c_t,
        log_likelihood = sum_t log c_t.

    An observation that is impossible given those before it (c_t = 0) makes filtered 0 from that
    step on, predicted 0 from the next step on and log_likelihood -inf. Steps beyond a sequence's
    length are 0 in both. Nothing is ever NaN. Neither length nor values make a probability
    underflow on the way: -inf means impossible, and what is a normal number is right to rounding.

    Gradients flow to the three parameters through all outputs, by the adjoint recursion from the
    saved outputs; further derivatives, and those of forward mode and torch.func, take plain torch
    operations. Parameters are taken as free numbers: rows that sum to 1 are required, but the
    gradient is not projected on that. An impossible sequence has gradient zero. A derivative that
    overflows is the largest number of the dtype (in float64, what is above 2^1000).

    Args:
        observations: [B, T] int32 or int64 in [0, V), -1 for a missing one; any strides.
        initial: [S], or [B, S] with one for each sequence; S at most 128.
        transition: [S, S] or [B, S, S]; the row is the state that is left.
        emission: [S, V] or [B, S, V]; V at most 4096.
            These are distributions: rows sum to 1 within 1e-4. They are float32, float64, or
            float16 or bfloat16, which are computed in float32 (on a CPU, and for gradients, by way
            of copies); their rows may be off by half a unit in the last place more.
        lengths: [B] int32 or int64 in [0, T]; what observations hold beyond them is not read.
        check: False takes values on trust: nothing is read back from the device, so that the host
            need not wait for it. An observation below -1 counts as missing then, one of V or more
            as impossible (an error of torch's own in the backend "torch"), a length out of range
            as the nearest, and rows that are no distributions give outputs that are none. The
            native backend and the reference check all the same, as it costs nothing there.
        backend: "auto", "native", "triton", "torch" or "reference".

    Returns:
        HMMFilterOutput(filtered [B, T, S], predicted [B, T, S], log_likelihood [B]), in the dtype
        of the parameters; log_likelihood of halves is float32.

    Raises:
        ValueError: an argument is malformed. Inside torch.compile and torch.func the native backend
            raises a RuntimeError for values out of range; the others do not look at values there.

    >>> import torch
    >>> stay, seen = torch.tensor([[0.9, 0.1], [0.1, 0.9]]), torch.tensor([[0.8, 0.2], [0.2, 0.8]])
    >>> hmm_filter(torch.tensor([[0, -1, 1]]), torch.tensor([0.5, 0.5]), stay, seen).filtered[0]
    tensor([[0.8000, 0.2000],
            [0.7400, 0.2600],
            [0.3597, 0.6403]])
    """
    arguments = (observations, initial, transition, emission)
    chosen, lengths = prepare(OP, backend, arguments, lengths)
    if chosen == "reference":
        return reference(OP, hmm_filter_reference, HMMFilterOutput, arguments, lengths)
    dtype = initial.dtype
    # What a gradient starts from must not be rounded to halves.
    if dtype in HALVES and (chosen != "triton" or _derivatives_possible(*arguments)):
        tolerance = _checks.row_sum_tolerance(dtype)
        outputs = run(OP, chosen, widened(arguments), lengths, check, tolerance)
        filtered, predicted, log_likelihood = outputs
        return HMMFilterOutput(filtered.to(dtype), predicted.to(dtype), log_likelihood)
    return HMMFilterOutput(*run(OP, chosen, arguments, lengths, check))


def _derivatives_possible(*tensors: Tensor) -> bool:
    return _checks.is_recorded(*tensors) or _derivatives.transformed()


def widened(arguments: Arguments) -> Arguments:
    """Parameters that are halves as float32."""
    observations, initial, transition, emission = arguments
    if initial.dtype not in HALVES:
        return arguments
    return observations, initial.float(), transition.float(), emission.float()


def prepare(op: str, backend: str, arguments: Arguments, lengths: Tensor | None):
    """The backend that serves the call, and the lengths as it wants them."""
    signature = _eager.signature(op, (backend,), *arguments, lengths)
    chosen = signature and plans.find(signature)
    if chosen is None:
        check_shapes(op, *arguments, lengths)
        chosen = _dispatch.choose(op, backend, arguments[0].device)
        if signature is not None:
            plans.keep(signature, chosen)
    return chosen, None if lengths is None else lengths.long()


def run(
    op: str,
    chosen: str,
    arguments: Arguments,
    lengths: Tensor | None,
    check: bool = True,
    tolerance: float | None = None,
):
    """filtered, predicted, log_likelihood from a backend other than the reference.

    tolerance: of row sums, if it is not that of the parameters' dtype.
    """
    if tolerance is None:
        tolerance = _checks.row_sum_tolerance(arguments[1].dtype)
    unseen = torch.compiler.is_compiling() or _derivatives.transformed()
    if chosen != "native":
        if check and not unseen:
            check_values(op, *arguments, lengths, tolerance)
        if chosen == "torch":
            return hmm_filter_torch(*arguments, lengths)
        compute = _eager.shortest(torch.ops.bwt.hmm_filter, _direct, *arguments, lengths)
        return compute(*arguments, lengths)
    if unseen:
        return torch.ops.bwt.hmm_filter(*arguments, lengths, tolerance)
    try:
        return torch.ops.bwt.hmm_filter(*arguments, lengths, tolerance)
    except RuntimeError as reason:
        error = reason
    # The kernel checks values on its way; which one was wrong is found out here.
    check_values(op, *arguments, lengths, tolerance)
    raise error


def check_shapes(op, observations, initial, transition, emission, lengths) -> None:
    _checks.check_tensor(op, "observations", observations, INTEGERS)
    if observations.ndim != 2:
        shape = tuple(observations.shape)
        raise ValueError(f"{op}: observations must be [batch, steps], got shape {shape}")
    batch = observations.shape[0]
    parameters = {"initial": initial, "transition": transition, "emission": emission}
    for name, x in parameters.items():
        _checks.check_tensor(op, name, x, DTYPES)
        if (x.dtype, x.device) != (initial.dtype, observations.device):
            raise ValueError(
                f"{op}: parameters must agree in dtype and lie where observations do, got {name} "
                f"{x.dtype} on {x.device}, initial {initial.dtype} and observations on "
                f"{observations.device}"
            )
        if x.ndim - PARAMETERS[name] not in (0, 1):
            raise ValueError(
                f"{op}: {name} must have {PARAMETERS[name]} dimensions, or one more for the batch, "
                f"got shape {tuple(x.shape)}"
            )
    S, V = initial.shape[-1], emission.shape[-1]
    if not (1 <= S <= MAX_STATES and 1 <= V <= MAX_SYMBOLS):
        raise ValueError(
            f"{op}: takes 1 to {MAX_STATES} states and 1 to {MAX_SYMBOLS} symbols, "
            f"got {S} (initial) and {V} (emission)"
        )
    for name, shape in {"initial": (S,), "transition": (S, S), "emission": (S, V)}.items():
        if parameters[name].shape not in (shape, (batch, *shape)):
            raise ValueError(
                f"{op}: {name} must be {list(shape)} or {[batch, *shape]} "
                f"(S={S}, V={V}, batch {batch}), got {list(parameters[name].shape)}"
            )
    if lengths is None:
        return
    _checks.check_tensor(op, "lengths", lengths, INTEGERS)
    if lengths.shape != (batch,) or lengths.device != observations.device:
        raise ValueError(
            f"{op}: lengths must be [{batch}] on {observations.device}, "
            f"got {list(lengths.shape)} on {lengths.device}"
        )


def check_values(
    op, observations, initial, transition, emission, lengths, tolerance=ROW_SUM_TOLERANCE
) -> None:
    """Raises for the first value that is out of range or row that is no distribution."""
    batch, steps = observations.shape
    if batch == 0:
        return
    seen = torch.ones_like(observations, dtype=torch.bool)
    if lengths is not None:
        if place := _checks.first_place((lengths < 0) | (lengths > steps)):
            got = int(lengths[place])
            raise ValueError(f"{op}: lengths[{place[0]}] is {got}; must be 0 to {steps}")
        seen = torch.arange(steps, device=lengths.device) < lengths[:, None]
    V = emission.shape[-1]
    if place := _checks.first_place(seen & ((observations < -1) | (observations >= V))):
        b, t = place
        raise ValueError(
            f"{op}: observations[{b}, {t}] is {int(observations[b, t])}; "
            f"must be 0 to {V - 1}, or -1 for a missing one"
        )
    for name, x in (("initial", initial), ("transition", transition), ("emission", emission)):
        _checks.check_distributions(op, name, x, tolerance)


def reference(op, compute, output, arguments, lengths):
    _checks.refuse_gradient(op, "the parameters", *arguments)
    dtype = arguments[1].dtype
    check_values(op, *arguments, lengths, _checks.row_sum_tolerance(dtype))
    *distributions, log_likelihood = compute(
        *(x.numpy(force=True) for x in widened(arguments)),
        lengths=None if lengths is None else lengths.numpy(force=True),
    )
    distributions = [torch.from_numpy(x).to(dtype) for x in distributions]
    wide = torch.float32 if dtype in HALVES else dtype
    return output(*distributions, torch.from_numpy(log_likelihood).to(wide))


_library.define(
    "hmm_filter(Tensor observations, Tensor initial, Tensor transition, Tensor emission, "
    f"Tensor? lengths, float row_sum_tolerance={ROW_SUM_TOLERANCE}) -> (Tensor, Tensor, Tensor)"
)
_library.define(
    "hmm_filter_backward(Tensor? grad_filtered, Tensor? grad_predicted, "
    "Tensor? grad_log_likelihood, Tensor observations, Tensor initial, Tensor transition, "
    "Tensor emission, Tensor? lengths, Tensor filtered, Tensor predicted, Tensor log_likelihood) "
    "-> (Tensor, Tensor, Tensor)"
)


def _triton(observations, initial, transition, emission, lengths, row_sum_tolerance=None):
    from bwt.kernels.hmm_filter import hmm_filter_forward

    return hmm_filter_forward(observations, initial, transition, emission, lengths)


def _triton_backward(*arguments):
    from bwt.kernels.hmm_filter import hmm_filter_backward

    def exact(marks):
        return hmm_filter_backward_wide(marks, *arguments[:8])

    return hmm_filter_backward(*arguments, exact=exact)


_library.library.impl(OP, _triton, "CUDA")
_library.library.impl(f"{OP}_backward", _triton_backward, "CUDA")


@torch.library.register_fake("bwt::hmm_filter")
def _fake(observations, initial, transition, emission, lengths, row_sum_tolerance=None):
    return results.hmm_filter(observations, initial)


@torch.library.register_fake("bwt::hmm_filter_backward")
def _fake_backward(
    grad_filtered,
    grad_predicted,
    grad_log_likelihood,
    observations,
    initial,
    transition,
    emission,
    lengths,
    filtered,
    predicted,
    log_likelihood,
):
    return results.dense(initial, transition, emission)


def _setup_context(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[:5], *output)
    ctx.inputs = len(inputs)
    # Absent gradients stay None: a zero would be as large as an output.
    ctx.set_materialize_grads(False)


def _backward(ctx, *incoming):
    if _derivatives.graph_wanted():
        saved, needed = ctx.saved_tensors[:5], ctx.needs_input_grad[:5]
        found = _derivatives.gradients(hmm_filter_torch, saved, needed, incoming)
        return *found, *[None] * (ctx.inputs - 5)
    saved = ctx.saved_tensors
    run = _eager.shortest(torch.ops.bwt.hmm_filter_backward, _triton_backward, *saved, *incoming)
    return None, *run(*incoming, *saved), *[None] * (ctx.inputs - 4)


_direct = _eager.direct(_triton, _setup_context, _backward)


def fold(size: int, axes, arguments):
    """Observations, parameters and lengths with the axis of vmap merged into the batch."""
    observations, *parameters, lengths = arguments
    observations = _derivatives.folded(observations, axes[0], size)
    batch = observations.shape[0] // size
    folded = []
    for x, axis, shared in zip(parameters, axes[1:4], PARAMETERS.values(), strict=True):
        is_shared = x.ndim - (axis is not None) == shared
        if is_shared and axis is not None:  # one for each element of the axis
            x = x.movedim(axis, 0)
            x, axis = x.unsqueeze(1).expand(size, batch, *x.shape[1:]), 0
        folded.append(x if is_shared and axis is None else _derivatives.folded(x, axis, size))
    return observations, *folded, _derivatives.folded(lengths, axes[4], size)


def _vmap(info, axes, *arguments):
    folded = fold(info.batch_size, axes[:5], arguments[:5])
    outputs = torch.ops.bwt.hmm_filter(*folded, *arguments[5:])
    return tuple(_derivatives.unfolded(x, info.batch_size) for x in outputs), (0, 0, 0)


torch.library.register_vmap("bwt::hmm_filter", _vmap)
torch.library.register_autograd("bwt::hmm_filter", _backward, setup_context=_setup_context)
