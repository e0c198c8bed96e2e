"""What this installation can do: versions, devices, and which backend serves which op."""

import importlib.metadata
import os
import platform
from typing import Any

import torch

import bwt
from bwt import ops  # noqa: F401  (registers the ops with _dispatch)
from bwt.ops import _dispatch, _library

PACKAGES = ("torch", "triton", "numpy", "scipy", "safetensors")
VARIABLES = ("BWT_BACKEND", "BWT_SIMD", "BWT_CUDA", "BWT_DEBUG", "TRITON_INTERPRET")


def collect() -> dict[str, Any]:
    return {
        "versions": {"bwt": bwt.__version__, "python": platform.python_version()}
        | {name: _version(name) for name in PACKAGES},
        "machine": {
            "platform": platform.platform(),
            "cpu_count": os.cpu_count(),
            "torch_threads": torch.get_num_threads(),
            "simd": _simd(),
            "cuda_devices": [
                torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())
            ],
        },
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "ops": {op: _backends(op) for op in sorted(_dispatch.BACKENDS)},
    }


def _backends(op: str) -> dict[str, dict[str, Any]]:
    rows = {}
    for backend in _dispatch.BACKENDS[op]:
        reason = _dispatch.status(backend)
        automatic = next((d for d, names in _dispatch.AUTO.items() if backend in names), None)
        rows[backend] = {"usable": reason is None, "reason": reason, "automatic_for": automatic}
    return rows


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _simd() -> str | None:
    if _library.native_fault is not None:
        return None
    from bwt import _C

    return _C.simd()


def render(report: dict[str, Any]) -> str:
    machine = report["machine"]
    lines = ["  ".join(f"{name} {version or '-'}" for name, version in report["versions"].items())]
    lines.append(
        f"{machine['platform']}, {machine['cpu_count']} CPUs, {machine['torch_threads']} threads, "
        f"SIMD {machine['simd'] or '(native extension not built)'}"
    )
    lines.append("CUDA: " + (", ".join(machine["cuda_devices"]) or "no device"))
    for name, value in report["environment"].items():
        lines.append(f"{name}={value}")
    for op, backends in report["ops"].items():
        lines += ["", op]
        for name, row in backends.items():
            if not row["usable"]:
                state = f"not usable: {row['reason']}"
            elif row["automatic_for"]:
                state = f"automatic for {row['automatic_for']} tensors"
            else:
                state = "when asked for"
            lines.append(f"  {name:<10}{state}")
    return "\n".join(lines)
