"""Normalisation by the root mean square, in one pass each way: the public op."""

import torch
from torch import Tensor
from torch.nn import functional

from bwt import reference
from bwt.kernels.contracts import HALVES, RMS_NORM
from bwt.ops import _checks, _derivatives, _dispatch, _library, _rows

OP = RMS_NORM.op
ARGUMENTS = [
    _checks.Argument("x", "[..., C]", None),
    _checks.Argument("weight", _rows.LAYOUT, None, is_parameter=True),
]


def rms_norm(x: Tensor, weight: Tensor, *, epsilon: float = 1e-6, backend: str = "auto") -> Tensor:
    """x / sqrt(mean(x^2) + epsilon) * weight over the last dimension.

    torch's own is a chain of small ops on a CPU, each a pass through memory. By default it serves
    halves, GPUs and what torch.compile compiles all the same.

    Args:
        x: [..., C], C >= 1; float32 or float64 for "native" and "reference".
        weight: [C], or [M, C] if the rows of x are those of M models, one model's after another's;
            on the same device and of the same dtype or, beside halves, float32.
        backend: "auto", "native", "torch" or "reference".

    >>> import torch
    >>> rms_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0]))
    tensor([[0.8485, 2.2627]])
    """
    _checks.check_epsilon(OP, epsilon)
    _check(x, weight)
    chosen = _dispatch.choose_beside_torch(RMS_NORM, backend, x)
    _checks.check_dtype(RMS_NORM, chosen, x.dtype, "x and weight")
    if chosen == "torch":
        return plain(x, weight, epsilon)
    if chosen == "reference":
        _checks.refuse_gradient(OP, "x and weight", x, weight)
        arrays = (tensor.numpy(force=True) for tensor in (x, weight))
        return torch.from_numpy(reference.rms_norm(*arrays, epsilon=epsilon)).to(x.dtype)
    y, _ = torch.ops.bwt.rms_norm(x, weight, epsilon)
    return y


def _check(x: Tensor, weight: Tensor) -> None:
    _checks.check_alike(OP, ARGUMENTS, (x, weight))
    _rows.check(OP, "weight", weight, x)


def plain(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """In torch's own operations."""
    if weight.ndim == 1:
        # In one dtype, or torch takes a slower way.
        return functional.rms_norm(x, weight.shape, weight.to(x.dtype), epsilon)
    inner = x.float() if x.dtype in HALVES else x  # rounded once, behind the gain
    rows, weight = _rows.by_model(functional.rms_norm(inner, x.shape[-1:], None, epsilon), weight)
    return (rows * weight).to(x.dtype).reshape(x.shape)


_library.define("rms_norm(Tensor x, Tensor weight, float epsilon) -> (Tensor, Tensor)")
_library.define(
    "rms_norm_backward(Tensor grad_y, Tensor x, Tensor weight, Tensor scale) -> (Tensor, Tensor)"
)


@torch.library.register_fake("bwt::rms_norm")
def _fake(x, weight, epsilon):
    return x.new_empty(x.shape), x.new_empty(x.shape[:-1].numel())


@torch.library.register_fake("bwt::rms_norm_backward")
def _fake_backward(grad_y, x, weight, scale):
    return x.new_empty(x.shape), weight.new_empty(weight.shape)


def _setup_context(ctx, inputs, output) -> None:
    x, weight, ctx.epsilon = inputs
    ctx.set_materialize_grads(False)  # no zeros for the second output
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x, weight, output[1])


def _backward(ctx, grad_y, _):
    if grad_y is None:
        return None, None, None
    x, weight, scale = ctx.saved_tensors
    if not _derivatives.graph_wanted():
        return *torch.ops.bwt.rms_norm_backward(grad_y, x, weight, scale), None

    def compute(x, weight):
        return (plain(x, weight, ctx.epsilon),)

    needed = ctx.needs_input_grad[:2]
    return *_derivatives.gradients(compute, (x, weight), needed, (grad_y,)), None


def _vmap(info, axes, x, weight, epsilon):
    (x,), (weight,) = _rows.folded(info.batch_size, [(x, axes[0])], [(weight, axes[1])])
    y, scale = torch.ops.bwt.rms_norm(x, weight, epsilon)
    return (y, _derivatives.unfolded(scale, info.batch_size)), (0, 0)


torch.library.register_autograd("bwt::rms_norm", _backward, setup_context=_setup_context)
torch.library.register_vmap("bwt::rms_norm", _vmap)
