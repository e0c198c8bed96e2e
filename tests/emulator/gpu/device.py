"""Builds and loads device.cpp. Nothing of torch is imported here: it looks for CUDA once, when it
is first asked, and must find this device then."""

import ctypes
import importlib.util
import os
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

from emulator import building

HERE = Path(__file__).parent
TORCH = Path(importlib.util.find_spec("torch").origin).parent


class Counts(NamedTuple):
    reads: int  # the host waited for a value of the device
    copies: int  # from the host to the device


class Launches(NamedTuple):
    kernels: int  # one by one: an op of torch is one, and each that our own code launches
    graphs: int  # replays, whose kernels are not counted


def torch_is_for_gpus() -> bool:
    """Whether torch has CUDA of its own, in whose place nothing can be emulated."""
    version = runpy.run_path(str(TORCH / "version.py"))
    return bool(version["cuda"] or version["hip"])


def build(source: str, library: str, flags: list[str]) -> Path:
    """The shared library of a source file, compiled where that, headers, flags or torch changed."""
    compiler = os.environ.get("CXX", "g++")
    headers = sorted(HERE.glob("*.h"))
    parts = (HERE / source, *headers, TORCH / "version.py", building.version(compiler), repr(flags))

    def make(folder: Path) -> None:
        command = [compiler, "-O1", "-std=c++20", "-shared", "-fPIC", str(HERE / source)]
        output = ["-o", str(folder / library), f"-Wl,-soname,{library}"]
        subprocess.check_call([*command, *output, *flags])

    return building.built(Path(library).stem, parts, make) / library


def torch_flags() -> list[str]:
    includes = (TORCH / "include", TORCH / "include/torch/csrc/api/include")
    libraries = TORCH / "lib"
    links = [f"-L{libraries}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{libraries}"]
    return [*(f"-I{path}" for path in includes), *links]


@cache
def load() -> ctypes.CDLL:
    if "torch" in sys.modules:
        raise RuntimeError("the emulated GPU must be loaded before torch is imported")
    library = ctypes.CDLL(str(build("device.cpp", "libemulated_device.so", torch_flags())))
    library.emulated_host_reads.restype = ctypes.c_int64
    library.emulated_host_copies.restype = ctypes.c_int64
    library.emulated_kernels.restype = ctypes.c_int64
    library.emulated_replays.restype = ctypes.c_int64
    library.emulated_foreign.restype = ctypes.c_int64
    library.emulated_capturing.restype = ctypes.c_bool
    library.emulated_refuses.restype = ctypes.c_bool
    library.emulated_range.restype = ctypes.c_bool
    address = ctypes.POINTER(ctypes.c_size_t)
    library.emulated_range.argtypes = [ctypes.c_size_t, address, address]
    return library


def counts() -> Counts:
    return Counts(load().emulated_host_reads(), load().emulated_host_copies())


def launches() -> Launches:
    return Launches(load().emulated_kernels(), load().emulated_replays())


def allocation(address: int) -> tuple[int, int] | None:
    """Start and size in bytes of the device's memory that holds an address, if it does."""
    start, size = ctypes.c_size_t(), ctypes.c_size_t()
    found = load().emulated_range(address, ctypes.byref(start), ctypes.byref(size))
    return (start.value, size.value) if found else None
