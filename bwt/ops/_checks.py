"""Checks of arguments that the ops share. Small calls notice their time."""

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from bwt.kernels.contracts import HALVES, ROW_SUM_TOLERANCE, Contract


class Argument(NamedTuple):
    """A tensor that an op takes, as messages show it."""

    name: str
    layout: str
    ndim: int | None  # None: any
    is_parameter: bool = False  # may be float32 beside halves, as autocast leaves it


def check_tensor(op: str, name: str, x, dtypes: tuple[torch.dtype, ...]) -> None:
    if not isinstance(x, Tensor) or x.dtype not in dtypes or x.layout is not torch.strided:
        names = " or ".join(map(_name, dtypes))
        _refuse(op, name, x, f"{'an' if names[0] == 'i' else 'a'} {names}")


def check_floating(op: str, name: str, x) -> None:
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.layout is not torch.strided:
        _refuse(op, name, x, "a floating-point")


def check_alike(op: str, arguments: Sequence[Argument], tensors: Sequence[Tensor]) -> None:
    """Floating-point tensors, each with its number of dimensions, all of one dtype and device."""
    dtype = None
    for x, (name, layout, ndim, is_parameter) in zip(tensors, arguments, strict=False):
        check_floating(op, name, x)
        if ndim is not None and x.ndim != ndim:
            raise ValueError(f"{op}: {name} must be {layout}, got shape {tuple(x.shape)}")
        if dtype is None:
            dtype, device = x.dtype, x.device
        elif x.device != device or (
            x.dtype != dtype and not (is_parameter and are_float32_and_half(x.dtype, dtype))
        ):
            raise ValueError(
                f"{op}: {arguments[0].name} and {name} must agree in dtype and device, "
                f"got {dtype} on {device} and {x.dtype} on {x.device}"
            )


def check_epsilon(op: str, epsilon: float) -> None:
    if not epsilon >= 0:  # nan is not
        raise ValueError(f"{op}: epsilon must be at least 0, got {epsilon}")


def are_float32_and_half(parameter: torch.dtype, dtype: torch.dtype) -> bool:
    return parameter == torch.float32 and dtype in HALVES


def check_dtype(contract: Contract, backend: str, dtype: torch.dtype, names: str) -> None:
    """Of the tensors with these names: one that the chosen backend takes."""
    dtypes = contract.backends[backend].dtypes
    if dtype not in dtypes:
        known = ", ".join(map(_name, dtypes))
        raise ValueError(
            f"{contract.op}: backend {backend!r} takes {known}, got {dtype}; cast {names}"
        )


def check_limit(contract: Contract, backend: str, size: str, got: int) -> None:
    """Where backends differ in it: what is above the limit of all is refused before."""
    limit = contract.backends[backend].limits[size]
    if got > limit:
        raise ValueError(
            f"{contract.op}: {size.replace('_', ' ')} {got} is above {limit}, the largest of "
            f"backend {backend!r}; pass backend='torch'"
        )


def row_sum_tolerance(dtype: torch.dtype) -> float:
    """Of rows that have to sum to 1. Halves are rounded so much that a sum may be off by half a
    unit in the last place of 1."""
    return ROW_SUM_TOLERANCE + (torch.finfo(dtype).eps / 2 if dtype in HALVES else 0.0)


def check_distributions(op: str, name: str, x: Tensor, tolerance=ROW_SUM_TOLERANCE) -> None:
    """Rows that are not negative and sum to 1."""
    rows = x.detach().double()
    wrong = ~((rows >= 0).all(-1) & ((rows.sum(-1) - 1).abs() <= tolerance))
    place = first_place(wrong)
    if place is not None:
        row = rows[place]
        where = f"[{', '.join(map(str, place))}]" if place else ""
        raise ValueError(
            f"{op}: {name}{where} is not a distribution (sum {float(row.sum()):.6g}, "
            f"smallest entry {float(row.min()):.3g}); divide each row by its sum"
        )


def first_place(wrong: Tensor) -> tuple[int, ...] | None:
    """Where the first true element is; () in a tensor without dimensions."""
    return tuple(wrong.nonzero()[0].tolist()) if bool(wrong.any()) else None


def is_recorded(*tensors: Tensor | None) -> bool:
    """Whether autograd takes note of what is computed from them."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def refuse_gradient(op: str, names: str, *tensors: Tensor | None) -> None:
    if is_recorded(*tensors):
        raise RuntimeError(f"{op}: backend 'reference' has no gradient; detach {names}")


def _refuse(op: str, name: str, x, wanted: str) -> NoReturn:
    if isinstance(x, Tensor) and x.layout is not torch.strided:
        raise ValueError(
            f"{op}: {name} must be a dense tensor, got {x.layout}; pass {name}.to_dense()"
        )
    got = x.dtype if isinstance(x, Tensor) else type(x).__name__
    raise ValueError(f"{op}: {name} must be {wanted} tensor, got {got}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
