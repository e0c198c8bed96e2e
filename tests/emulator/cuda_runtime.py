"""A CUDA device that executes PTX on the CPU, for the C++ launch code of bwt as it is.

    cuda_runtime.load()
    outputs = cuda_runtime.call(torch.ops.bwt.bijection_posterior.default, keys, values, 8, dtype)
    cuda_runtime.launches  # kernel, grid, block, shared memory and statistics of each launch

The tensors are CPU tensors. A launch sees the memory of the tensors that the launch code holds and
what it got from cudaMalloc, and nothing else: any other access raises PTXError.
"""

import ctypes
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.abc import MetaPathFinder

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from emulator import cuda_extension
from emulator.ptx import Memory, PTXError, Stats, launch
from emulator.ptx.kernel import prepare

CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)


class _Range(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_size_t),
        ("host", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("writeable", ctypes.c_bool),
    )


class _Launch(ctypes.Structure):
    _fields_ = (
        ("kernel", ctypes.c_char_p),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_size_t),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("ranges", ctypes.POINTER(_Range)),
        ("num_ranges", ctypes.c_size_t),
    )


class _Settings(ctypes.Structure):
    _fields_ = (
        ("index", ctypes.c_int32),
        ("multiprocessors", ctypes.c_int32),
        ("shared_bytes_per_block", ctypes.c_int32),
        ("failing_malloc", ctypes.c_int32),
        ("failing_launch", ctypes.c_int32),
    )


@dataclass
class Launched:
    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    stats: Stats


launches: list[Launched] = []  # of the last call
_listener: Callable[[Callable[[], object], list[int]], None] | None = None
_faults: list[Exception] = []


class _Finder(MetaPathFinder):
    """Lets bwt find the library where it would find an installed one."""

    def find_spec(self, name, path, target=None):
        if name != "bwt._C_cuda":
            return None
        return importlib.util.spec_from_file_location(name, cuda_extension.extension())


@cache
def load() -> None:
    """Builds the stubs and bwt._C_cuda, once per process, and registers its implementations."""
    runtime = _runtime()
    for stub in cuda_extension.torch_stubs():
        ctypes.CDLL(str(stub), mode=os.RTLD_NOW | os.RTLD_GLOBAL)
    runtime.emulated_set_launcher(_launcher)
    sys.meta_path.insert(0, _Finder())
    import bwt.ops  # noqa: F401  defines the operators

    importlib.import_module("bwt._C_cuda")


def call(op: torch._ops.OpOverload, *arguments):
    """The CUDA implementation of an operator of bwt, on CPU tensors."""
    load()
    launches.clear()
    try:
        with torch._C._AutoDispatchBelowAutograd():
            result = op.redispatch(CUDA, *arguments)
    except RuntimeError as error:
        if _faults:
            raise _faults.pop() from error
        raise
    if waiting := _runtime().emulated_pending_copies():
        raise PTXError(f"{waiting} copies to the host were not waited for")
    return result


class Redirected(TorchDispatchMode):
    """Inside, CUDA implementations serve the public operators of bwt, with their autograd."""

    def __torch_dispatch__(self, op, types, arguments=(), keywords=None):
        if op.namespace == "bwt":
            return call(op, *arguments)
        return op(*arguments, **(keywords or {}))


@contextmanager
def device(**settings: int):
    """Changes the emulated device: its size, or a call of the runtime that will fail."""
    load()
    current = _Settings.in_dll(_runtime(), "emulated_settings")
    before = {name: getattr(current, name) for name in settings}
    for name, value in settings.items():
        setattr(current, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(current, name, value)


def allocated_bytes() -> int:
    """What cudaMalloc has given out and not got back."""
    load()
    return _runtime().emulated_allocated_bytes()


def waits() -> int:
    """How often the launch code has waited for the device."""
    load()
    return _runtime().emulated_waits()


@cache
def _runtime() -> ctypes.CDLL:
    path = str(cuda_extension.cudart_stub())
    library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_GLOBAL)
    for name in ("emulated_pending_copies", "emulated_allocated_bytes", "emulated_waits"):
        getattr(library, name).restype = ctypes.c_size_t
    return library


def capture_graphs(refuses: Callable, told: Callable) -> None:
    """For a device that has graphs: `refuses`, a C function, says whether the host must not wait,
    allocate or copy now; `told` hears how to do again what the device has done, and the
    addresses of the tensors that this needs."""
    global _listener
    _listener = told
    _runtime().emulated_set_graphs(refuses, _memset)


@ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.c_int, ctypes.c_size_t)
def _memset(address: int, value: int, size: int) -> None:
    _listener(lambda: ctypes.memset(address, value, size), [address])


@ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.POINTER(_Launch))
def _launcher(told) -> bool:
    """An exception cannot pass through the C++ code: `call` raises it."""
    try:
        run, memory = _prepare(told.contents)
        launches.append(run())
        if _listener:
            _listener(run, memory)
    except Exception as error:
        _faults.append(error)
        return False
    return True


def _prepare(told: _Launch) -> tuple[Callable[[], Launched], list[int]]:
    """What is told holds as long as the call; this is the launch itself, and where its tensors
    are."""
    name, text = told.kernel.decode(), cuda_extension.ptx()
    grid, block, shared = tuple(told.grid), tuple(told.block), told.shared_bytes
    parameters = prepare(text, name).parameters
    arguments = [ctypes.string_at(told.arguments[i], p.size) for i, p in enumerate(parameters)]
    ranges = [
        _Range(part.device, part.host, part.bytes, part.writeable)
        for part in told.ranges[: told.num_ranges]
    ]

    def run() -> Launched:
        stats = launch(text, _map(ranges), arguments, grid, block, shared, name)
        return Launched(name, grid, block, shared, stats)

    return run, [part.device for part in ranges if part.device == part.host]


def _map(ranges: list[_Range]) -> Memory:
    """Tensors may share memory: what overlaps becomes one buffer."""
    memory = Memory()
    merged: list[_Range] = []
    for part in sorted(ranges, key=lambda part: part.device):
        last = merged[-1] if merged else None
        if last is None or part.device >= last.device + last.bytes:
            merged.append(_Range(part.device, part.host, part.bytes, part.writeable))
            continue
        last.bytes = max(last.bytes, part.device + part.bytes - last.device)
        last.writeable |= part.writeable
    for part in merged:
        array = np.ctypeslib.as_array((ctypes.c_uint8 * part.bytes).from_address(part.host))
        array.flags.writeable = part.writeable
        memory.map(part.device, array, f"memory of {part.bytes} bytes")
    return memory
