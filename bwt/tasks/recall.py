"""Associative recall: stored pairs, some filler, then questions."""

import dataclasses
import math
from typing import ClassVar

import torch
from torch import Tensor

from bwt.options import option
from bwt.tasks._base import Addresses, Batch, Task, memorisation, shuffled, uniform

PAD, STORE, FILLER, QUERY, SEPARATOR = range(5)
NUM_SPECIALS = 5
PAIR_LEN, QUERY_LEN = 4, 3


@dataclasses.dataclass(frozen=True)
class Recall(Task):
    """num_pairs times `STORE key SEPARATOR value`, filler, then for each question
    `QUERY key PAD` with half as much filler between; the value is asked for at PAD.

    Keys and values are drawn without replacement from disjoint vocabularies (specials 0..4, then
    keys, then values); questions are about distinct stored keys, so the posterior is one-hot. With
    probability `unseen` a question is about a key that was not stored: as keys have distinct
    values, its posterior is uniform over the values that were not stored.

    The paper's code has 64 pairs, 256 keys, 256 values, 3 queries and filler 32.
    """

    name: ClassVar[str] = "recall"
    length_option: ClassVar[str] = "num_pairs"
    meanings: ClassVar[dict[str, str]] = {
        "self": "the question",
        "matching": "the stored pair that is asked about",
        "other": "the other stored pairs",
        "irrelevant": "filler and other questions",
    }

    num_pairs: int = option(16, "stored pairs", minimum=1)
    num_keys: int = option(64, "size of the vocabulary of keys", minimum=1)
    num_values: int = option(64, "size of the vocabulary of values", minimum=2)
    num_queries: int = option(4, "questions in a sequence", minimum=1)
    filler: int = option(8, "filler tokens before the questions; half as many between", minimum=0)
    unseen: float = option(
        0.0, "probability that a question is about a key not stored", minimum=0, maximum=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_queries > self.num_pairs:
            self._fail(
                f"num_queries must be at most num_pairs={self.num_pairs} (questions are about "
                f"distinct stored keys), got {self.num_queries}"
            )
        for kind in ("num_keys", "num_values"):
            if getattr(self, kind) < self._num_drawn:
                extra = " plus num_queries (unseen > 0)" if self.unseen > 0 else ""
                self._fail(
                    f"{kind} must be at least num_pairs{extra} = {self._num_drawn}, "
                    f"got {getattr(self, kind)}"
                )

    @property
    def _num_drawn(self) -> int:
        return self.num_pairs + (self.num_queries if self.unseen > 0 else 0)

    @property
    def vocab_size(self) -> int:
        return NUM_SPECIALS + self.num_keys + self.num_values

    @property
    def num_outcomes(self) -> int:
        return self.num_values

    @property
    def _first_query(self) -> int:
        return PAIR_LEN * self.num_pairs + self.filler

    @property
    def _query_stride(self) -> int:
        return QUERY_LEN + self.filler // 2

    @property
    def seq_len(self) -> int:
        return self._first_query + self._query_stride * (self.num_queries - 1) + QUERY_LEN

    def positions_on(self, device: torch.device | str) -> Tensor:
        return torch.arange(self._first_query + 2, self.seq_len, self._query_stride, device=device)

    @property
    def hypothesis_bits(self) -> float:
        """Sets of num_pairs pairs with distinct keys and values."""
        N = self.num_pairs
        return math.log2(math.comb(self.num_keys, N)) + math.log2(math.perm(self.num_values, N))

    def describe(self) -> str:
        return (
            f"Each sequence stores one of 2^{self.hypothesis_bits:.1f} sets of {self.num_pairs} "
            f"pairs out of {self.num_keys} keys and {self.num_values} values. "
            f"{memorisation(self.hypothesis_bits, 'set')}."
        )

    def groups(self, batch: Batch, time: Tensor) -> dict[str, Tensor]:
        stored = time < PAIR_LEN * self.num_pairs
        key_at = (time // PAIR_LEN * PAIR_LEN + 1).clamp_max(self.seq_len - 1)
        asked = self.shown(batch)[..., None]
        back = batch.positions[:, None] - time
        return {
            "self": (back >= 0) & (back < QUERY_LEN),
            "matching": (batch.tokens[:, None, key_at] == asked) & stored,
            "other": stored,
        }

    @property
    def addresses(self) -> tuple[Addresses, ...]:
        """A stored pair is one address, named by its key. Only its value can answer."""
        key = torch.arange(1, PAIR_LEN * self.num_pairs, PAIR_LEN)
        why = "a question is answered by the one pair that has its key"
        return tuple(
            Addresses(name, key + behind, key, True, why)
            for name, behind in (("stored values", 2), ("separators", 1), ("stored keys", 0))
        )

    @property
    def pairs(self) -> tuple[Tensor, Tensor]:
        keys = torch.arange(1, PAIR_LEN * self.num_pairs, PAIR_LEN)
        return keys + 2, keys

    def shown(self, batch: Batch) -> Tensor:
        """The keys of the questions."""
        return batch.tokens[:, batch.positions - 1]

    def draw(self, batch_size: int, generator: torch.Generator, device: torch.device) -> Batch:
        N, Q = self.num_pairs, self.num_queries
        keys = shuffled(batch_size, self.num_keys, generator, device)[:, : self._num_drawn]
        values = shuffled(batch_size, self.num_values, generator, device)[:, : self._num_drawn]
        asked = shuffled(batch_size, N, generator, device)[:, :Q]
        if self.unseen > 0:
            unseen = uniform(batch_size, Q, generator=generator, device=device) < self.unseen
            asked = torch.where(unseen, torch.arange(N, N + Q, device=device), asked)
        tokens = torch.full((batch_size, self.seq_len), FILLER, device=device)
        # By fill_: of a number that is assigned, torch makes a tensor on the host first.
        tokens[:, 0 : PAIR_LEN * N : PAIR_LEN].fill_(STORE)
        tokens[:, 1 : PAIR_LEN * N : PAIR_LEN] = keys[:, :N] + NUM_SPECIALS
        tokens[:, 2 : PAIR_LEN * N : PAIR_LEN].fill_(SEPARATOR)
        tokens[:, 3 : PAIR_LEN * N : PAIR_LEN] = values[:, :N] + NUM_SPECIALS + self.num_keys
        first, stride = self._first_query, self._query_stride
        tokens[:, first::stride].fill_(QUERY)
        tokens[:, first + 1 :: stride] = keys.gather(1, asked) + NUM_SPECIALS
        tokens[:, first + 2 :: stride].fill_(PAD)
        return Batch(tokens, None, self.positions_on(device), values.gather(1, asked), None)

    def _read(self, batch: Batch, check: bool) -> tuple[Tensor, Tensor]:
        """Which stored pair a question is about [B, Q, N] and the stored values one-hot
        [B, N, num_values]."""
        stored = batch.tokens[:, : PAIR_LEN * self.num_pairs]
        keys, values = stored[:, 1::PAIR_LEN], stored[:, 3::PAIR_LEN]
        asked = self.shown(batch)
        values = values - NUM_SPECIALS - self.num_keys
        if check and bool(((values < 0) | (values >= self.num_values)).any()):
            self._fail("the batch has other tokens than values where values are stored")
        every = torch.arange(self.num_values, device=values.device)
        one_hot = (values[..., None] == every).float()
        return (asked[:, :, None] == keys[:, None, :]).float(), one_hot

    def posterior(self, batch: Batch, *, check: bool = True) -> Tensor:
        match, values = self._read(batch, check)
        return self._or_not_stored(match, values, match @ values)

    def expected_entropy(self) -> float:
        """Only a key that is not stored leaves a choice: among the values that are not stored."""
        return self.unseen * math.log2(max(1, self.num_values - self.num_pairs))

    def floors(self, batch: Batch) -> dict[str, Tensor]:
        """`unbound` knows which keys and values were stored, not which belong together."""
        match, values = self._read(batch, check=True)
        stored = values.mean(1, keepdim=True).expand(-1, self.num_queries, -1)
        return {"unbound": self._or_not_stored(match, values, stored)}

    def _or_not_stored(self, match: Tensor, values: Tensor, if_stored: Tensor) -> Tensor:
        absent = 1 - values.sum(1, keepdim=True)  # [B, 1, num_values]
        if_not = absent / absent.sum(-1, keepdim=True).clamp_min(1)
        return torch.where(match.any(-1, keepdim=True), if_stored, if_not)
