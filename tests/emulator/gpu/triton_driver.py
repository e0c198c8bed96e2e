"""Triton's own driver, on a CUDA driver library that executes PTX by emulator.ptx.

Binding, specialising, compiling for sm_80, the limits of shared memory and the packing of arguments
in C are Triton's, as on a GPU machine.
"""

import ctypes
import importlib.util
import os
from pathlib import Path

import numpy as np

from emulator.ptx import Memory, Stats, parse
from emulator.ptx import launch as execute

from . import device, graphs

INCLUDE = Path(importlib.util.find_spec("triton").origin).parent / "backends/nvidia/include"
UINTS = ctypes.POINTER(ctypes.c_uint)
LOAD = ctypes.CFUNCTYPE(ctypes.c_int)
LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_int,
    UINTS,
    UINTS,
    ctypes.c_uint,
    ctypes.POINTER(ctypes.c_void_p),
)

launches: list[tuple[str, Stats]] = []  # the kernels that have run and what they did


class Kernels:
    """The loaded kernels; a handle is the place in the list."""

    def __init__(self, library: ctypes.CDLL):
        self.library = library
        self.loaded: list[tuple[str, str, list[int]]] = []  # name, PTX, sizes of parameters
        self.next: tuple[str, str] | None = None

    def announce(self, module, function, name: str, files: dict[str, str], key: str) -> None:
        """Triton says which kernel it is about to load, and where its PTX is."""
        (path,) = (path for file, path in files.items() if file.endswith(".ptx"))
        self.next = name, Path(path).read_text()

    def load(self) -> int:
        name, text = self.next
        sizes = [parameter.size for parameter in parse(text).entry(name).parameters]
        self.loaded.append((name, text, sizes))
        return len(self.loaded) - 1

    def launch(self, kernel: int, grid, block, shared_bytes: int, parameters) -> int:
        name, text, sizes = self.loaded[kernel]
        raw = [ctypes.string_at(parameters[i], size) for i, size in enumerate(sizes)]
        shape = grid[:3], block[:3], shared_bytes

        def execute_kernel():
            launches.append((name, run(text, name, raw, *shape)))

        try:
            execute_kernel()
            graphs.launched(execute_kernel)
        except Exception as error:  # nothing may pass through C
            self.library.emulated_failure(f"{type(error).__name__}: {error}".encode())
            return 1
        return 0


def run(text: str, name: str, raw: list[bytes], grid, block, shared_bytes: int) -> Stats:
    """Executes a kernel on the device's memory; parameters are the bytes that were passed."""
    memory = Memory()
    words = {word for data in raw for word in _words(data)}
    for start, size in {place for word in words if (place := device.allocation(word))}:
        array = np.frombuffer((ctypes.c_uint8 * size).from_address(start), np.uint8)
        memory.map(start, array, f"storage of {size} bytes")
    return execute(text, memory, raw, grid, block, shared_bytes=shared_bytes, kernel=name)


def _words(data: bytes) -> list[int]:
    """Everything in a parameter that may be an address."""
    return np.frombuffer(data[: len(data) // 8 * 8], np.uint64).tolist()


def install(executed: bool = True) -> None:
    """Lets Triton find the library; launches of it are executed, or do nothing."""
    path = device.build("libcuda.cpp", "libcuda.so.1", [f"-I{INCLUDE}"])
    os.environ["TRITON_LIBCUDA_PATH"] = str(path.parent)
    library = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    kernels = Kernels(library)
    # Kept alive with the module: C holds no reference.
    install.callbacks = (
        LOAD(kernels.load),
        LAUNCH(kernels.launch) if executed else LAUNCH(),
    )
    library.emulated_driver(device.load().emulated_range, *install.callbacks)
    from triton import knobs

    knobs.runtime.kernel_load_start_hook = kernels.announce
