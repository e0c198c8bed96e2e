"""A stack of LSTM layers."""

import warnings
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from bwt.models.parts import Embedding, Head, Shape, at, watched
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


# On a GPU cuDNN wants the weights of an LSTM in a chunk of its own, and copies them there if they
# lie among others, as they do in training.
warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")

State = tuple[Tensor, Tensor]  # h, c [B, width] each


class Layer(nn.Module):
    """One layer of a stack, which has the weights: [B, T, inputs] -> [B, T, width]."""

    residual = False  # its output takes the place of its input

    def __init__(self, stack: nn.LSTM, index: int):
        super().__init__()
        # In a tuple it is no submodule: its weights are listed, and saved, once.
        self.stack, self.index = (stack,), index

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x, self.rest(len(x), x))[0]

    def run(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """From a state on; also the state in the end."""
        stack = self.stack[0]
        first, weights = tuple(s[None] for s in state), tuple(stack.all_weights[self.index])
        y, h, c = torch._VF.lstm(x, first, weights, True, 1, 0.0, stack.training, False, True)
        return y, (h[0], c[0])

    def rest(self, batch_size: int, like: Tensor) -> State:
        """The state before anything is read."""
        zeros = like.new_zeros(batch_size, self.stack[0].hidden_size)
        return zeros, zeros


class Model(Base):
    """The stack runs as a whole; layer by layer only if somebody looks into one or changes it."""

    options_class = Options
    taps = ("hidden", "logits")  # [B, T, width] of the last layer; [B, P, O]

    def __init__(self, shape: Shape, options: Options):
        super().__init__()
        size = options.second_size
        self.embed = Embedding(shape, size, positions=False)
        self.lstm = nn.LSTM(size, options.width, options.layers, batch_first=True)
        self.blocks = nn.ModuleList(Layer(self.lstm, i) for i in range(options.layers))
        self.head = Head(shape, options.width, options.norm, tied=False, scale=options.logit_scale)

    def forward(
        self, tokens: Tensor, features: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        x = self.embed(tokens, features)
        if watched(*self.blocks):
            for layer in self.blocks:
                x = layer(x)
        else:
            x, _ = self.lstm(x)
        x = at(self.tap("hidden", x), positions)
        return self.tap("logits", self.head(x, self.embed))
