"""The Gaussian error linear unit with its slope in the same pass: the public op."""

import torch
from torch import Tensor
from torch.nn import functional

from bwt import reference
from bwt.kernels.contracts import GELU
from bwt.ops import _checks, _derivatives, _dispatch, _library

OP = GELU.op


def gelu(x: Tensor, *, backend: str = "auto") -> Tensor:
    """x Phi(x), Phi the distribution function of the standard normal (no approximation by tanh).

    The native kernel computes the slope along with the value, from the same exponential, if a
    gradient may be wanted. Far negative x lose no digits. By default torch's own serves halves,
    GPUs and what torch.compile compiles.

    Args:
        x: floating-point, of any shape; float32 or float64 for "native" and "reference".
        backend: "auto", "native", "torch" or "reference".

    >>> import torch
    >>> gelu(torch.tensor([-1.0, 0.0, 2.0]))
    tensor([-0.1587,  0.0000,  1.9545])
    """
    _checks.check_floating(OP, "x", x)
    chosen = _dispatch.choose_beside_torch(GELU, backend, x)
    _checks.check_dtype(GELU, chosen, x.dtype, "x")
    if chosen == "torch":
        return functional.gelu(x)
    if chosen == "reference":
        _checks.refuse_gradient(OP, "x", x)
        return torch.from_numpy(reference.gelu(x.numpy(force=True))).to(x.dtype)
    y, _ = torch.ops.bwt.gelu(x, torch.is_grad_enabled() and x.requires_grad)
    return y


_library.define("gelu(Tensor x, bool slope) -> (Tensor, Tensor)")


@torch.library.register_fake("bwt::gelu")
def _fake(x, slope):
    return x.new_empty(x.shape), x.new_empty(x.shape if slope else (0,))


def _setup_context(ctx, inputs, output) -> None:
    slope = output[1]
    ctx.set_materialize_grads(False)  # no zeros for the second output
    ctx.mark_non_differentiable(slope)
    ctx.save_for_backward(inputs[0], slope)


def _backward(ctx, grad_y, _):
    if grad_y is None:
        return None, None
    x, slope = ctx.saved_tensors
    if _derivatives.graph_wanted():
        return torch.ops.aten.gelu_backward(grad_y, x), None
    return grad_y * slope, None


def _vmap(info, axes, x, slope):
    x = x.movedim(axes[0], 0)
    # A batched tensor does not say that gradients are wanted.
    slope = slope or (torch.is_grad_enabled() and x.requires_grad)
    return torch.ops.bwt.gelu(x, slope), (0, 0 if slope else None)


torch.library.register_autograd("bwt::gelu", _backward, setup_context=_setup_context)
torch.library.register_vmap("bwt::gelu", _vmap)
