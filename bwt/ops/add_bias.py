"""A bias added to rows, with its gradient in one pass: the public op."""

import torch
from torch import Tensor

from bwt import reference
from bwt.kernels.contracts import ADD_BIAS
from bwt.ops import _checks, _derivatives, _dispatch, _library, _rows

OP = ADD_BIAS.op
ARGUMENTS = [
    _checks.Argument("x", "[..., C]", None),
    _checks.Argument("bias", _rows.LAYOUT, None, is_parameter=True),
]


def add_bias(x: Tensor, bias: Tensor, *, backend: str = "auto") -> Tensor:
    """x + bias. Rounds as `gelu` and `add_rms_norm` do, which add a bias in passing, and sums its
    gradient in their order: it takes their place, bit for bit, where the sum itself is wanted.

    Args:
        x: [..., C], C >= 1; float32 or float64 for "native" and "reference".
        bias: [C], or [M, C] if the rows of x are those of M models, one model's after another's; on
            the same device and of the same dtype or, beside halves, float32.
        backend: "auto", "native", "torch" or "reference".

    >>> import torch
    >>> add_bias(torch.ones(2, 2), torch.tensor([[0.0, 1.0], [2.0, 3.0]]))
    tensor([[1., 2.],
            [3., 4.]])
    """
    _checks.check_alike(OP, ARGUMENTS, (x, bias))
    _rows.check(OP, "bias", bias, x)
    chosen = _dispatch.choose_beside_torch(ADD_BIAS, backend, x)
    _checks.check_dtype(ADD_BIAS, chosen, x.dtype, "x and bias")
    if chosen == "torch":
        return _plain(x, bias)
    if chosen == "reference":
        _checks.refuse_gradient(OP, "x and bias", x, bias)
        arrays = (tensor.numpy(force=True) for tensor in (x, bias))
        return torch.from_numpy(reference.add_bias(*arrays)).to(x.dtype)
    return torch.ops.bwt.add_bias(x, bias)


def _plain(x: Tensor, bias: Tensor) -> Tensor:
    rows, bias = _rows.by_model(x, bias.to(x.dtype))
    return (rows + bias).reshape(x.shape)


_library.define("add_bias(Tensor x, Tensor bias) -> Tensor")
_library.define("add_bias_backward(Tensor grad_y, Tensor bias) -> Tensor")


@torch.library.register_fake("bwt::add_bias")
def _fake(x, bias):
    return x.new_empty(x.shape)


@torch.library.register_fake("bwt::add_bias_backward")
def _fake_backward(grad_y, bias):
    return bias.new_empty(bias.shape)


def _setup_context(ctx, inputs, output) -> None:
    ctx.save_for_backward(inputs[1])


def _backward(ctx, grad_y):
    (bias,) = ctx.saved_tensors
    if not ctx.needs_input_grad[1]:
        return grad_y, None
    if _derivatives.graph_wanted():
        return grad_y, _rows.sum_of_rows(grad_y, bias)
    return grad_y, torch.ops.bwt.add_bias_backward(grad_y, bias)


def _vmap(info, axes, x, bias):
    (x,), (bias,) = _rows.folded(info.batch_size, [(x, axes[0])], [(bias, axes[1])])
    return torch.ops.bwt.add_bias(x, bias), 0


torch.library.register_autograd("bwt::add_bias", _backward, setup_context=_setup_context)
torch.library.register_vmap("bwt::add_bias", _vmap)
