"""Residual MLPs, of two kinds, because it matters what they may see.

`position` sees the token at its own position only. `prefix` sees all positions up to its own,
flattened, with zeros for those to come: its first layer is sum_{s <= t} W_s e_s, a running sum.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from bwt.models.parts import (
    MLP,
    NORMS,
    Embedding,
    Head,
    Residual,
    Shape,
    at,
    depth_gain,
    through,
)
from bwt.models.parts import Model as Base
from bwt.options import check_options, option


@dataclass(frozen=True)
class Options:
    layers: int = option(2, "residual blocks", minimum=1)
    width: int = option(64, "of the residual stream", minimum=1)
    hidden: int = option(0, "units of each block; 0: 4 x width")
    context: str = option(
        "prefix",
        "what a position sees: its own token, or the flattened prefix",
        ("position", "prefix"),
    )
    norm: str = option("rms", "rms has a gain; layer has none and is cheaper", ("rms", "layer"))
    logit_scale: float = option(1.0, "factor on the logits")

    SECOND_SIZE: ClassVar[str] = "hidden"
    width_step: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def second_size(self) -> int:
        return self.hidden or 4 * self.width


class Block(nn.Module):
    def __init__(self, options: Options):
        super().__init__()
        self.norm = NORMS[options.norm](options.width)
        self.mlp = MLP(options.width, options.second_size, depth_gain(options.layers))

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        return self.extend(Residual(x), positions).total()

    def extend(self, stream: Residual, positions: Tensor | None = None) -> Residual:
        if positions is not None:
            stream = Residual(at(stream.total(), positions))
        x, y = stream.normed(self.norm)
        return self.mlp.added_to(x, y)


class Prefix(nn.Module):
    """e [B, T, C] -> sum over s <= t of W_s e_s."""

    def __init__(self, seq_len: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(seq_len, width, width) * (width * seq_len) ** -0.5)

    def forward(self, e: Tensor) -> Tensor:
        time = e.shape[1]
        if time > len(self.weight):
            raise ValueError(
                f"this MLP has weights for {len(self.weight)} positions and cannot read {time}"
            )
        terms = torch.bmm(e.transpose(0, 1), self.weight[:time])  # [T, B, C]
        return terms.cumsum(0).transpose(0, 1)


class Model(Base):
    options_class = Options
    taps = ("logits",)

    def __init__(self, shape: Shape, options: Options):
        super().__init__()
        width = options.width
        self.embed = Embedding(shape, width, positions=True)
        self.prefix = Prefix(shape.seq_len, width) if options.context == "prefix" else None
        self.blocks = nn.ModuleList(Block(options) for _ in range(options.layers))
        self.head = Head(shape, width, options.norm, tied=False, scale=options.logit_scale)

    def forward(
        self, tokens: Tensor, features: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        x = self.embed(tokens, features)
        if self.prefix is not None:
            x = x + self.prefix(x)
        stream = through(self.blocks, at(x, positions))
        return self.tap("logits", self.head.logits(stream, self.embed))
