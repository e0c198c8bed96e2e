"""A stack of LSTM layers."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from bwt.models.parts import Embedding, Head, Shape, at
from bwt.models.parts import Model as Base
from bwt.options import check_options, option


@dataclass(frozen=True)
class Options:
    layers: int = option(1, "LSTM layers", minimum=1)
    width: int = option(64, "hidden units of each layer", minimum=1)
    embed: int = option(0, "width of the input embedding; 0: width")
    norm: str = option("rms", "in front of the head", ("rms", "layer"))
    logit_scale: float = option(1.0, "factor on the logits")

    SECOND_SIZE: ClassVar[str] = "embed"
    width_step: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def second_size(self) -> int:
        return self.embed or self.width


class Model(Base):
    taps = ("hidden", "logits")  # [B, T, width] of the last layer; [B, P, O]

    def __init__(self, shape: Shape, options: Options):
        super().__init__()
        size = options.second_size
        self.embed = Embedding(shape, size, positions=False)
        self.lstm = nn.LSTM(size, options.width, options.layers, batch_first=True)
        self.head = Head(shape, options.width, options.norm, tied=False, scale=options.logit_scale)

    def forward(
        self, tokens: Tensor, features: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        hidden, _ = self.lstm(self.embed(tokens, features))
        x = at(self.tap("hidden", hidden), positions)
        return self.tap("logits", self.head(x, self.embed))
