"""Calls that nothing but autograd takes part in, at little cost to the host.

What torch.library generates for an op's gradient, and the way through the dispatcher to a kernel
that is launched from Python, take several times as long as the launch. Calls without torch.compile,
torch.func, modes and tensor subclasses need neither, and a check that a signature has passed need
not be made again.
"""

import os
from collections.abc import Callable

import torch
from torch import Tensor
from torch._C import _functorch, _len_torch_dispatch_stack
from torch.autograd import forward_ad

from bwt.ops import _library

_innermost = _functorch.peek_interpreter_stack
PLAIN = {Tensor, torch.nn.Parameter}


def is_plain(*tensors: Tensor | None) -> bool:
    """Whether nothing but autograd takes part in a call with these tensors."""
    if torch.compiler.is_compiling():
        return False
    return (
        # The dispatcher would negate what is only marked to be.
        all([x is None or (type(x) in PLAIN and not x.is_neg()) for x in tensors])
        and _innermost() is None
        and forward_ad._current_level < 0
        and not _len_torch_dispatch_stack()
    )


def signature(op: str, options: tuple, *tensors: Tensor | None) -> tuple | None:
    """All that the checks of an op and the choice of its backend look at, if a call is plain."""
    if not is_plain(*tensors):
        return None
    try:
        layouts = [x if x is None else (x.dtype, x.device, x.shape, x.stride()) for x in tensors]
    except RuntimeError:  # sparse tensors have no strides; the checks refuse them
        return None
    return (
        op,
        options,
        os.environ.get("BWT_BACKEND"),
        _library.native_fault,
        _library.triton_fault,
        *layouts,
    )


def applied(function: type[torch.autograd.Function]) -> Callable:
    """Its `apply`, for plain calls: without asking for transforms of torch.func once more."""
    # The stubs of torch do not know the method of its C base class.
    return super(torch.autograd.Function, function).apply  # type: ignore[misc]


def direct(forward: Callable, setup_context: Callable, gradient: Callable) -> Callable:
    """A kernel that autograd knows, of functions as torch.library takes them; for plain calls."""

    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):
            output = forward(*inputs)
            setup_context(ctx, inputs, output)
            return output

        backward = staticmethod(gradient)

    return applied(Direct)


def shortest(op: Callable, kernel: Callable, first: Tensor, *others: Tensor | None) -> Callable:
    """The op, or its kernel itself in a plain call on a GPU with these tensors."""
    return kernel if first.is_cuda and is_plain(first, *others) else op
