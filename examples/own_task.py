"""A wind tunnel of your own: a biased coin, and what Bayes expects of its next throw.

python examples/own_task.py                                trains for a few steps
BWT_IMPORT=examples/own_task.py bwt train coin --steps 500    with everything of the command
"""

import tempfile
from dataclasses import dataclass

import torch

import bwt
from bwt.options import option
from bwt.tasks import Batch, Task


@bwt.tasks.register("coin")
@dataclass(frozen=True)
class Coin(Task):
    """Throws of a coin whose bias is uniform on [0, 1]; each asks for the next. Of n throws before,
    h of them heads, the exact answer is Laplace's rule: (h + 1) / (n + 2)."""

    length_option = "length"  # so that `bwt eval --length` and the lengths of geometry work
    length: int = option(16, "throws", minimum=2)  # an option is a flag of `bwt train`

    vocab_size, num_outcomes = 2, 2  # tails 0, heads 1: as tokens, and as outcomes

    @property
    def seq_len(self) -> int:
        return self.length - 1  # the last throw is asked for and not shown

    def positions_on(self, device):
        return torch.arange(self.seq_len, device=device)  # every position asks

    def draw(self, batch_size, generator, device) -> Batch:
        bias = torch.rand(batch_size, 1, generator=generator, device=device)
        uniform = torch.rand(batch_size, self.length, generator=generator, device=device)
        throws = (uniform < bias).long()
        positions = self.positions_on(device)
        return Batch(throws[:, :-1], None, positions, throws[:, 1:], posterior=None)

    def posterior(self, batch: Batch, *, check: bool = True) -> torch.Tensor:
        seen = self.positions_on(batch.tokens.device) + 1
        heads = (batch.tokens.cumsum(1) + 1) / (seen + 2)
        return torch.stack((1 - heads, heads), -1)


if __name__ == "__main__":
    config = bwt.train.TrainConfig("coin", steps=300, model_options={"positions": "none"})
    with tempfile.TemporaryDirectory() as folder:
        evaluation = bwt.train.train(config, f"{folder}/run").evaluation
    kl, floor = evaluation.model.overall["kl"].mean, evaluation.floors["constant"]
    print(f"{kl:.4f} bits from Bayes; who ignores the throws is {floor.overall['kl'].mean:.4f} off")
