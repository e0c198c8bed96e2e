"""torch.cuda.CUDAGraph of the emulated device: torch's own class has nothing below it here. What
graphs.h notes are the ops of torch; kernels that others launch are told to `launched`.

Whatever runs while a graph captures becomes part of it, on whichever stream. A graph does not use
the memory of its results twice, as one on a GPU does, and the capture error mode is always global.
"""

from collections.abc import Callable, Iterable

import torch

from . import device

MODES = ("global", "thread_local", "relaxed")
NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"
INVALIDATED = "CUDA error: operation failed due to a previous error during capture"
FREED = "CUDA error: an illegal memory access was encountered: a graph uses memory freed since"

_capturing: "CUDAGraph | None" = None
_pools = 0


def is_capturing() -> bool:
    return device.load().emulated_capturing()


def refuse_while_capturing() -> None:
    """For what the host must not do then; the capture fails."""
    if device.load().emulated_refuses():
        raise RuntimeError(NOT_PERMITTED)


def launched(again: Callable[[], None], memory: Iterable[int] = ()) -> None:
    """A kernel that is not torch's has been launched. `again` does what it does, and needs the
    device's memory at these addresses."""
    place = device.load().emulated_foreign()
    if place >= 0:
        _capturing.foreign[place] = again, tuple(memory)


def pool_handle() -> tuple[int, int]:
    global _pools
    _pools += 1
    return 0, _pools


class CUDAGraph:
    def __init__(self, keep_graph: bool = False):
        self.generators: list[torch.Generator] = []
        self.reset()

    def reset(self) -> None:
        self.noted = None  # torch.classes.emulated_gpu.Graph, once captured
        self.foreign = {}  # place in it -> how to launch, addresses
        self.handle = None

    def register_generator_state(self, generator: torch.Generator) -> None:
        if generator.device.type != "cuda":
            raise RuntimeError(
                f"Expected a 'cuda' device type for generator but found '{generator.device.type}'"
            )
        self.generators.append(generator)

    def capture_begin(self, pool=None, capture_error_mode="global", check_input_liveness=False):
        global _capturing
        if self.noted is not None:
            raise RuntimeError("This CUDAGraph instance already owns a captured graph.")
        if capture_error_mode not in MODES:
            raise RuntimeError(f"Unknown capture error mode {capture_error_mode}")
        refuse_while_capturing()
        if torch.cuda.current_stream() == torch.cuda.default_stream():
            raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
        self.handle = pool or pool_handle()
        self.noted = torch.classes.emulated_gpu.Graph()
        for generator in (*torch.cuda.default_generators, *self.generators):
            self.noted.register_generator(generator)
        _capturing = self
        self.noted.begin()

    def capture_end(self) -> None:
        global _capturing
        if _capturing is not self:
            raise RuntimeError("CUDAGraph::capture_end without a capture of this graph")
        _capturing = None
        if not self.noted.end():
            self.reset()
            raise RuntimeError(INVALIDATED)

    def _owned(self, method: str):
        if self.noted is None or _capturing is self:
            raise RuntimeError(
                f"Called CUDAGraph::{method} without a preceding successful capture."
            )
        return self.noted

    def pool(self) -> tuple[int, int]:
        self._owned("pool")
        return self.handle

    def instantiate(self) -> None:
        self._owned("instantiate")

    def replay(self) -> None:
        noted = self._owned("replay")
        refuse_while_capturing()
        device.load().emulated_replayed()
        done = 0
        for place, (launch, memory) in self.foreign.items():
            noted.run(done, place)
            if not all(device.allocation(address) for address in memory):
                raise RuntimeError(FREED)
            launch()
            done = place + 1
        noted.run(done, noted.size())
