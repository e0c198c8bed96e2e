"""Derivatives beyond the first, in forward mode and by torch.func, and batching by torch.func.vmap.

The kernels know first derivatives in reverse mode. For all others plain torch operations compute
the same again, and torch differentiates them.
"""

from collections.abc import Callable, Sequence
from typing import overload

import torch
from torch import Tensor
from torch._C import _functorch
from torch.autograd import forward_ad

Transform = _functorch.TransformType
_innermost = _functorch.peek_interpreter_stack


def constant_when_compiled(function: Callable) -> Callable:
    """Do what torch.compiler.assume_constant_result does, without its import of torch._dynamo,
    which takes longer than that of torch."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


# torch.compile guards what these look at, but would take None for an interpreter.
@constant_when_compiled
def transformed() -> bool:
    """Whether a transform of torch.func is active: values of tensors cannot be looked at then."""
    return _innermost() is not None


@constant_when_compiled
def beyond_kernels() -> bool:
    """Whether derivatives are taken that the kernels do not know: in forward mode, or by
    torch.func. Batching alone is none. Costs little where nothing is active, as every op asks."""
    if forward_ad._current_level >= 0:
        return True
    if _innermost() is None:
        return False
    return any(
        transform.key() in (Transform.Grad, Transform.Jvp)
        for transform in _functorch.get_interpreter_stack()
    )


def graph_wanted() -> bool:
    """To be asked by a gradient formula: whether its result is to be differentiated or batched."""
    return torch.is_grad_enabled() or transformed() or forward_ad._current_level >= 0


def gradients(
    compute: Callable[..., Sequence[Tensor]],
    inputs: Sequence[Tensor | None],
    needed: Sequence[bool],
    incoming: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Gradients of the needed inputs, with a graph, from those of what `compute` returns."""
    with torch.enable_grad():
        # Aliases, because one input may have been computed from another one.
        inputs = [
            x.view_as(x) if x is not None and need else x
            for x, need in zip(inputs, needed, strict=True)
        ]
        pairs = [
            (output, gradient)
            for output, gradient in zip(compute(*inputs), incoming, strict=True)
            if gradient is not None and output.requires_grad
        ]
        wanted = [x for x, need in zip(inputs, needed, strict=True) if x is not None and need]
        if not pairs:
            return [None] * len(needed)
        found = iter(
            torch.autograd.grad(
                [output for output, _ in pairs],
                wanted,
                [gradient for _, gradient in pairs],
                create_graph=True,
                materialize_grads=True,
            )
        )
    return [next(found) if need else None for need in needed]


@overload
def folded(x: Tensor, axis: int | None, size: int) -> Tensor: ...


@overload
def folded(x: None, axis: int | None, size: int) -> None: ...


def folded(x: Tensor | None, axis: int | None, size: int) -> Tensor | None:
    """The axis of vmap merged with the first one; repeated along it if it has none."""
    if x is None:
        return None
    x = x.expand(size, *x.shape) if axis is None else x.movedim(axis, 0)
    return x.flatten(0, 1)


def unfolded(x: Tensor, size: int) -> Tensor:
    return x.unflatten(0, (size, x.shape[0] // size))


def one_by_one(op, size: int, axes: Sequence[int | None], arguments: Sequence):
    """The rule of vmap where nothing can be merged: a call for each element of the axis."""
    calls = [
        op(
            *(
                x if axis is None else x.select(axis, i)
                for x, axis in zip(arguments, axes, strict=True)
            )
        )
        for i in range(size)
    ]
    return [torch.stack(outputs) for outputs in zip(*calls, strict=True)]
