"""Models whose inside is known, to test what is said about them."""

import torch
from torch import Tensor, nn

from bwt import models
from bwt.taps import Tapped
from bwt.tasks import Batch, Bijection

TASK = Bijection(num_symbols=6, replacement=False)


class Seen(nn.Module):
    """[B, T, 1 + 2V]: the position, the values seen so far, and the same again, scaled."""

    def __init__(self, num_symbols: int):
        super().__init__()
        self.num_symbols = num_symbols

    def forward(self, tokens: Tensor, features: Tensor | None = None) -> Tensor:
        V = self.num_symbols
        shown = nn.functional.one_hot(tokens, 2 * V)[..., V:].cumsum(1).float()
        time = torch.arange(tokens.shape[1]).float().expand(tokens.shape)
        return torch.cat((time[..., None], shown, 0.1 * shown), -1)


class SeenAndTokens(Seen):
    """The same, and the token."""

    def forward(self, tokens: Tensor, features: Tensor | None = None) -> Tensor:
        return torch.cat((super().forward(tokens, features), tokens[..., None].float()), -1)


class Planted(Tapped):
    """Exact Bayes for a bijection whose keys do not repeat. The head reads the values seen so far;
    the position and the copy are there, and unused. `blind`: nothing is used."""

    def __init__(self, *, blind: bool = False):
        super().__init__()
        self.blind = blind
        self.embed = Seen(TASK.num_symbols)
        self.blocks = nn.ModuleList([nn.Identity()])
        self.head = nn.Module()
        self.head.norm = nn.Identity()

    def forward(self, tokens: Tensor, features=None, positions=None) -> Tensor:
        x = self.head.norm(self.blocks[0](self.embed(tokens, features)))
        logits = -30.0 * x[..., 1 : 1 + TASK.num_symbols]
        logits = torch.zeros_like(logits) if self.blind else logits
        return logits if positions is None else logits[:, positions]


class Exact(nn.Module):
    """[B, T, O]: the exact posteriors of a task without a header, 0 where nothing is asked."""

    def __init__(self, task):
        super().__init__()
        self.task = task

    def forward(self, tokens: Tensor, features: Tensor | None = None) -> Tensor:
        at = self.task.positions
        targets = torch.zeros(len(tokens), len(at), dtype=torch.int64)
        states = torch.zeros(len(tokens), tokens.shape[1], self.task.num_outcomes)
        states[:, at] = self.task.posterior(Batch(tokens, None, at, targets, None))
        return states


class Knowing(Tapped):
    """States that are the exact posteriors, from the input on."""

    def __init__(self, task):
        super().__init__()
        self.embed = Exact(task)
        self.blocks = nn.ModuleList([nn.Identity()])

    def forward(self, tokens: Tensor, features=None, positions=None) -> Tensor:
        return self.blocks[0](self.embed(tokens, features)).clamp_min(1e-30).log()


class Believing(nn.Module):
    """States that are the exact posteriors of a task (`probabilities`), their logarithms (`log`),
    or `random`, and predictions made of them as they should be; `nothing`: always the same."""

    def __init__(self, task, kind: str):
        super().__init__()
        self.task, self.kind = task, kind
        self.head = nn.Module()
        self.head.norm = nn.Identity()

    def forward(self, tokens: Tensor, features=None, positions=None) -> Tensor:
        at, task = self.task.positions, self.task
        exact = task.posterior(Batch(tokens, features, at, None, None))
        if self.kind == "random":
            exact = torch.randn(exact.shape).softmax(-1)
        states = torch.full((len(tokens), task.seq_len, task.num_outcomes), 0.5)
        logarithm = exact.clamp_min(1e-30).log()
        states[:, at] = exact if self.kind == "probabilities" else logarithm
        states = self.head.norm(states)
        if self.kind == "nothing":
            return torch.zeros_like(states)
        return states.clamp_min(1e-30).log() if self.kind == "probabilities" else states


class Maps(Tapped):
    """Attention on its way: a share `way` of where it began, the rest of where it ends, and noise
    on its logits. They depend on the query's position and the token looked at."""

    taps = ("weights",)

    def __init__(self, way: float, noise: float = 0.0, seed: int = 0):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        shape = 2, 2 * TASK.num_symbols, 2 * TASK.num_symbols  # heads, queries, tokens
        self.ends = [torch.randn(shape, generator=generator) for _ in range(2)]
        tremor = torch.Generator().manual_seed(1 + seed)
        self.noise = noise * torch.randn(shape, generator=tremor)
        self.way = way

    def forward(self, tokens: Tensor) -> Tensor:
        start, end = (self._weights(x + self.noise, tokens) for x in self.ends)
        return self.tap("weights", torch.lerp(end, start, self.way))

    def _weights(self, logits: Tensor, tokens: Tensor) -> Tensor:
        time = tokens.shape[1]
        seen = logits[:, :time][:, :, tokens].permute(2, 0, 1, 3)  # [B, H, T, T]
        hidden = torch.ones(time, time, dtype=torch.bool).triu(1)
        return seen.masked_fill(hidden, -torch.inf).softmax(-1)


class Keyed(Maps):
    """Maps with keys that can be changed; `intact` says whether they were, in its last call."""

    taps = ("weights", "k")

    def forward(self, tokens: Tensor) -> Tensor:
        B, T = tokens.shape
        keys = torch.arange(T, dtype=torch.float32).expand(B, 2, T)[..., None]  # [B, H, T, 1]
        self.intact = bool((self.tap("k", keys) == keys).all())
        return super().forward(tokens)


class Looking(nn.Module):
    """A block that looks and makes nothing of it; if it is `used`, all is lost with its keys."""

    def __init__(self, maps: Maps, used: bool):
        super().__init__()
        self.attn, self.used = maps, used

    def forward(self, x: Tensor) -> Tensor:
        self.attn(x[..., -1].long())
        return x * 0 if self.used and not self.attn.intact else x


class Staged(Tapped):
    """A checkpoint of which attention and precision are set apart from each other: a share `error`
    of the prediction is uniform, the rest exact Bayes. A block for each of the maps, of which one
    may be used."""

    def __init__(self, *maps: Maps, error: float, used: int | None = None):
        super().__init__()
        self.embed = SeenAndTokens(TASK.num_symbols)
        self.blocks = nn.ModuleList(Looking(x, used=i == used) for i, x in enumerate(maps))
        self.error = error

    def forward(self, tokens: Tensor, features=None, positions=None) -> Tensor:
        x = self.embed(tokens, features)
        for block in self.blocks:
            x = block(x)
        possible = 1.0 - x[..., 1 : 1 + TASK.num_symbols].double()
        exact = possible / possible.sum(-1, keepdim=True).clamp_min(1)
        mixed = torch.lerp(exact, torch.full_like(exact, 1 / TASK.num_symbols), self.error)
        # What another has made of the states may be shorter: the questions alone.
        whole = positions is None or len(positions) == mixed.shape[1]
        return mixed.log() if whole else mixed.log()[:, positions]


def transformer(task=TASK, **options):
    """With a head that is not zero, as it would be before training."""
    options = {
        "layers": 1,
        "heads": 2,
        "width": 32,
        "norm": "layer",
        "positions": "none",
        **options,
    }
    model = models.build_for(task, "transformer", **options).eval()
    nn.init.normal_(model.head.weight, std=0.3)
    return model
