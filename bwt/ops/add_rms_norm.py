"""A residual stream, what is added to it, and the norm of the sum, in one pass each way: the public
op."""

from typing import NamedTuple

import torch
from torch import Tensor

from bwt import reference
from bwt.kernels.contracts import ADD_RMS_NORM, HALVES
from bwt.ops import _checks, _derivatives, _dispatch, _library, _rows
from bwt.ops.rms_norm import plain as plain_norm

OP = ADD_RMS_NORM.op
ARGUMENTS = [
    _checks.Argument("x", "[..., C]", None),
    _checks.Argument("branch", "[..., C]", None),
    _checks.Argument("weight", _rows.LAYOUT, None, is_parameter=True),
    _checks.Argument("bias", _rows.LAYOUT, None, is_parameter=True),
]


class AddRMSNormOutput(NamedTuple):
    total: Tensor  # [..., C]
    normalised: Tensor  # [..., C]


def add_rms_norm(
    x: Tensor,
    branch: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-6,
    backend: str = "auto",
) -> AddRMSNormOutput:
    """total = x + (branch + bias), and total / sqrt(mean(total^2) + epsilon) * weight over the last
    dimension.

    The bias is that of the product which made the branch, and is cheaper to add here. By default
    plain torch serves halves (added up in float32), GPUs and what torch.compile compiles.

    Args:
        x, branch: [..., C], C >= 1; float32 or float64 for "native" and "reference".
        weight: [C], or [M, C] if the rows of x are those of M models, one model's after another's;
            on the same device and of the same dtype or, beside halves, float32.
        bias: as weight.
        backend: "auto", "native", "torch" or "reference".

    >>> import torch
    >>> x, branch = torch.tensor([[1.0, 5.0]]), torch.tensor([[2.0, -1.0]])
    >>> add_rms_norm(x, branch, torch.tensor([1.0, 2.0])).normalised
    tensor([[0.8485, 2.2627]])
    """
    _checks.check_epsilon(OP, epsilon)
    _check(x, branch, weight, bias)
    chosen = _dispatch.choose_beside_torch(ADD_RMS_NORM, backend, x)
    _checks.check_dtype(ADD_RMS_NORM, chosen, x.dtype, "all of them")
    if chosen == "torch":
        return AddRMSNormOutput(*_plain(x, branch, weight, bias, epsilon))
    if chosen == "reference":
        _checks.refuse_gradient(OP, "all of them", x, branch, weight, bias)
        arrays = (None if t is None else t.numpy(force=True) for t in (x, branch, weight, bias))
        found = reference.add_rms_norm(*arrays, epsilon=epsilon)
        return AddRMSNormOutput(*(torch.from_numpy(array).to(x.dtype) for array in found))
    total, y, _ = torch.ops.bwt.add_rms_norm(x, branch, weight, bias, epsilon)
    return AddRMSNormOutput(total, y)


def _check(x: Tensor, branch: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    tensors = (x, branch, weight) if bias is None else (x, branch, weight, bias)
    _checks.check_alike(OP, ARGUMENTS, tensors)
    _rows.check(OP, "weight", weight, x)
    for name, tensor, like, wanted in (
        ("branch", branch, "x", x),
        ("bias", bias, "weight", weight),
    ):
        if tensor is not None and tensor.shape != wanted.shape:
            raise ValueError(
                f"{OP}: {name} must have the shape of {like}, {list(wanted.shape)}, "
                f"got {list(tensor.shape)}"
            )


def _plain(x: Tensor, branch: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float):
    if bias is None:
        total = x + branch
    else:
        wide = torch.float32 if x.dtype in HALVES else x.dtype  # rounded once
        rows, bias = _rows.by_model(branch.to(wide), bias)
        total = (x + (rows + bias).reshape(x.shape)).to(x.dtype)
    return total, plain_norm(total, weight, epsilon)


_library.define(
    "add_rms_norm(Tensor x, Tensor branch, Tensor weight, Tensor? bias, float epsilon) "
    "-> (Tensor, Tensor, Tensor)"
)
_library.define(
    "add_rms_norm_backward(Tensor? grad_total, Tensor grad_y, Tensor total, Tensor weight, "
    "Tensor scale, bool with_bias) -> (Tensor, Tensor, Tensor)"
)


@torch.library.register_fake("bwt::add_rms_norm")
def _fake(x, branch, weight, bias, epsilon):
    return x.new_empty(x.shape), x.new_empty(x.shape), x.new_empty(x.shape[:-1].numel())


@torch.library.register_fake("bwt::add_rms_norm_backward")
def _fake_backward(grad_total, grad_y, total, weight, scale, with_bias):
    sizes = (total.shape, weight.shape, weight.shape if with_bias else (0,))
    return tuple(total.new_empty(size) for size in sizes)


def _setup_context(ctx, inputs, output) -> None:
    x, branch, weight, bias, ctx.epsilon = inputs
    total, _, scale = output
    ctx.set_materialize_grads(False)  # of an output that nobody uses, or of the scale
    ctx.mark_non_differentiable(scale)
    ctx.with_bias = bias is not None
    ctx.save_for_backward(total, weight, scale)


def _backward(ctx, grad_total, grad_y, _):
    total, weight, scale = ctx.saved_tensors
    if grad_y is None or _derivatives.graph_wanted():
        grad, grad_weight = _differentiable(ctx, grad_total, grad_y)
        grad_bias = _rows.sum_of_rows(grad, weight) if ctx.with_bias and grad is not None else None
    else:
        grad, grad_weight, grad_bias = torch.ops.bwt.add_rms_norm_backward(
            grad_total, grad_y, total, weight, scale, ctx.with_bias
        )
    return grad, grad, grad_weight, grad_bias if ctx.with_bias else None, None


def _differentiable(ctx, grad_total, grad_y):
    """The gradients of the total and of the weight, in torch's own operations."""
    if grad_y is None:
        return grad_total, None
    total, weight, _ = ctx.saved_tensors

    def compute(total, weight):
        return (plain_norm(total, weight, ctx.epsilon),)

    needed = (True, ctx.needs_input_grad[2])
    grad, grad_weight = _derivatives.gradients(compute, (total, weight), needed, (grad_y,))
    return grad if grad_total is None else grad + grad_total, grad_weight


def _vmap(info, axes, x, branch, weight, bias, epsilon):
    rows, parameters = _rows.folded(
        info.batch_size,
        [(x, axes[0]), (branch, axes[1])],
        [(weight, axes[2]), (bias, axes[3])],
    )
    total, y, scale = torch.ops.bwt.add_rms_norm(*rows, *parameters, epsilon)
    return (total, y, _derivatives.unfolded(scale, info.batch_size)), (0, 0, 0)


torch.library.register_autograd("bwt::add_rms_norm", _backward, setup_context=_setup_context)
torch.library.register_vmap("bwt::add_rms_norm", _vmap)
