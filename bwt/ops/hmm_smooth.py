"""Smoothing of hidden Markov models: the public op, on top of hmm_filter."""

from collections.abc import Callable

import torch
from torch import Tensor

from bwt.kernels.contracts import HMM_SMOOTH
from bwt.ops import _checks, _derivatives, _library
from bwt.ops._hmm_filter_torch import hmm_smooth_torch
from bwt.ops.hmm_filter import fold, prepare, reference, run, widened
from bwt.reference.hmm_filter import HMMSmoothOutput
from bwt.reference.hmm_filter import hmm_smooth as hmm_smooth_reference

OP = HMM_SMOOTH.op


def hmm_smooth(
    observations: Tensor,
    initial: Tensor,
    transition: Tensor,
    emission: Tensor,
    *,
    lengths: Tensor | None = None,
    backend: str = "auto",
) -> HMMSmoothOutput:
    """State distributions given the whole sequence, p(z_t | y_1..T).

    Arguments, limits and errors are those of hmm_filter. An impossible sequence has smoothed 0 at
    all steps and log_likelihood -inf; steps beyond a sequence's length are 0. smoothed carries no
    gradient; log_likelihood has that of hmm_filter.

    Returns:
        HMMSmoothOutput(smoothed [B, T, S], log_likelihood [B]), in the dtype of the parameters;
        log_likelihood of halves is float32.

    >>> import torch
    >>> stay, seen = torch.tensor([[0.9, 0.1], [0.1, 0.9]]), torch.tensor([[0.8, 0.2], [0.2, 0.8]])
    >>> hmm_smooth(torch.tensor([[0, -1, 0]]), torch.tensor([0.5, 0.5]), stay, seen).smoothed[0]
    tensor([[0.8999, 0.1001],
            [0.8901, 0.1099],
            [0.8999, 0.1001]])
    """
    arguments = (observations, initial, transition, emission)
    chosen, lengths = prepare(OP, backend, arguments, lengths)
    if chosen == "reference":
        return reference(OP, hmm_smooth_reference, HMMSmoothOutput, arguments, lengths)
    tolerance = _checks.row_sum_tolerance(initial.dtype)
    arguments = widened(arguments)
    filtered, predicted, log_likelihood = run(OP, chosen, arguments, lengths, True, tolerance)
    saved = [x.detach() for x in (filtered, predicted, log_likelihood)]
    detached = [x.detach() for x in arguments]
    smooth: Callable[..., Tensor] = torch.ops.bwt.hmm_smooth
    if chosen != "native":
        # A few products for each step: the filter decides the time.
        smooth = hmm_smooth_torch
    smoothed = smooth(*detached, lengths, *saved)
    return HMMSmoothOutput(smoothed.to(initial.dtype), log_likelihood)


_library.define(
    "hmm_smooth(Tensor observations, Tensor initial, Tensor transition, Tensor emission, "
    "Tensor? lengths, Tensor filtered, Tensor predicted, Tensor log_likelihood) -> Tensor"
)


@torch.library.register_fake("bwt::hmm_smooth")
def _fake(
    observations, initial, transition, emission, lengths, filtered, predicted, log_likelihood
):
    return filtered.new_empty(filtered.shape)


def _vmap(info, axes, *arguments):
    size = info.batch_size
    rows = (_derivatives.folded(arguments[i], axes[i], size) for i in (5, 6, 7))
    smoothed = torch.ops.bwt.hmm_smooth(*fold(size, axes[:5], arguments[:5]), *rows)
    return _derivatives.unfolded(smoothed, size), 0


torch.library.register_vmap("bwt::hmm_smooth", _vmap)
