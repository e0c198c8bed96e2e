"""What this installation can do: versions, devices, and which backend serves which op."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

import bwt
from bwt.kernels.configs import device_architecture
from bwt.ops import _dispatch, _library

PACKAGES = ("torch", "triton", "numpy", "scipy", "safetensors")
VARIABLES = ("BWT_BACKEND", "BWT_SIMD", "BWT_CUDA", "BWT_DEBUG", "TRITON_INTERPRET", "BWT_IMPORT")


def collect() -> dict[str, Any]:
    return {
        "versions": {"bwt": bwt.__version__, "python": platform.python_version()}
        | {name: _version(name) for name in PACKAGES},
        "commit": commit(),
        "machine": {
            "platform": platform.platform(),
            "cpu_count": os.cpu_count(),
            "torch_threads": torch.get_num_threads(),
            "simd": _simd(),
            "torch_cuda": _torch_cuda(),
            "cuda_devices": [_device(i) for i in range(torch.cuda.device_count())],
        },
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "ops": {op: _backends(op) for op in sorted(_dispatch.BACKENDS)},
    }


def _torch_cuda() -> str | None:
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    return f"CUDA {torch.version.cuda}" if torch.version.cuda else None


def _device(index: int) -> str:
    architecture = device_architecture(torch.device("cuda", index))
    return f"{torch.cuda.get_device_name(index)} ({architecture})"


def _backends(op: str) -> dict[str, dict[str, Any]]:
    kinds = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    chosen = {_dispatch.automatic(op, torch.device(kind))[0]: kind for kind in kinds}
    rows = {}
    for backend in _dispatch.BACKENDS[op]:
        reason = _dispatch.status(backend)
        automatic = chosen.get(backend)
        rows[backend] = {"usable": reason is None, "reason": reason, "automatic_for": automatic}
    return rows


def commit() -> str | None:
    """Of the checkout this package is imported from, with a + if its files have changed since."""
    root = Path(bwt.__file__).parents[1]
    git = ["git", "-C", str(root)]
    try:
        top = _quietly(*git, "rev-parse", "--show-toplevel", "HEAD")
        changed = _quietly(*git, "status", "--porcelain", "-uno")
    except OSError:  # no git
        return None
    lines = top.stdout.split("\n")
    # An installed package may lie in a checkout of something else.
    if top.returncode or not lines[0] or not Path(lines[0]).samefile(root):
        return None
    return lines[1] + ("+" if changed.stdout else "")


def _quietly(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


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
    devices = ", ".join(machine["cuda_devices"]) or "no device"
    lines.append(f"CUDA: {devices}; torch is built for {machine['torch_cuda'] or 'the CPU'}")
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
