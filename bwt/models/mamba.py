"""Mamba: blocks of a short convolution and a selective scan, with a gate."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from bwt import ops
from bwt.models.parts import (
    NORMS,
    Embedding,
    Head,
    Residual,
    Shape,
    at,
    depth_gain,
    linear,
    through,
)
from bwt.models.parts import Model as Base
from bwt.options import check_options, option
from bwt.taps import Tapped

STEP_RANGE = (1e-3, 1e-1)  # of the step sizes at the start, spread evenly in their logarithm


@dataclass(frozen=True)
class Options:
    layers: int = option(2, "Mamba blocks", minimum=1)
    width: int = option(64, "of the residual stream", minimum=1)
    state: int = option(16, "states of each channel", minimum=1)
    expansion: int = option(2, "channels of a block, in widths", minimum=1)
    rank: int = option(0, "of the map to the step sizes; 0: width / 16, rounded up")
    kernel: int = option(4, "positions that the convolution sees", minimum=1)
    norm: str = option("rms", "rms has a gain; layer has none and is cheaper", ("rms", "layer"))
    logit_scale: float = option(1.0, "factor on the logits")

    SECOND_SIZE: ClassVar[str] = "rank"
    width_step: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def channels(self) -> int:
        return self.expansion * self.width

    @property
    def second_size(self) -> int:
        return self.rank or math.ceil(self.width / 16)


class _CausalConvolution(torch.autograd.Function):
    """sum_j weight_j * x_{t-j} + bias for each channel, x [B, T, C], weight [K, C] and bias [C]; of
    M models, x [M, B, T, C], weight [M, 1, 1, K, C] and bias [M, 1, 1, C]. torch's grouped
    convolution wants time last and is slower on a CPU, its gradient above all."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        first, *others = weight
        total = torch.addcmul(bias, x, first)
        for j, share in enumerate(others[: x.shape[-2] - 1], 1):
            total[..., j:, :].addcmul_(x[..., :-j, :], share)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        first, *others = weight
        grad_x = grad * first
        grad_weight = torch.zeros_like(weight)
        grad_weight[0] = (grad * x).sum((0, 1))
        for j, share in enumerate(others[: x.shape[-2] - 1], 1):
            grad_x[..., :-j, :].addcmul_(grad[..., j:, :], share)
            grad_weight[j] = (grad[..., j:, :] * x[..., :-j, :]).sum((0, 1))
        return grad_x, grad_weight, grad.sum((0, 1))


class CausalConvolution(nn.Module):
    """Each channel sees its own last `kernel` positions."""

    def __init__(self, channels: int, kernel: int):
        super().__init__()
        self.mix = nn.Parameter(torch.randn(kernel, channels) * kernel**-0.5)
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        plain = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
        if x.is_cuda or plain:
            weight = self.mix.t().flip(1).unsqueeze(1)  # [C, 1, K], the oldest first
            past = functional.pad(x.transpose(1, 2), (len(self.mix) - 1, 0))
            return functional.conv1d(past, weight, self.bias, groups=len(weight)).transpose(1, 2)
        # Under autocast x is half, and float32 weights would make the result float32.
        return _CausalConvolution.apply(x, self.mix.to(x.dtype), self.bias.to(x.dtype))


class Mixer(Tapped):
    # state [B, T, C, N] after each position; delta [B, T, C], the step sizes;
    # B, C [B, T, N]: what enters and leaves the states; gate [B, T, C]
    taps = ("state", "delta", "B", "C", "gate")
    reported = ("state", "delta")

    def __init__(self, options: Options, gain: float):
        super().__init__()
        channels, states = options.channels, options.state
        self.sizes = (options.second_size, states, states)
        self.up = linear(options.width, 2 * channels, bias=False)
        self.conv = CausalConvolution(channels, options.kernel)
        self.select = linear(channels, sum(self.sizes), bias=False)
        self.step = linear(options.second_size, channels)
        self.step.bias.data.copy_(_inverse_softplus(_even_steps(channels)))
        # A = -exp(log_rate): the state n fades at n + 1 times the rate of the first.
        rates = torch.arange(1.0, states + 1).log()
        self.log_rate = nn.Parameter(rates.repeat(channels, 1))
        self.skip = nn.Parameter(torch.ones(channels))
        self.down = linear(channels, options.width, bias=False, gain=gain)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """x [B, T, C] -> [B, T, C], or [B, P, C] at the positions."""
        u, gate = self.up(x).chunk(2, -1)
        u = functional.silu(self.conv(u))
        step, B, C = self.select(u).split(self.sizes, -1)
        delta, A = self.step(step), -self.log_rate.exp()
        B, C = self.tap("B", B), self.tap("C", C)
        if "delta" in self.listeners:
            self.tap("delta", functional.softplus(delta))
        if "state" in self.listeners:
            self.tap("state", ops.selective_scan_states(u, delta, A, B, delta_softplus=True))
        y = ops.selective_scan(u, delta, A, B, C, self.skip, delta_softplus=True)
        gate = self.tap("gate", functional.silu(at(gate, positions)))
        return self.down(at(y, positions) * gate)


def _even_steps(count: int) -> Tensor:
    low, high = (math.log(step) for step in STEP_RANGE)
    return (low + (high - low) * torch.rand(count)).exp()


def _inverse_softplus(x: Tensor) -> Tensor:
    return x + torch.log(-torch.expm1(-x))


class Block(nn.Module):
    def __init__(self, options: Options):
        super().__init__()
        self.norm = NORMS[options.norm](options.width)
        self.mixer = Mixer(options, depth_gain(options.layers))

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        return self.extend(Residual(x), positions).total()

    def extend(self, stream: Residual, positions: Tensor | None = None) -> Residual:
        x, y = stream.normed(self.norm)
        return Residual(at(x, positions), self.mixer(y, positions))


class Model(Base):
    """Nothing after the last block's scan is computed at positions not asked for."""

    options_class = Options
    taps = ("logits",)

    def __init__(self, shape: Shape, options: Options):
        super().__init__()
        self.embed = Embedding(shape, options.width, positions=False)
        self.blocks = nn.ModuleList(Block(options) for _ in range(options.layers))
        self.head = Head(shape, options.width, options.norm, tied=False, scale=options.logit_scale)

    def forward(
        self, tokens: Tensor, features: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        stream = through(self.blocks, self.embed(tokens, features), positions)
        return self.tap("logits", self.head.logits(stream, self.embed))
