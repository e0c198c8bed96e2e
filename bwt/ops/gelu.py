"""The Gaussian error linear unit, of a sum with a bias too, in one pass each way: the public op."""

import torch
from torch import Tensor
from torch.nn import functional

from bwt import reference
from bwt.kernels.contracts import GELU, HALVES
from bwt.ops import _checks, _derivatives, _dispatch, _library, _rows

OP = GELU.op
ARGUMENTS = [
    _checks.Argument("x", "[..., C]", None),
    _checks.Argument("bias", _rows.LAYOUT, None, is_parameter=True),
]


def gelu(x: Tensor, bias: Tensor | None = None, *, backend: str = "auto") -> Tensor:
    """z Phi(z) of z = x + bias, Phi the distribution function of the standard normal (no
    approximation by tanh).

    A product without its bias followed by this is cheaper than one with it followed by GELU alone:
    the native kernel adds the bias, and sums its gradient, on the way. By default torch's own
    serves halves (added up in float32), GPUs and what torch.compile compiles.

    The native kernel is within 4 units in the last place of z Phi(z) at every z at which that is a
    normal number (z rounded to the dtype of x). torch's own computes 1 + erf(z / sqrt(2)), which
    loses digits below z = -1 and has none left below about -5.5 in float32 and -8.3 in float64.

    Args:
        x: floating-point, of any shape, [..., C] with a bias; float32 or float64 for "native" and
            "reference".
        bias: [C], or [M, C] if the rows of x are those of M models, one model's after another's; on
            the same device and of the same dtype or, beside halves, float32.
        backend: "auto", "native", "torch" or "reference".

    >>> import torch
    >>> gelu(torch.tensor([-1.0, 0.0, 2.0]))
    tensor([-0.1587,  0.0000,  1.9545])
    >>> gelu(torch.tensor([[0.0, 2.0]]), torch.tensor([-1.0, 0.0]))
    tensor([[-0.1587,  1.9545]])
    """
    _check(x, bias)
    chosen = _dispatch.choose_beside_torch(GELU, backend, x)
    _checks.check_dtype(GELU, chosen, x.dtype, "x" if bias is None else "x and bias")
    if chosen == "torch":
        return _plain(x, bias)
    if chosen == "reference":
        _checks.refuse_gradient(OP, "x" if bias is None else "x and bias", x, bias)
        arrays = (None if t is None else t.numpy(force=True) for t in (x, bias))
        return torch.from_numpy(reference.gelu(*arrays)).to(x.dtype)
    return torch.ops.bwt.gelu(x, bias)


def _check(x: Tensor, bias: Tensor | None) -> None:
    if bias is None:
        _checks.check_floating(OP, "x", x)
        return
    _checks.check_alike(OP, ARGUMENTS, (x, bias))
    _rows.check(OP, "bias", bias, x)


def _plain(x: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return functional.gelu(x)
    rows, bias = _rows.by_model(x, bias)
    if x.dtype in HALVES:
        return functional.gelu(rows.float() + bias.float()).to(x.dtype).reshape(x.shape)
    return functional.gelu(rows + bias).reshape(x.shape)


_library.define("gelu(Tensor x, Tensor? bias) -> Tensor")
_library.define("gelu_backward(Tensor grad_y, Tensor x, Tensor? bias) -> (Tensor, Tensor)")


@torch.library.register_fake("bwt::gelu")
def _fake(x, bias):
    return x.new_empty(x.shape)


@torch.library.register_fake("bwt::gelu_backward")
def _fake_backward(grad_y, x, bias):
    return x.new_empty(x.shape), x.new_empty((0,) if bias is None else bias.shape)


def _setup_context(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx, grad_y):
    x, bias = ctx.saved_tensors
    if not _derivatives.graph_wanted():
        grad_x, grad_bias = torch.ops.bwt.gelu_backward(grad_y, x, bias)
        return grad_x, None if bias is None else grad_bias

    def compute(x, bias):
        return (_plain(x, bias),)

    return tuple(_derivatives.gradients(compute, (x, bias), ctx.needs_input_grad, (grad_y,)))


def _vmap(info, axes, x, bias):
    (x,), (bias,) = _rows.folded(info.batch_size, [(x, axes[0])], [(bias, axes[1])])
    return torch.ops.bwt.gelu(x, bias), 0


torch.library.register_autograd("bwt::gelu", _backward, setup_context=_setup_context)
torch.library.register_vmap("bwt::gelu", _vmap)
