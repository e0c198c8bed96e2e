"""The GPU that is tuned: calls, times, and the table that is kept of it."""

import json
from datetime import datetime, timezone
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import torch

from bwt.runs.files import write_atomically
from bwt.tuning.clocks import Gpu, kernel_seconds
from bwt.tuning.search import Machine
from bwt.tuning.subjects import Key


def machine() -> Machine:
    from bwt.kernels.configs import architecture

    # Not the device's own table: that is what is being made.
    arch = architecture(torch.device("cuda")).partition(":")[0]
    return Machine(arch, "cuda", call, partial(kernel_seconds, Gpu()))


def call(module: str, function: str, *tensors, **options):
    """A launcher on CPU tensors, computed by the GPU."""
    there = [None if x is None else x.cuda() for x in tensors]
    found = getattr(import_module(module), function)(*there, **options)
    return tuple(None if x is None else x.cpu() for x in found)


def document(name: str, arch: str, entries: dict[Key, tuple]) -> dict[str, Any]:
    from bwt.kernels import tuned

    return {
        "device": name,
        "architecture": arch,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {package: metadata.version(package) for package in ("torch", "triton")},
        "entries": [
            dict(zip(tuned.FIELDS, key, strict=True)) | {"configs": [c._asdict() for c in configs]}
            for key, configs in entries.items()
        ],
    }


def write(name: str, arch: str, entries: dict[Key, tuple]) -> Path:
    """Puts entries into the device's table beside those it has; all or nothing."""
    from bwt.kernels import tuned

    path = tuned.path(tuned.slug(name))
    new = document(name, arch, entries)
    if path.exists():
        replaced = {tuple(key) for key in entries}
        kept = json.loads(path.read_text())["entries"]
        new["entries"] = [
            entry for entry in kept if tuple(entry[f] for f in tuned.FIELDS) not in replaced
        ] + new["entries"]
    write_atomically(path, lambda file: file.write_text(json.dumps(new, indent=1) + "\n"))
    tuned.forget()
    return path
