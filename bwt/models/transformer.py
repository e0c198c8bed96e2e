"""A pre-norm transformer whose attention can be looked into at no cost to those who do not."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from bwt import ops
from bwt.models.parts import (
    MLP,
    NORMS,
    Embedding,
    Head,
    Residual,
    Shape,
    at,
    depth_gain,
    linear,
    shift_mix,
    shifted,
    through,
)
from bwt.models.parts import Model as Base
from bwt.models.projections import PROJECTIONS
from bwt.options import check_options, option
from bwt.taps import Tapped


@dataclass(frozen=True)
class Options:
    layers: int = option(2, "blocks", minimum=1)
    heads: int = option(2, "attention heads in each block", minimum=1)
    width: int = option(64, "of the residual stream, a multiple of heads", minimum=1)
    hidden: int = option(0, "units of each MLP; 0: 4 x width")
    mlp: str = option(
        "all",
        "which blocks have an MLP: all, none (attention only), the last (at the readout); frozen: "
        "all have one that keeps its random weights",
        ("all", "none", "last", "frozen"),
    )
    norm: str = option("rms", "rms has a gain; layer has none and is cheaper", ("rms", "layer"))
    positions: str = option(
        "learned", "how positions are told apart", ("learned", "rotary", "none")
    )
    position_table: int = option(
        0,
        "learned positions: size of the table, if more than the task has tokens (0: as many), so "
        "that longer sequences can be read, with rows that were never trained",
    )
    token_shift: str = option(
        "none",
        "let each position see those just before it without attention: in the embedding, or in "
        "front of each block's attention",
        ("none", "input", "block"),
    )
    shift_span: int = option(1, "how many positions back a token shift reaches", minimum=1)
    keys: str = option(
        "learned",
        "of attention; collapsed: all alike, so that it looks everywhere alike; orthogonal: by a "
        "fixed random projection with orthonormal rows",
        ("learned", "collapsed", "orthogonal"),
    )
    tied: bool = option(False, "share the head's weights with the token embedding")
    logit_scale: float = option(1.0, "factor on the logits")

    SECOND_SIZE: ClassVar[str] = "hidden"

    def __post_init__(self) -> None:
        check_options(self)
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if self.positions == "rotary" and self.width // self.heads % 2:
            raise ValueError("rotary positions need an even width of the heads")

    @property
    def width_step(self) -> int:
        return self.heads * (2 if self.positions == "rotary" else 1)

    @property
    def second_size(self) -> int:
        return self.hidden or 4 * self.width


class Rotary(nn.Module):
    """Turns pairs of channels by an angle proportional to the position."""

    def __init__(self, size: int):
        super().__init__()
        self.size = size
        self.turns: Tensor | None = None  # [T, 1, D / 2] complex, grown when needed

    def forward(self, x: Tensor) -> Tensor:  # [B, T, ..., D]
        time = x.shape[1]
        if self.turns is None or len(self.turns) < time or self.turns.device != x.device:
            speed = 10000.0 ** (-torch.arange(0, self.size, 2, device=x.device) / self.size)
            angles = torch.arange(time, device=x.device)[:, None] * speed
            self.turns = torch.polar(torch.ones_like(angles), angles)
        turns = self.turns[:time].view(time, *(1,) * (x.ndim - 3), -1)
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)


class Attention(Tapped):
    # q, k, v, out: [B, H, T, D]; weights [B, H, T, T]; entropy [B, H, T] in bits
    taps = ("q", "k", "v", "weights", "entropy", "out")
    reported = ("entropy",)

    def __init__(self, options: Options, gain: float):
        super().__init__()
        self.heads = options.heads
        self.size = options.width // options.heads
        self.rotary = Rotary(self.size) if options.positions == "rotary" else None
        self.qkv = PROJECTIONS[options.keys](options.width)
        self.proj = linear(options.width, options.width, bias=False, gain=gain)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """x [B, T, C] -> [B, T, C], or [B, P, C] at the positions."""
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # [B, T, 3, H, D]
        q, k, v = (y.transpose(1, 2) for y in qkv.unbind(2))
        if self.rotary is not None:
            q, k = (y.transpose(1, 2) for y in self.rotary(qkv[:, :, :2]).unbind(2))
        q, k, v = self.tap("q", q), self.tap("k", k), self.tap("v", v)
        attend = self.attend_as_changed if "weights" in self.changes else self.attend
        out = self.tap("out", attend(q, k, v))
        # The native kernel lays it out as [B, T, H, D]: merging the heads moves nothing.
        return self.proj(at(out.transpose(1, 2).flatten(2), positions))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        wanted = [name for name in ("weights", "entropy") if name in self.listeners]
        result = ops.attention(q, k, v, capture=wanted)
        for name in wanted:
            self.tap(name, getattr(result, name))
        return result.out

    def attend_as_changed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """By weights that somebody changes: the fused kernel has none to change."""
        weights = self.tap("weights", ops.attention(q, k, v, capture=("weights",)).weights)
        if "entropy" in self.listeners:
            self.tap("entropy", torch.special.entr(weights).sum(-1) / math.log(2))
        return weights @ v


class Block(Tapped):
    taps = ("mid",)  # the residual stream between attention and MLP

    def __init__(self, options: Options, last: bool):
        super().__init__()
        gain = depth_gain(2 * options.layers)
        self.norm_attn = NORMS[options.norm](options.width)
        self.attn = Attention(options, gain)
        self.norm_mlp: nn.Module | None = None
        self.mlp: MLP | None = None
        if options.mlp in ("all", "frozen") or (options.mlp == "last" and last):
            trained = options.mlp != "frozen"
            self.norm_mlp = NORMS[options.norm](options.width).requires_grad_(trained)
            self.mlp = MLP(options.width, options.second_size, gain).requires_grad_(trained)
        shift = options.token_shift == "block"
        self.mix = shift_mix(options.width, options.shift_span) if shift else None

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        return self.extend(Residual(x), positions).total()

    def extend(self, stream: Residual, positions: Tensor | None = None) -> Residual:
        x, y = stream.normed(self.norm_attn)
        if self.mix is not None:
            y = shifted(y, self.mix)
        stream = Residual(at(x, positions), self.attn(y, positions))
        norm, mlp = self.norm_mlp, self.mlp
        if norm is None or mlp is None:
            return Residual(self.tap("mid", stream.total()))
        if "mid" in self.changes:
            x, y = Residual(self.tap("mid", stream.total())).normed(norm)
        else:
            x, y = stream.normed(norm)
            self.tap("mid", x)
        return mlp.added_to(x, y)


class Model(Base):
    """Nothing after the last block's attention is computed at positions not asked for; what is
    captured there has P instead of T positions then."""

    options_class = Options
    taps = ("logits",)

    def __init__(self, shape: Shape, options: Options):
        super().__init__()
        self.embed = Embedding(
            shape,
            options.width,
            positions=options.positions == "learned",
            table=options.position_table,
            shift=options.shift_span if options.token_shift == "input" else 0,
        )
        self.blocks = nn.ModuleList(
            Block(options, last=i == options.layers - 1) for i in range(options.layers)
        )
        self.head = Head(
            shape, options.width, options.norm, tied=options.tied, scale=options.logit_scale
        )

    def forward(
        self, tokens: Tensor, features: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        stream = through(self.blocks, self.embed(tokens, features), positions)
        return self.tap("logits", self.head.logits(stream, self.embed))
