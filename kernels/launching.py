"""Runs launches, and runs them again at little cost to the host.

What an op launches follows from the layouts of its tensors and from its flags. The first call looks
up configs, collects arguments by name and lets Triton bind, specialise and compile. What remains is
kept: the compiled kernels, their grids, and the order of their arguments, into which later calls
only put the addresses of their tensors.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import reduce
from operator import itemgetter, or_
from typing import NamedTuple

import torch
from torch import Tensor
from triton import knobs
from triton.compiler import CompiledKernel
from triton.runtime import driver

from . import plans
from .configs import Launch


class Repeated(NamedTuple):
    """A compiled kernel with all of its arguments but the addresses of tensors."""

    run: Callable
    grid: int
    function: int
    metadata: tuple
    pick: itemgetter  # the arguments in their order, out of addresses and constants
    constants: tuple


class Plan(NamedTuple):
    current_device: Callable[[], int]
    current_stream: Callable[[int], int]
    scratch: tuple[tuple[torch.Size, torch.dtype], ...]
    launches: tuple[Repeated, ...]


class Launcher:
    """Of calls whose tensors lie alike on one device."""

    def __init__(self, device: torch.device):
        self.device = device
        self.plans: dict[Hashable, Plan] = {}

    def run(
        self, flags: tuple, tensors: Sequence[Tensor | None], make: Callable[..., list[Launch]]
    ) -> None:
        """Runs the launches that `make` lists of the tensors. Others in them are scratch:
        contiguous, and their content is of no matter.

        flags: what decides besides the layouts that all calls share.
        """
        addresses = [0 if x is None else x.data_ptr() for x in tensors]
        # A kernel compiled for aligned tensors must not meet others.
        odd = reduce(or_, addresses) % 16 and tuple(address % 16 for address in addresses)
        plan = self.plans.get((odd, flags))
        if plan is None or _watched():
            plan = _run_first(self.device, tensors, make)
            if plan is not None:
                self.plans[odd, flags] = plan
        elif plan.current_device() == self.device.index:
            _repeat(plan, self.device, addresses)
        else:
            with torch.cuda.device(self.device):
                _repeat(plan, self.device, addresses)


def run(
    flags: tuple,
    inputs: Sequence[Tensor | None],
    outputs: Sequence[Tensor | None],
    make: Callable[..., list[Launch]],
) -> None:
    """Launcher.run where the call looks for its launcher.

    flags: all besides the inputs that launches and outputs follow from.
    """
    layouts = [x if x is None else (x.dtype, x.shape, x.stride()) for x in inputs]
    device = inputs[0].device  # type: ignore[union-attr]  # the first input is always there
    signature = (flags, device, *layouts)
    launcher = plans.find(signature)
    if launcher is None:
        launcher = plans.keep(signature, Launcher(device))
    launcher.run((), (*inputs, *outputs), make)


def _repeat(plan: Plan, device: torch.device, addresses: list[int]) -> None:
    if plan.scratch:
        scratch = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in plan.scratch]
        addresses += [x.data_ptr() for x in scratch]
    stream = plan.current_stream(device.index)
    for launch, grid, function, metadata, pick, constants in plan.launches:
        arguments = pick((*addresses, *constants))
        launch(grid, 1, 1, stream, function, metadata, None, None, None, *arguments)


def _watched() -> bool:
    """Whether somebody, such as a profiler, asked Triton to be told of launches."""
    runtime = knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


def _run_first(device: torch.device, tensors: Sequence, make: Callable) -> Plan | None:
    # Places are told apart by their tensors: one that is passed twice is two here.
    tensors = [x if x is None else x.detach() for x in tensors]
    launches = make(*tensors)
    kernels = [launch.run(device) for launch in launches]
    if torch.version.hip or not all(isinstance(x, CompiledKernel) for x in kernels):
        return None  # AMD specialises on more than alignment; others were not compiled
    known = {id(x) for x in tensors}
    arguments = [x for launch in launches for x in launch.arguments.values()]
    scratch = {id(x): x for x in arguments if _is_tensor(x) and id(x) not in known}
    places = [*map(id, tensors), *scratch]
    pairs = zip(launches, kernels, strict=True)
    return Plan(
        driver.active.get_current_device,
        driver.active.get_current_stream,
        tuple((x.shape, x.dtype) for x in scratch.values()),
        tuple(_repeated(launch, kernel, places) for launch, kernel in pairs),
    )


def _repeated(launch: Launch, kernel: CompiledKernel, places: list[int]) -> Repeated:
    arguments = launch.arguments | launch.config.tiles
    values = [arguments[name] for name in launch.kernel.arg_names]
    constants = [x for x in values if not _is_tensor(x)]
    behind = iter(range(len(places), len(places) + len(constants)))
    order = [places.index(id(x)) if _is_tensor(x) else next(behind) for x in values]
    return Repeated(
        kernel.run,
        launch.grid,
        kernel.function,
        kernel.packed_metadata,
        itemgetter(*order),
        tuple(constants),
    )


def _is_tensor(x) -> bool:
    return isinstance(x, Tensor)
