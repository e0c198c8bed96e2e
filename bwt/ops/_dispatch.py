"""Which backend serves a call.

`auto` takes the fast path of the tensors' device; on a GPU where that path is not built or does not
run it takes torch and warns once. A backend named explicitly is used or refused with the reason.
"""

import os
import warnings
from collections.abc import Callable
from typing import NoReturn

import torch
from torch import Tensor

from bwt.kernels import configs
from bwt.kernels.contracts import CONTRACTS, Contract
from bwt.ops import _derivatives, _library

# Small calls notice the time of their choice, and to compare devices takes less than to ask for a
# type. Tensors on the CPU have no index.
CPU = torch.device("cpu")
AUTO = {"cpu": ("native",), "cuda": ("triton", "cuda")}


def _unusable_native(device: torch.device) -> str | None:
    if device != CPU:
        return f"serves CPU tensors, and these are on {device}"
    return _library.native_fault


def _unusable_cuda(device: torch.device) -> str | None:
    if device.type != "cuda":
        return f"serves CUDA tensors, and these are on {device}"
    return _library.cuda_fault


def _unusable_reference(device: torch.device) -> str | None:
    return None if device == CPU else f"computes in NumPy, and these tensors are on {device}"


def _unusable_triton(device: torch.device) -> str | None:
    if device.type != "cuda":
        return f"serves CUDA tensors, and these are on {device}"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device on this machine"
    return _library.triton_fault or _unserved(device)


@_derivatives.constant_when_compiled
def _unserved(device: torch.device) -> str | None:
    """Why the table of kernels does not serve a GPU, or None."""
    try:
        configs.architecture(device)
    except RuntimeError as error:
        return str(error)
    return None


UNUSABLE: dict[str, Callable[[torch.device], str | None]] = {
    "native": _unusable_native,
    "cuda": _unusable_cuda,
    "triton": _unusable_triton,
    "torch": lambda device: None,
    "reference": _unusable_reference,
}

BACKENDS = {op: tuple(contract.backends) for op, contract in CONTRACTS.items()}


def choose(op: str, backend: str, device: torch.device, *, differentiable: bool = True) -> str:
    """The name of the backend that serves this call.

    Where derivatives are taken that the kernels do not know, `auto` is "torch".

    Raises:
        ValueError: the backend does not exist for this op.
        RuntimeError: it exists and cannot serve; the message says why and what to do.
    """
    if backend == "auto":
        backend = os.environ.get("BWT_BACKEND", "auto")
    if differentiable and _derivatives.beyond_kernels():
        if backend not in ("auto", "torch") and backend in BACKENDS[op]:
            raise RuntimeError(
                f"{op}: backend {backend!r} knows no derivatives of forward mode or torch.func; "
                "pass backend='torch'"
            )
        backend = "torch" if backend == "auto" else backend
    if backend == "auto":
        name, reasons = automatic(op, device)
        if name is None:
            _refuse(op, device, reasons)
        if reasons:
            _warn_once(op, "; ".join(reasons))
        return name
    if backend not in BACKENDS[op]:
        known = ", ".join(("auto", *BACKENDS[op]))
        raise ValueError(f"{op}: no backend {backend!r}; choose one of {known}")
    if backend == "reference" and _derivatives.transformed():
        raise RuntimeError(f"{op}: backend 'reference' cannot serve torch.func; pass another one")
    if reason := UNUSABLE[backend](device):
        raise RuntimeError(f"{op}: backend {backend!r} cannot serve: {reason}")
    return backend


def choose_beside_torch(contract: Contract, backend: str, x: Tensor) -> str:
    """Of an op that torch has too. By default the kernel serves what it takes and torch the rest,
    whatever BWT_BACKEND says: halves, as autocast leaves them, what is to be compiled, as
    torch.compile fuses it, and GPUs, where nothing is left to gain.
    """
    if backend == "auto" and (
        not x.is_cpu
        or x.dtype not in contract.backends["native"].dtypes
        or torch.compiler.is_compiling()
    ):
        return "torch"
    return choose(contract.op, backend, x.device)


def _refuse(op: str, device: torch.device, reasons: list[str]) -> NoReturn:
    """Nothing serves."""
    why = "; ".join(reasons) or f"no backend for tensors on {device}"
    others = ", ".join(name for name in BACKENDS[op] if name not in AUTO.get(device.type, ()))
    raise RuntimeError(f"{op}: {why} (or pass backend= one of {others})")


def automatic(op: str, device: torch.device) -> tuple[str | None, list[str]]:
    """The backend that `auto` takes, or None, and why no faster one serves."""
    kind, known = "cpu" if device == CPU else device.type, BACKENDS[op]
    reasons = []
    for name in AUTO.get(kind, ()):
        if name in known:
            reason = UNUSABLE[name](device)
            if reason is None:
                return name, []
            reasons.append(f"{name}: {reason}")
    if kind == "cuda" and (not reasons or torch.cuda.is_available()):
        return "torch", reasons  # without reasons: its own kernel leaves nothing to gain
    return None, reasons


_warned: set[str] = set()


@_derivatives.constant_when_compiled
def _warn_once(op: str, reason: str) -> None:
    """In a process, for each reason."""
    if reason not in _warned:
        _warned.add(reason)
        text = f"{op}: runs in plain torch on this GPU, which is slower ({reason})"
        warnings.warn(text, RuntimeWarning, stacklevel=4)  # where the op was called


def status(backend: str) -> str | None:
    """Why a backend is not usable on this machine, or None."""
    return UNUSABLE[backend](torch.device("cuda" if backend in AUTO["cuda"] else "cpu"))
