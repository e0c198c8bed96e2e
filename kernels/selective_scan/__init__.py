"""The selective scan of state-space models: launchers.

    s = delta or softplus(delta),  h_t = exp(s_t A) h_{t-1} + s_t u_t B_t,  y_t = C_t h_t + D u_t
    adjoints, g_t = C_t y'_t + exp(s_{t+1} A) g_{t+1}, w_t = exp(s_t A) h_{t-1} g_t:
        B'_t = s_t u_t g_t,  C'_t = h_t y'_t,  A' = sum_t s_t w_t
        s'_t = A w_t + u_t B_t g_t,  u'_t = s_t B_t g_t + D y'_t

Layouts: u, delta, y [B, L, E], A [E, N], B, C [B, L, N], D [E] or None, states [B, saved, N, E].
Sums over sequences and over blocks of channels are left to torch and have no atomics, so that equal
calls have equal results.
"""

from typing import NamedTuple

import torch
import triton

from .. import results
from ..configs import Config, Launch, architecture, lookup
from ..contracts import SCAN_CHUNK
from .passes import selective_scan_backward_kernel, selective_scan_forward_kernel

OP = "selective_scan"
MODES = {torch.float32: "fp32", torch.float64: "fp64"}
SIZES = (4, 16, 64)  # of states, padded


class Scan(NamedTuple):
    """The contiguous arguments of a call."""

    u: torch.Tensor
    delta: torch.Tensor
    A: torch.Tensor
    B: torch.Tensor
    C: torch.Tensor
    D: torch.Tensor | None
    softplus: bool

    @classmethod
    def of(cls, *tensors, softplus):
        return cls(*(None if x is None else x.contiguous() for x in tensors), softplus)

    @property
    def sizes(self):
        return *self.u.shape, self.A.shape[1]

    @property
    def padded(self) -> int:
        return next(size for size in SIZES if size >= self.A.shape[1])

    def config(self, kernel: str, arch: str) -> Config:
        return lookup(OP, kernel, MODES[self.u.dtype], self.padded, arch)[0]

    def common(self, states) -> dict:
        _, L, E, N = self.sizes
        tensors = self._asdict()
        return {name: tensors[name] for name in ("u", "delta", "A", "B", "C", "D")} | {
            "states": states,
            "L": L,
            "E": E,
            "N": N,
            "saved": states.shape[1],
            "HAS_SKIP": self.D is not None,
            "SOFTPLUS": self.softplus,
            "NP": self.padded,
        }

    def blocks(self, config: Config) -> int:
        return triton.cdiv(self.u.shape[2], config.tiles["BE"])

    def forward_launch(self, y, states, every: int, arch: str) -> Launch:
        config = self.config("forward", arch)
        arguments = self.common(states) | {"y": y, "every": every, "SAVE": every > 0}
        grid = self.u.shape[0] * self.blocks(config)
        return Launch(selective_scan_forward_kernel, grid, arguments, config)

    def empty_gradients(self, arch: str) -> dict[str, torch.Tensor]:
        B, L, E, N = self.sizes
        blocks, new = self.blocks(self.config("backward", arch)), self.u.new_empty
        return {
            "grad_u": new((B, L, E)),
            "grad_delta": new((B, L, E)),
            "grad_A": new((B, E, N)),
            "grad_B": new((blocks, B, L, N)),
            "grad_C": new((blocks, B, L, N)),
            "grad_D": new((B, E)),
        }

    def backward_launch(self, grad_y, states, gradients, arch: str) -> Launch:
        config = self.config("backward", arch)
        batch = self.u.shape[0]
        arguments = self.common(states) | gradients | {"grad_y": grad_y, "batch": batch}
        grid = batch * self.blocks(config)
        return Launch(selective_scan_backward_kernel, grid, arguments, config)


def selective_scan_forward(u, delta, A, B, C, D, *, softplus, every):
    """y, and the states after every so many steps (0: none)."""
    scan = Scan.of(u, delta, A, B, C, D, softplus=softplus)
    y, states = results.selective_scan(u, A, every)
    if u.numel() > 0:
        scan.forward_launch(y, states, every, architecture(u.device)).run(u.device)
    return y, states


def selective_scan_backward(grad_y, u, delta, A, B, C, D, states, *, softplus, every):
    """Gradients of u, delta, A, B, C, D, the last also where there is none."""
    if every != SCAN_CHUNK:
        raise ValueError(f"{OP}: states must be saved every {SCAN_CHUNK} steps, got {every}")
    if u.numel() == 0:
        return tuple(x.zero_() for x in results.dense(u, delta, A, B, C, A[:, 0]))
    scan, arch = Scan.of(u, delta, A, B, C, D, softplus=softplus), architecture(u.device)
    gradients = scan.empty_gradients(arch)
    launch = scan.backward_launch(grad_y.contiguous(), states.contiguous(), gradients, arch)
    launch.run(u.device)
    return (
        gradients["grad_u"],
        gradients["grad_delta"],
        *(_sum(gradients[name]) for name in ("grad_A", "grad_B", "grad_C", "grad_D")),
    )


def _sum(x):
    """Over the first dimension, in float64 whatever the number of terms."""
    return x.squeeze(0) if x.shape[0] == 1 else x.sum(0, dtype=torch.float64).to(x.dtype)


def example_launches(
    *, mode, batch, steps, channels, states, arch, softplus=True, skip=True, every=SCAN_CHUNK
) -> dict[str, Launch]:
    """The launches of one call by name, on tensors without memory."""
    dtype = {name: dtype for dtype, name in MODES.items()}[mode]

    def empty(*shape):
        return torch.empty(shape, dtype=dtype, device="meta")

    rows, inputs = empty(batch, steps, states), empty(batch, steps, channels)
    D = empty(channels) if skip else None
    scan = Scan.of(inputs, inputs, empty(channels, states), rows, rows, D, softplus=softplus)
    saved = empty(batch, steps // every if every else 0, states, channels)
    launches = [scan.forward_launch(empty(batch, steps, channels), saved, every, arch)]
    if every == SCAN_CHUNK:
        gradients = scan.empty_gradients(arch)
        launches.append(scan.backward_launch(inputs, saved, gradients, arch))
    return {launch.name: launch for launch in launches}


def specialisations(arch: str):
    """(name, launch) of every form."""
    for mode in MODES.values():
        for states in SIZES:
            for every in (SCAN_CHUNK, 0):
                sizes = {"batch": 64, "steps": 4096, "channels": 512, "states": states}
                launches = example_launches(mode=mode, arch=arch, every=every, **sizes)
                for name, launch in launches.items():
                    yield f"{name}.{mode}.N{states}.every{every}", launch
