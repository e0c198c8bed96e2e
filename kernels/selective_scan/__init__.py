"""The selective scan of state-space models: launchers.

    s = delta or softplus(delta),  h_t = exp(s_t A) h_{t-1} + s_t u_t B_t,  y_t = C_t h_t + D u_t
    adjoints, g_t = C_t y'_t + exp(s_{t+1} A) g_{t+1}, w_t = exp(s_t A) h_{t-1} g_t:
        B'_t = s_t u_t g_t,  C'_t = h_t y'_t,  A' = sum_t s_t w_t
        s'_t = A w_t + u_t B_t g_t,  u'_t = s_t B_t g_t + D y'_t

Layouts: u, delta, y [B, L, E], A [E, N], B, C [B, L, N], D [E] or None, states [B, saved, N, E],
initial (or None: zeros) and last [B, N, E]. Copies are made only of rows with gaps between numbers,
and of an initial state in another layout.
With M models, A is [M, E, N] and D [M, E], and sequence b belongs to model b // (B / M).
Halves are loaded and stored as such; states, and all that is computed, are float32 then.
Sums over sequences and over blocks of channels are left to torch and have no atomics, so that equal
calls have equal results.
"""

from typing import NamedTuple

import torch
import triton

from .. import launching, results
from ..configs import Config, Launch, architecture, lookup
from ..contracts import SCAN_CHUNK
from .passes import selective_scan_backward_kernel, selective_scan_forward_kernel

OP = "selective_scan"
MODES = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
}
# Computed in float32, halves take its tiles.
TILES = {"fp16": "fp32", "bf16": "fp32", "fp32": "fp32", "fp64": "fp64"}
SIZES = (4, 16, 64)  # of states, padded


class Scan(NamedTuple):
    """The arguments of a call. Rows of u, delta, B and C are contiguous, and A [M, E, N] and
    D [M, E] are so for each model; initial [B, N, E] is contiguous, as the states are."""

    u: torch.Tensor
    delta: torch.Tensor
    A: torch.Tensor
    B: torch.Tensor
    C: torch.Tensor
    D: torch.Tensor | None
    initial: torch.Tensor | None
    softplus: bool

    @classmethod
    def of(cls, u, delta, A, B, C, D, initial, *, softplus):
        u, delta, B, C = (_in_rows(x) for x in (u, delta, B, C))
        initial = None if initial is None else initial.contiguous()
        return cls(u, delta, _by_model(A, 2), B, C, _by_model(D, 1), initial, softplus)

    @property
    def sizes(self):
        return *self.u.shape, self.A.shape[2]

    @property
    def padded(self) -> int:
        return next(size for size in SIZES if size >= self.A.shape[2])

    def config(self, kernel: str, arch: str) -> Config:
        return lookup(OP, kernel, TILES[MODES[self.u.dtype]], self.padded, arch)[0]

    def common(self, states) -> dict:
        batch, L, E, N = self.sizes
        tensors = self._asdict()
        rows = {name: tensors[name] for name in ("u", "delta", "B", "C")}
        return {name: tensors[name] for name in ("u", "delta", "A", "B", "C", "D", "initial")} | {
            "states": states,
            "L": L,
            "E": E,
            "N": N,
            "saved": states.shape[1],
            "sequences": batch // self.A.shape[0],
            **_strides("bt", **rows),
            "A_m": self.A.stride(0),
            "D_m": 0 if self.D is None else self.D.stride(0),
            "HAS_SKIP": self.D is not None,
            "HAS_INITIAL": self.initial is not None,
            "SOFTPLUS": self.softplus,
            "NP": self.padded,
        }

    def blocks(self, config: Config) -> int:
        return triton.cdiv(self.u.shape[2], config.tiles["BE"])

    def forward_launch(self, y, states, last, every: int, arch: str) -> Launch:
        config = self.config("forward", arch)
        arguments = self.common(states) | {"y": y, "last": last}
        arguments |= {"EVERY": every, "LAST": last.numel() > 0}
        grid = self.u.shape[0] * self.blocks(config)
        return Launch(selective_scan_forward_kernel, grid, arguments, config)

    def empty_gradients(self, states, arch: str) -> dict[str, torch.Tensor]:
        """What is to be summed is of the dtype of the states."""
        B, L, E, N = self.sizes
        blocks = self.blocks(self.config("backward", arch))
        rows = (self.u if blocks == 1 else states).new_empty
        return {
            "grad_u": self.u.new_empty((B, L, E)),
            "grad_delta": self.u.new_empty((B, L, E)),
            "grad_A": states.new_empty((B, E, N)),
            "grad_B": rows((blocks, B, L, N)),
            "grad_C": rows((blocks, B, L, N)),
            "grad_D": states.new_empty((B, E)),
            "grad_initial": results.initial_gradient(states, self.initial),
        }

    def backward_launch(self, grad_y, grad_last, states, gradients, arch: str) -> Launch:
        config = self.config("backward", arch)
        batch = self.u.shape[0]
        arguments = self.common(states) | gradients
        arguments |= {"grad_y": grad_y, "grad_last": grad_last, "batch": batch}
        arguments |= _strides("bt", grad_y=grad_y) | _strides("bne", grad_last=grad_last)
        arguments |= {"HAS_LAST": grad_last is not None}
        arguments |= {"PARTS": SCAN_CHUNK // config.tiles["CH"]}
        arguments |= {"WARPS": config.warps, "LANES": 32 if arch.startswith("sm_") else 64}
        grid = batch * self.blocks(config)
        return Launch(selective_scan_backward_kernel, grid, arguments, config)


def selective_scan_forward(u, delta, A, B, C, D, initial, *, softplus, every, last):
    """y, the states after every so many steps (0: none), and the last one (or none)."""
    scan = Scan.of(u, delta, A, B, C, D, initial, softplus=softplus)
    made = results.selective_scan(u, A, every, last)
    if u.numel() > 0:
        *inputs, softplus = scan
        launching.run(
            ("selective_scan_forward", softplus, every, last),
            inputs,
            made,
            lambda *tensors: [
                Scan(*tensors[:-3], softplus).forward_launch(
                    *tensors[-3:], every, architecture(u.device)
                )
            ],
        )
    elif last:
        made[2].zero_() if initial is None else made[2].copy_(initial)
    return made


def selective_scan_backward(
    grad_y, grad_last, u, delta, A, B, C, D, initial, states, *, softplus, every
):
    """Gradients of u, delta, A, B, C, D and initial, those of the last two also where there is
    none."""
    if every != SCAN_CHUNK:
        raise ValueError(f"{OP}: states must be saved every {SCAN_CHUNK} steps, got {every}")
    if u.numel() == 0:
        made = results.selective_scan_gradients(u, delta, A, B, C, D, initial)
        *made, grad_initial = (x.zero_() for x in made)
        if initial is not None and grad_last is not None:
            grad_initial.copy_(grad_last)
        return *made, grad_initial
    arch = architecture(u.device)
    scan = Scan.of(u, delta, A, B, C, D, initial, softplus=softplus)
    gradients = scan.empty_gradients(states, arch)
    *arguments, softplus = scan

    def launches(*tensors):
        given, made = tensors[: -len(gradients)], tensors[-len(gradients) :]
        scan, made = Scan(*given[:-3], softplus), dict(zip(gradients, made, strict=True))
        return [scan.backward_launch(*given[-3:], made, arch)]

    inputs = (*arguments, _in_rows(grad_y), grad_last, states.contiguous())
    flags = ("selective_scan_backward", softplus)
    launching.run(flags, inputs, tuple(gradients.values()), launches)
    models = scan.A.shape[0]
    return (
        gradients["grad_u"],
        gradients["grad_delta"],
        _sum(_split(gradients["grad_A"], models), 1, A.dtype).view(A.shape),
        _sum(gradients["grad_B"], 0, B.dtype),
        _sum(gradients["grad_C"], 0, C.dtype),
        _sum(_split(gradients["grad_D"], models), 1, (A if D is None else D).dtype).view(
            A.shape[:-1]
        ),
        gradients["grad_initial"],
    )


def _in_rows(x):
    """Any strides but that of the last dimension."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _strides(dimensions: str, **tensors) -> dict[str, int]:
    """Of the first dimensions of each, as name_dimension; 0 for those of none."""
    return {
        f"{name}_{dimension}": 0 if x is None else x.stride(i)
        for name, x in tensors.items()
        for i, dimension in enumerate(dimensions)
    }


def _by_model(x, ndim):
    """With a dimension for the models, which may have any stride: so M models lie in one buffer."""
    if x is None:
        return None
    x = x if x.ndim > ndim else x.unsqueeze(0)
    return x if x[0].is_contiguous() else x.contiguous()


def _split(x, models):
    return x.view(models, x.shape[0] // models, *x.shape[1:])


def _sum(x, dim, dtype):
    """In float64 whatever the number of terms."""
    return (x.squeeze(dim) if x.shape[dim] == 1 else x.sum(dim, dtype=torch.float64)).to(dtype)


def example_launches(
    *,
    mode,
    batch,
    steps,
    channels,
    states,
    arch,
    softplus=True,
    skip=True,
    every=SCAN_CHUNK,
    models=1,
    handed_on=False,
) -> dict[str, Launch]:
    """The launches of one call by name, on tensors without memory. handed_on: from an initial state
    to the last one, with gradients."""
    dtype = {name: dtype for dtype, name in MODES.items()}[mode]

    def empty(*shape):
        return torch.empty(shape, dtype=dtype, device="meta")

    rows, inputs = empty(batch, steps, states), empty(batch, steps, channels)
    A, D = empty(models, channels, states), empty(models, channels) if skip else None
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    shape = (batch, states, channels)
    initial = torch.empty(shape, dtype=wide, device="meta") if handed_on else None
    scan = Scan.of(inputs, inputs, A, rows, rows, D, initial, softplus=softplus)
    y, saved, last = results.selective_scan(inputs, A, every, handed_on)
    launches = [scan.forward_launch(y, saved, last, every, arch)]
    if every == SCAN_CHUNK:
        gradients = scan.empty_gradients(saved, arch)
        launches.append(scan.backward_launch(inputs, initial, saved, gradients, arch))
    return {launch.name: launch for launch in launches}


def specialisations(arch: str):
    """(name, launch) of every form."""
    for mode in MODES.values():
        for states in SIZES:
            for every, handed_on in ((0, False), (SCAN_CHUNK, False), (SCAN_CHUNK, True)):
                sizes = {"batch": 64, "steps": 4096, "channels": 512, "states": states}
                options = {"every": every, "handed_on": handed_on}
                launches = example_launches(mode=mode, arch=arch, **sizes, **options)
                for name, launch in launches.items():
                    kind = "handed_on" if handed_on else f"every{every}"
                    yield f"{name}.{mode}.N{states}.{kind}", launch
