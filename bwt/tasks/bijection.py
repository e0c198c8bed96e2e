"""Bijection elimination: a hidden permutation is revealed pair by pair."""

import dataclasses
import math
from typing import ClassVar

import torch
from torch import Tensor

from bwt import ops
from bwt.ops.bijection_posterior import MAX_NOISY_SYMBOLS
from bwt.options import option
from bwt.tasks._base import Addresses, Batch, Task, memorisation, shuffled, uniform

# The floor `latest` is a posterior over subsets for each question; the task has one for a sequence.
MAX_LATEST_SYMBOLS = 10


@dataclasses.dataclass(frozen=True)
class Bijection(Task):
    """Tokens x1 y1 x2 y2 ... xK of a uniformly drawn bijection pi; keys are 0..V-1, values V..2V-1.

    At x_t the value pi(x_t) is asked for, given the pairs before. With noise, a shown y_t is wrong
    with probability `noise` (then uniform over the other values); the target stays the true value
    pi(x_t), which is a draw from the posterior, while the token that follows is the noisy one.
    """

    name: ClassVar[str] = "bijection"
    length_option: ClassVar[str] = "num_pairs"
    meanings: ClassVar[dict[str, str]] = {
        "self": "the key that is asked about",
        "matching": "earlier appearances of this key, with their values",
        "evidence": "values of other keys: each rules one value out",
        "irrelevant": "other keys: they carry no information by themselves",
    }

    num_symbols: int = option(20, "size V of the permuted set", minimum=2, maximum=4096)
    # Given as None it follows from num_symbols: once made, a task has a number.
    num_pairs: int = option(None, "pairs in a sequence (default: num_symbols - 1)", minimum=1)
    # As the paper does: its MLP has the loss of a uniform guess on that task, and the checkpoint
    # behind its transformer's figure is named after it.
    replacement: bool = option(True, "draw keys with replacement, so that they repeat")
    noise: float = option(0.0, "probability that a shown value is wrong", minimum=0, maximum=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_pairs is None:
            object.__setattr__(self, "num_pairs", self.num_symbols - 1)
        if self.num_pairs > self.num_symbols and not self.replacement:
            self._fail(
                f"{self.num_pairs} pairs need as many distinct keys and num_symbols is "
                f"{self.num_symbols}; use fewer pairs or replacement"
            )
        if self.noise > 0 and self.num_symbols > MAX_NOISY_SYMBOLS:
            self._fail(
                f"with noise num_symbols must be at most {MAX_NOISY_SYMBOLS} (the exact posterior "
                f"sums over subsets), got {self.num_symbols}"
            )

    @property
    def vocab_size(self) -> int:
        return 2 * self.num_symbols

    @property
    def num_outcomes(self) -> int:
        return self.num_symbols

    @property
    def seq_len(self) -> int:
        return 2 * self.num_pairs - 1

    def positions_on(self, device: torch.device | str) -> Tensor:
        return torch.arange(0, self.seq_len, 2, device=device)

    @property
    def hypothesis_bits(self) -> float:
        return math.lgamma(self.num_symbols + 1) / math.log(2)

    def describe(self) -> str:
        return (
            f"Each sequence draws one of {self.num_symbols}! = 2^{self.hypothesis_bits:.1f} "
            f"bijections of {self.num_symbols} symbols. "
            f"{memorisation(self.hypothesis_bits, 'bijection')}."
        )

    def groups(self, batch: Batch, time: Tensor) -> dict[str, Tensor]:
        keys = batch.tokens[:, time - time % 2]  # of the pair a position belongs to
        matching = batch.tokens[:, batch.positions, None] == keys[:, None, :]  # [B, P, T]
        return {
            **super().groups(batch, time),
            "matching": matching & (time < batch.positions[:, None]),
            "evidence": time % 2 == 1,
        }

    def spelled(self, batch: Batch) -> list[list[str]]:
        """Keys as x3, values as y7."""
        V = self.num_symbols
        return [
            [f"x{token}" if token < V else f"y{token - V}" for token in row]
            for row in batch.tokens.tolist()
        ]

    @property
    def pairs(self) -> tuple[Tensor, Tensor]:
        values = torch.arange(1, self.seq_len, 2)
        return values, values - 1

    @property
    def addresses(self) -> tuple[Addresses, ...]:
        """Looking up happens at value tokens: they can know key and value of their pair, by a token
        shift or from the head before, and are named by the key."""
        key, why = self.positions, "a key that appears again has to find the value it had before"
        if not self.replacement:
            why = "none appears twice, so that there is nothing to look up"
        return (
            Addresses("value tokens", key[:-1] + 1, key[:-1], self.replacement, why),
            Addresses("key tokens", key, key, self.replacement, why),
        )

    def draw(self, batch_size: int, generator: torch.Generator, device: torch.device) -> Batch:
        V, K = self.num_symbols, self.num_pairs
        if self.replacement:
            keys = torch.randint(V, (batch_size, K), generator=generator, device=device)
            targets = shuffled(batch_size, V, generator, device).gather(1, keys)
        else:
            # Distinct keys of a random bijection have distinct random values: no lookup is needed.
            keys, targets = shuffled(2 * batch_size, V, generator, device)[:, :K].chunk(2)
        shown = self._through_channel(targets, generator)
        tokens = torch.stack((keys, shown + V), -1).view(batch_size, 2 * K)[:, :-1]
        return Batch(tokens, None, self.positions_on(device), targets, None)

    def _through_channel(self, values: Tensor, generator: torch.Generator) -> Tensor:
        if self.noise == 0:
            return values
        V, device = self.num_symbols, values.device
        wrong = uniform(*values.shape, generator=generator, device=device) < self.noise
        other = torch.randint(1, V, values.shape, generator=generator, device=device)
        return torch.where(wrong, (values + other) % V, values)

    def channel(self, device: torch.device | str = "cpu") -> Tensor | None:
        """[V, V] p(shown | true), or None without noise."""
        if self.noise == 0:
            return None
        V = self.num_symbols
        channel = torch.full((V, V), self.noise / (V - 1), device=device)
        return channel.fill_diagonal_(1 - self.noise)

    def _pairs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Keys and shown values [B, K]; the last value is not shown and enters no row."""
        shown = batch.tokens[:, 1::2] - self.num_symbols
        return batch.tokens[:, 0::2], torch.cat((shown, batch.targets[:, -1:]), 1)

    def posterior(self, batch: Batch, *, check: bool = True) -> Tensor:
        keys, shown = self._pairs(batch)
        channel = self.channel(keys.device)
        return ops.bijection_posterior(
            keys, shown, self.num_symbols, channel=channel, check=check
        ).posterior.float()

    def floors(self, batch: Batch) -> dict[str, Tensor]:
        """Only repeated keys tell more than a uniform guess to one that lacks an ability:
        `lookup` recalls what a key was shown with and does not eliminate the values of others;
        `unbound` knows which keys and values were seen, not which belong together; `latest`, where
        showings may be wrong, is exact but for one thing: it keeps the last one of each key, and
        adds nothing up."""
        if not self.replacement:
            return {}
        keys, shown = self._pairs(batch)
        floors = {"lookup": self._lookup(keys, shown)}
        if self.noise == 0:
            return {"unbound": self._unbound(keys, shown)} | floors
        if self.num_symbols <= MAX_LATEST_SYMBOLS:
            floors["latest"] = self._latest(keys, shown)
        return floors

    def expected_entropy(self) -> float | None:
        if self.noise > 0:
            return None
        V, K = self.num_symbols, self.num_pairs
        left = torch.arange(
            V, 0, -1, dtype=torch.float64
        )  # values that are not seen, of V - 1 to 0
        if not self.replacement:
            return float(left[:K].log2().mean())
        new = left / V  # probability that the next key is new, by number of keys seen
        seen = torch.zeros(V, dtype=torch.float64)
        seen[0], total = 1.0, 0.0
        for _ in range(K):
            total += float((seen * new * left.log2()).sum())
            arrived = (seen * new)[:-1]
            seen = seen * (1 - new)
            seen[1:] += arrived
        return total / K

    def _lookup(self, keys: Tensor, shown: Tensor) -> Tensor:
        channel = self.channel(keys.device)
        likelihood = torch.eye(self.num_symbols, device=keys.device) if channel is None else channel
        log_likelihood = likelihood.t().log()[shown]  # [B, K, V]
        earlier = (keys[:, :, None] == keys[:, None, :]).tril(-1)[..., None]  # [B, K, K, 1]
        return torch.where(earlier, log_likelihood[:, None], 0.0).sum(2).softmax(-1)

    def _latest(self, keys: Tensor, shown: Tensor) -> Tensor:
        """Each question is a sequence of its own: the showings that count, then the question."""
        B, K = keys.shape
        time = torch.arange(K, device=keys.device)
        again = (keys[:, :, None] == keys[:, None, :]).triu(1)  # [B, K, K]
        replaced = torch.where(again.any(-1), again.byte().argmax(-1), K)  # [B, K], by which one
        asked = time[:, None]
        counts = (time < asked) & (asked <= replaced[:, None])  # [B, asked, K]
        order = counts.byte().argsort(stable=True, dim=-1, descending=True)
        number = counts.sum(-1, keepdim=True)  # [B, asked, 1]
        kept = keys[:, None].expand(B, K, K).gather(2, order).scatter(2, number, keys[..., None])
        values = shown[:, None].expand(B, K, K).gather(2, order)
        length = min(K, self.num_symbols + 1)  # no key counts twice
        posterior = ops.bijection_posterior(
            kept[..., :length].flatten(0, 1),
            values[..., :length].flatten(0, 1),
            self.num_symbols,
            channel=self.channel(keys.device),
        ).posterior
        row = number.flatten()[:, None, None].expand(-1, 1, self.num_symbols)
        return posterior.gather(1, row).view(B, K, self.num_symbols).float()

    def _unbound(self, keys: Tensor, shown: Tensor) -> Tensor:
        known = (keys[:, :, None] == keys[:, None, :]).tril(-1).any(-1, keepdim=True)
        shown_here = torch.nn.functional.one_hot(shown, self.num_symbols)
        seen = shown_here.cumsum(1) - shown_here > 0  # [B, K, V], before this step
        possible = (seen == known).float()
        return possible / possible.sum(-1, keepdim=True)
