"""The Python side of torch.cuda for the emulated device."""

from types import SimpleNamespace

import torch

from . import device, graphs, streams

NAME = "Emulated GPU"
PROPERTIES = SimpleNamespace(
    name=NAME,
    major=8,
    minor=0,
    total_memory=8 << 30,
    multi_processor_count=4,
    L2_cache_size=4 << 20,
    warp_size=32,
    gcnArchName="",
)


class Generator(torch.Generator):
    """One for "cuda" draws as one for the CPU does."""

    def __new__(cls, device="cpu"):
        made = super().__new__(cls)
        made.place = _indexed(torch.device(device))
        return made

    @property
    def device(self):
        return self.place

    def get_state(self):
        self._not_while_capturing("current_seed")
        return super().get_state()

    def set_state(self, state):
        self._not_while_capturing("set_state")
        return super().set_state(state)

    def manual_seed(self, seed):
        self._not_while_capturing("set_current_seed")
        return super().manual_seed(seed)

    def _not_while_capturing(self, method: str) -> None:
        if self.place.type == "cuda" and graphs.is_capturing():
            raise RuntimeError(
                f"Cannot call CUDAGeneratorImpl::{method} during CUDA graph capture. "
                "If you need this call to be captured, please file an issue."
            )


def _indexed(place: torch.device) -> torch.device:
    if place.type == "cuda" and place.index is None:
        return torch.device("cuda", device.load().emulated_device())
    return place


def _index(place=None) -> int:
    if isinstance(place, int):
        return place
    return _indexed(torch.device("cuda" if place is None else place)).index


def _exchange(index: int) -> int:
    before = device.load().emulated_device()
    if index >= 0:
        device.load().emulated_set_device(index)
    return before


def _properties(place=None):
    if not 0 <= _index(place) < torch.cuda.device_count():
        raise AssertionError("Invalid device id")
    return PROPERTIES


def _empty_strided(size, stride, dtype):
    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")


def install(gpus: int = 1) -> None:
    """Lets torch.cuda find `gpus` emulated devices."""
    device.load().emulated_gpus(gpus)
    replaced = {
        "_lazy_init": lambda: None,
        "is_initialized": lambda: True,
        "is_available": lambda: gpus > 0,
        "device_count": lambda: gpus,
        "current_device": lambda: device.load().emulated_device(),
        "set_device": lambda place: _exchange(_index(place)),
        "_exchange_device": lambda index: _exchange(index),
        "_maybe_exchange_device": lambda index: _exchange(index),
        "get_device_name": lambda place=None: _properties(place).name,
        "get_device_properties": _properties,
        "get_device_capability": lambda place=None: (_properties(place).major, PROPERTIES.minor),
        "is_bf16_supported": lambda including_emulation=True: True,
        "synchronize": lambda place=None: graphs.refuse_while_capturing(),
        "Event": streams.Event,
        "Stream": streams.Stream,
        "current_stream": streams.current_stream,
        "default_stream": streams.default_stream,
        "set_stream": streams.set_stream,
        "CUDAGraph": graphs.CUDAGraph,
        "is_current_stream_capturing": graphs.is_capturing,
        "graph_pool_handle": graphs.pool_handle,
        "default_generators": tuple(Generator(f"cuda:{i}") for i in range(gpus)),
    }
    for name, value in replaced.items():
        if not hasattr(torch.cuda, name):
            raise RuntimeError(f"torch.cuda has no {name} to be replaced")
        setattr(torch.cuda, name, value)
    # What a CPU build of torch lacks below torch.cuda.
    below = {
        "_cuda_getDevice": lambda: device.load().emulated_device(),
        "_cuda_setDevice": lambda index: _exchange(index),
        "_cuda_exchangeDevice": lambda index: _exchange(index),
        "_cuda_maybeExchangeDevice": lambda index: _exchange(index),
        "_cuda_getDeviceCount": lambda: gpus,
        "_cuda_getCurrentRawStream": lambda index: streams.current_stream(index).cuda_stream,
        "_cuda_synchronize": graphs.refuse_while_capturing,
        "_cuda_emptyCache": lambda: None,
        "_host_emptyCache": lambda: None,
        "_cuda_memoryStats": lambda index: {},  # every figure is 0
        "_cuda_resetPeakMemoryStats": lambda index: None,
        "_cuda_resetAccumulatedMemoryStats": lambda index: None,
    }
    for name, value in below.items():
        if hasattr(torch._C, name):
            raise RuntimeError(f"torch._C has a {name} already: this torch has CUDA")
        setattr(torch._C, name, value)
    torch.version.cuda = "13.0"
    torch._C._dynamo.guards._empty_strided_cuda = _empty_strided  # what compiled code calls
    torch.Generator = Generator
