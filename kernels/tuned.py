"""Configs found on one device by `bwt tune`: <device>.json in the user's cache.

They go before those of the device's architecture. A device is named as its driver names it,
without the maker: "NVIDIA A100-SXM4-80GB" is A100-SXM4-80GB. The cache is ~/.cache, or where
XDG_CACHE_HOME says.
"""

import json
import os
import re
from functools import cache, wraps
from pathlib import Path

from . import plans

FIELDS = ("op", "kernel", "dtype", "size")
used = True  # not while a table is being made


def slug(name: str) -> str:
    """A device's name as a file can have it."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name.removeprefix("NVIDIA ")).strip("-")


def path(device: str) -> Path:
    cache_home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(cache_home, "bwt", "devices", f"{device}.json")


@cache
def table(device: str) -> dict[tuple, tuple[tuple, ...]]:
    """(op, kernel, dtype, size) -> (tiles, warps, stages, registers), smallest tile first."""
    if not path(device).exists():
        return {}
    try:
        entries = json.loads(path(device).read_text())["entries"]
        return {
            tuple(entry[field] for field in FIELDS): tuple(
                (*(config[name] for name in ("tiles", "warps", "stages")), config.get("registers"))
                for config in entry["configs"]
            )
            for entry in entries
        }
    except (ValueError, KeyError, TypeError) as fault:
        raise ValueError(
            f"{path(device)} is not a table of bwt tune ({fault!r}); "
            "delete it or run bwt tune again"
        ) from fault


@cache
def of_device(index: int | None) -> str:
    """The slug of a CUDA device that has a table; empty if it has none."""
    import torch

    name = slug(torch.cuda.get_device_name(index))
    return name if path(name).exists() else ""


def or_device(architecture):
    """architecture(device), with ":<device>" behind it where that very device has a table."""

    @wraps(architecture)
    def found(device) -> str:
        name = of_device(device.index) if device.type == "cuda" and used else ""
        return f"{architecture(device)}:{name}" if name else architecture(device)

    return found


def forget() -> None:
    """After a table was written or changed."""
    plans.forget()
    table.cache_clear()
    of_device.cache_clear()
