"""A model of your own: GRU layers, each added to a residual stream.

python examples/own_model.py                                trains for a few steps
BWT_IMPORT=examples/own_model.py bwt train hmm --model gru  with everything of the command
"""

import tempfile
from dataclasses import dataclass

from torch import nn

import bwt
from bwt.models.parts import Embedding, Head, at
from bwt.options import option


@dataclass(frozen=True)
class Options:
    layers: int = option(2, "GRU layers", minimum=1)  # an option is a flag of `bwt train`
    width: int = option(48, "of the residual stream", minimum=1)


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.gru = nn.GRU(width, width, batch_first=True)

    def forward(self, x):  # [B, T, C]
        return x + self.gru(x)[0]


@bwt.models.register("gru")
class GRU(bwt.models.Model):
    """With modules named embed, blocks and head all that geometry does with states works."""

    options_class = Options
    taps = ("logits",)  # for bwt.capture and bwt.patch

    def __init__(self, shape: bwt.models.Shape, options: Options):
        super().__init__()
        self.embed = Embedding(shape, options.width, positions=False)
        self.blocks = nn.ModuleList(Block(options.width) for _ in range(options.layers))
        self.head = Head(shape, options.width, "rms", tied=False, scale=1.0)

    def forward(self, tokens, features=None, positions=None):
        x = self.embed(tokens, features)
        for block in self.blocks:
            x = block(x)
        return self.tap("logits", self.head(at(x, positions), self.embed))


if __name__ == "__main__":
    task = {"num_states": 2, "num_symbols": 2, "length": 8}
    config = bwt.train.TrainConfig("hmm", "gru", task, steps=300, lr=3e-3)
    with tempfile.TemporaryDirectory() as folder:
        evaluation = bwt.train.train(config, f"{folder}/run").evaluation
    kl, floor = evaluation.model.overall["kl"].mean, evaluation.floors["constant"]
    print(f"{kl:.4f} bits from Bayes; who ignores its input is {floor.overall['kl'].mean:.4f} off")
