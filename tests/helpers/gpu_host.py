"""A GPU host without a GPU: devices that torch believes in, tensors on them that hold no numbers,
and a watch over every op for what would make the host wait for the device or feed it.

FakeTensorMode runs shapes, dtypes, devices and the fakes of our own ops. It does not look into a
kernel: what an op does behind its fake is not seen here.
"""

import ctypes
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.function import BackwardCFunction
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bwt import models
from bwt.ops import _library
from bwt.train import loop

CUDA = torch.device("cuda", 0)

# torch lacks the shapes of the one form of AdamW whose rate is on the device; it changes its
# arguments and gives nothing back.
META = torch.library.Library("aten", "IMPL")
META.impl("_fused_adamw_.tensor_lr", lambda *arguments, **options: None, "Meta")

# Ops whose result or its size the host has to know, and those that bring host memory in.
READS = {"_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "bincount"}
READS |= {"_unique", "_unique2", "unique_dim", "unique_consecutive", "repeat_interleave"}
COPIES = {"_pin_memory", "lift_fresh", "lift_fresh_copy", "lift"}


def pretend(
    patch: pytest.MonkeyPatch, count: int, *, name: str = "NVIDIA A100", fault: str | None = None
) -> None:
    """torch speaks of `count` GPUs; `fault` is why the CUDA extension cannot be used."""
    current = [0]

    def set_device(device) -> None:
        current[0] = torch.device(device).index if not isinstance(device, int) else device

    said = {
        "is_available": lambda: count > 0,
        "device_count": lambda: count,
        "get_device_name": lambda device=None: name,
        "get_device_capability": lambda device=None: (8, 0),
        "get_device_properties": lambda device=None: SimpleNamespace(
            name=name, major=8, minor=0, multi_processor_count=108
        ),
        "is_bf16_supported": lambda including_emulation=True: True,
        "current_device": lambda: current[0],
        "set_device": set_device,
    }
    for function, answer in said.items():
        patch.setattr(torch.cuda, function, answer)
    patch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    patch.setattr(_library, "cuda_fault", fault)
    ranks = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    for variable in (*ranks, "CUDA_VISIBLE_DEVICES", "BWT_BACKEND"):
        patch.delenv(variable, raising=False)


class Generator(torch.Generator):
    """Says it is on a GPU; under fake tensors no number is drawn from it."""

    def __new__(cls, device="cpu"):
        made = super().__new__(cls)
        made.place = torch.device(device)
        return made

    @property
    def device(self) -> torch.device:
        return self.place


class Watch(TorchDispatchMode):
    """Notes every op that touches host memory or that the host has to wait for."""

    def __init__(self):
        super().__init__()
        self.ops: set[str] = set()
        self.dtypes: set[str] = set()
        self.faults: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.ops.add(name)
        if name in READS or (name.startswith("index") and _masked(args)):
            self._note(f"{func}: the host waits for the device")
        if name in COPIES:
            self._note(f"{func}: host memory is copied")
        # Fakes of random ops need no generator, and some refuse one.
        kwargs = {key: None if key == "generator" else x for key, x in (kwargs or {}).items()}
        result = func(*args, **kwargs)
        leaves = tree_leaves((args, kwargs, result))
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        self.dtypes |= {str(x.dtype).removeprefix("torch.") for x in tensors}
        places = {x.device for x in tensors}
        if places - {CUDA}:
            self._note(f"{func}: tensors on {', '.join(sorted(map(str, places)))}")
        return result

    def _note(self, fault: str) -> None:
        if fault not in self.faults:
            self.faults.append(fault)


def _masked(args) -> bool:
    indices = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else ()
    return any(
        isinstance(x, torch.Tensor) and x.dtype in (torch.bool, torch.uint8) for x in indices
    )


@contextmanager
def device_guard():
    """Autograd notes the stream of a tensor's device and finds no CUDA code to ask in a torch that
    was built without; the meta device's code, which does nothing, answers instead."""
    if torch.cuda.is_available():
        yield
        return
    cuda, meta, types = 1, 14, 21  # c10::DeviceType
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    registry = "_ZN3c104impl26device_guard_impl_registryE"
    table = (ctypes.c_void_p * types).in_dll(library, registry)
    before = table[cuda]
    table[cuda] = table[meta]
    try:
        yield
    finally:
        table[cuda] = before


@torch.no_grad()
def backward(loss: torch.Tensor) -> None:
    """The nodes of autograd in order, called one by one: its own engine hands them to a thread of
    the device, and there is none. As in the engine, a gradient is brought to the shape and dtype of
    what it belongs to."""
    pending = {loss.grad_fn: [torch.ones_like(loss)]}
    for node in _topological(loss.grad_fn):
        incoming = pending.pop(node, None)
        if incoming is None:
            continue
        incoming = [
            grad if grad is None else grad.sum_to_size(meta.shape).to(meta.dtype)
            for grad, meta in zip(incoming, _inputs(node), strict=True)
        ]
        if hasattr(node, "variable"):
            leaf, (grad,) = node.variable, incoming
            leaf.grad = grad if leaf.grad is None else leaf.grad + grad
            continue
        # Gradients that are absent stay None, which all our ops ask for.
        call = node.apply if isinstance(node, BackwardCFunction) else node
        outgoing = call(*incoming)
        outgoing = outgoing if isinstance(outgoing, tuple) else (outgoing,)
        for (following, slot), grad in zip(node.next_functions, outgoing, strict=False):
            if following is not None and grad is not None:
                slots = pending.setdefault(following, [None] * len(_inputs(following)))
                slots[slot] = grad if slots[slot] is None else slots[slot] + grad


def _inputs(node) -> tuple:
    """What a node takes: the results of its forward, or a leaf itself."""
    return (node.variable,) if hasattr(node, "variable") else node._input_metadata


def _topological(root) -> list:
    order, seen, stack = [], set(), [(root, False)]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(following, False) for following, _ in node.next_functions if following]
    return order[::-1]


@contextmanager
def on_the_device():
    """Make training steps and all ops work on fake tensors of a GPU; yields the mode to run in."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        stack.enter_context(device_guard())
        pretend(patch, 1)
        patch.setattr(torch, "Generator", Generator)
        patch.setattr(torch.Tensor, "backward", backward)
        # A fake module cannot be moved: it is made where it belongs.
        patch.setattr(torch.nn.Module, "to", lambda self, device: self)
        patch.setattr(loop, "build_model", _build_on_the_device)
        yield stack.enter_context(FakeTensorMode())


def _build_on_the_device(config, task):
    with CUDA:
        return models.build_for(task, config.model, **config.model_options)
