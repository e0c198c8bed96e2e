"""Which backend serves a call.

`auto` takes the fast path of the tensors' device. A backend named explicitly is used or refused
with the reason; nothing falls back to another one silently.
"""

import importlib.util
import os
from collections.abc import Callable

import torch

from bwt.ops import _library

AUTO = {"cpu": ("native",), "cuda": ("triton", "cuda")}


def _unusable_native(device: torch.device) -> str | None:
    if device.type != "cpu":
        return f"serves CPU tensors, and these are on {device}"
    return _library.native_fault


def _unusable_cuda(device: torch.device) -> str | None:
    if device.type != "cuda":
        return f"serves CUDA tensors, and these are on {device}"
    return _library.cuda_fault


def _unusable_reference(device: torch.device) -> str | None:
    return None if device.type == "cpu" else f"computes in NumPy, and these tensors are on {device}"


def _unusable_triton(device: torch.device) -> str | None:
    if device.type != "cuda":
        return f"serves CUDA tensors, and these are on {device}"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed; `pip install triton`"
    return None if torch.cuda.is_available() else "torch sees no CUDA device on this machine"


UNUSABLE: dict[str, Callable[[torch.device], str | None]] = {
    "native": _unusable_native,
    "cuda": _unusable_cuda,
    "triton": _unusable_triton,
    "torch": lambda device: None,
    "reference": _unusable_reference,
}

# Backends of each op, filled by the ops' modules.
BACKENDS: dict[str, tuple[str, ...]] = {}


def choose(op: str, backend: str, device: torch.device) -> str:
    """The name of the backend that serves this call.

    Raises:
        ValueError: the backend does not exist for this op.
        RuntimeError: it exists and cannot serve; the message says why and what to do.
    """
    if backend == "auto":
        backend = os.environ.get("BWT_BACKEND", "auto")
    if backend == "auto":
        return _choose_automatically(op, device)
    if backend not in BACKENDS[op]:
        known = ", ".join(("auto", *BACKENDS[op]))
        raise ValueError(f"{op}: no backend {backend!r}; choose one of {known}")
    if reason := UNUSABLE[backend](device):
        raise RuntimeError(f"{op}: backend {backend!r} cannot serve: {reason}")
    return backend


def _choose_automatically(op: str, device: torch.device) -> str:
    # Written for the case that the first candidate serves: small calls notice the time.
    kind, known = device.type, BACKENDS[op]
    reasons = []
    for name in AUTO.get(kind, ()):
        if name in known:
            reason = UNUSABLE[name](device)
            if reason is None:
                return name
            reasons.append(f"{name}: {reason}")
    if kind == "cuda" and not reasons:
        return "torch"  # whose own kernel leaves nothing to gain
    why = "; ".join(reasons) or f"no backend for tensors on {device}"
    others = ", ".join(name for name in known if name not in AUTO.get(kind, ()))
    raise RuntimeError(f"{op}: {why} (or pass backend= one of {others})")


def refuse_second_derivative(op: str) -> None:
    """To be called by a gradient formula made of what has none itself, lest terms be missing."""
    if torch.is_grad_enabled():
        raise RuntimeError(f"{op}: has no second derivative; pass backend='torch'")


def status(backend: str) -> str | None:
    """Why a backend is not usable on this machine, or None."""
    return UNUSABLE[backend](torch.device("cuda" if backend in AUTO["cuda"] else "cpu"))
