"""The host's side of a launch: arguments, the layout of threads, batches of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .errors import PTXError
from .executor import Executor
from .formats import number_to_bytes
from .kernel import Kernel, initial_bytes, prepare
from .machine import WARP, Machine
from .memory import Memory
from .pipes import cycles_of_a_warp
from .program import Parameter
from .shared import SharedMemory
from .stats import Stats

LANES_PER_BATCH = 2048  # enough to hide the cost of a NumPy call
MAX_THREADS = 1024
SHARED_LIMIT = 163 * 1024  # what one block of sm_80 may use
SHARED_WINDOW = 1 << 56  # generic addresses of shared memory start here, above the host's own


@dataclass
class Layout:
    """How the threads of a batch lie in a row: block, warp, lane."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    blocks: int
    dynamic_shared: int
    shared_window: int = SHARED_WINDOW

    @property
    def threads_per_block(self) -> int:
        return int(np.prod(self.block))

    @property
    def lanes_per_block(self) -> int:
        return -(-self.threads_per_block // WARP) * WARP

    @property
    def lanes(self) -> int:
        return self.blocks * self.lanes_per_block

    def live_lanes(self, blocks: int) -> np.ndarray:
        """The lanes that are threads of the first `blocks` blocks."""
        live = np.zeros((self.blocks, self.lanes_per_block), bool)
        live[:blocks, : self.threads_per_block] = True
        return live.reshape(-1)


def launch(
    ptx_text: str,
    mem: Memory,
    args: Sequence,
    grid: Sequence[int],
    block: Sequence[int],
    shared_bytes: int = 0,
    kernel: str | None = None,
    seed: int = 0,
    strict: bool = True,
    max_steps: int = 5_000_000,
    timed: bool = False,
) -> Stats:
    """Run a kernel of `ptx_text` and return what it did.

    `kernel` is the name of the entry or a part of it, `shared_bytes` the dynamic shared memory,
    `seed` decides the order of blocks and warps. With strict=False races in shared memory are
    listed in `stats.races` instead of raised. With timed=True the cycles of a warp are
    counted, too.
    """
    prepared = prepare(ptx_text, kernel)
    layout = _layout(_extents("grid", grid), _extents("block", block), shared_bytes)
    _check_threads(prepared, layout.threads_per_block)
    parameters = _pack_arguments(prepared, args)
    shared_size = prepared.static_shared + shared_bytes
    if shared_size > SHARED_LIMIT:
        raise PTXError(f"{shared_size} bytes of shared memory, more than a block may have")
    stats = Stats()
    shared = SharedMemory(layout.blocks, shared_size, prepared.granule, stats, strict)
    mapped = {v.name: mem.add(initial_bytes(v), f"variable {v.name}") for v in prepared.data}
    symbols = prepared.shared_offsets | mapped
    try:
        machine = Machine(prepared, layout, mem, shared, symbols, parameters)
        _run_batches(machine, np.random.default_rng(seed), max_steps, timed)
    finally:
        for address in mapped.values():
            mem.discard(address)
    return stats


def _run_batches(machine: Machine, rng: np.random.Generator, max_steps: int, timed: bool) -> None:
    executor = Executor(machine, rng, max_steps, timed)
    width, height, depth = machine.layout.grid
    order = rng.permutation(width * height * depth)
    for start in range(0, order.size, machine.layout.blocks):
        batch = order[start : start + machine.layout.blocks]
        places = [batch % width, batch // width % height, batch // (width * height)]
        indices = np.stack(places, axis=1)
        machine.begin_batch(indices)
        machine.shared.reset(indices)
        executor.run_batch()
    for step, count in zip(executor.steps, executor.counts, strict=True):
        if count:
            machine.stats.opcodes[step.key] += int(count)
            machine.stats.pipes[step.pipe] += int(count)
            machine.stats.operations[step.pipe] += int(count) * step.operations
            machine.stats.instructions += int(count)
    machine.stats.program = len(executor.steps)
    if timed:
        loads = machine.stats.loads.items()
        cold = {step: missed / every for step, (every, missed) in loads}
        machine.stats.cycles_of_a_warp = cycles_of_a_warp(executor.steps, executor.longest, cold)


def _extents(what: str, values: Sequence[int]) -> tuple[int, int, int]:
    extents = tuple(int(v) for v in values)
    if len(extents) != 3 or min(extents) < 1:
        raise PTXError(f"{what} must be three positive integers, not {values!r}")
    return extents


def _layout(grid, block, dynamic_shared: int) -> Layout:
    layout = Layout(grid, block, 1, dynamic_shared)
    if layout.threads_per_block > MAX_THREADS:
        raise PTXError(f"{layout.threads_per_block} threads per block, more than {MAX_THREADS}")
    side_by_side = max(1, LANES_PER_BATCH // layout.lanes_per_block)
    layout.blocks = min(side_by_side, int(np.prod(grid)))
    return layout


def _check_threads(kernel: Kernel, threads: int) -> None:
    wanted = kernel.thread_limits.get("reqntid", threads)
    most = kernel.thread_limits.get("maxntid", threads)
    if threads != wanted or threads > most:
        raise PTXError(f"{kernel.name} is compiled for {min(wanted, most)} threads, not {threads}")


def _pack_arguments(kernel: Kernel, args: Sequence) -> dict[str, bytes]:
    """Parameter name -> bytes; Triton's hidden trailing pointers may be left out."""
    parameters = kernel.parameters
    missing = parameters[len(args) :]
    if len(args) > len(parameters) or any(p.kind not in ("u64", "b64") for p in missing):
        raise PTXError(f"{kernel.name} takes {len(parameters)} arguments, not {len(args)}")
    values = [*args, *(0 for _ in missing)]
    return {p.name: _pack_one(p, v) for p, v in zip(parameters, values, strict=True)}


def _pack_one(parameter: Parameter, value) -> bytes:
    try:
        data = bytes(value) if isinstance(value, bytes | bytearray) else None
        if parameter.count is None and data is None:
            return number_to_bytes(value, parameter.kind)
        if data is None or len(data) != parameter.size:
            raise PTXError(f"needs {parameter.size} bytes")
        return data
    except PTXError as error:
        raise PTXError(f"argument for {parameter.name}: {error}") from None
