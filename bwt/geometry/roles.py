"""What the positions of a task mean to the one that is asked: where attention ought to go.

`roles(task, batch)` sorts the visible positions of every question into named groups
[B, P, T] (bool, disjoint, covering all visible ones); `addresses(task)` are the positions [n] whose
keys have to be told apart.
"""

import torch
from torch import Tensor

from bwt.tasks import HMM, Batch, Bijection, Recall, Task
from bwt.tasks.recall import PAIR_LEN

# What each group is, for a reader who does not know the layout.
MEANING = {
    "bijection": {
        "self": "the key that is asked about",
        "matching": "earlier appearances of this key, with their values",
        "evidence": "values of other keys: each rules one value out",
        "irrelevant": "other keys: they carry no information by themselves",
    },
    "hmm": {
        "self": "the current observation",
        "matching": "the header's emission probabilities of the observed symbol",
        "transition": "the header's transition probabilities",
        "previous": "the observation before",
        "older": "observations before that one",
        "irrelevant": "the rest of the header",
    },
    "recall": {
        "self": "the question",
        "matching": "the stored pair that is asked about",
        "other": "the other stored pairs",
        "irrelevant": "filler and other questions",
    },
}


def roles(task: Task, batch: Batch) -> dict[str, Tensor]:
    groups = {Bijection: _bijection, HMM: _hmm, Recall: _recall}[type(task)](task, batch)
    time = torch.arange(task.seq_len, device=batch.tokens.device)
    free = (time <= batch.positions[:, None]).expand(len(batch.tokens), -1, -1)  # [B, P, T]
    found = {}
    for name, mask in groups.items():
        found[name] = mask & free
        free = free & ~mask
    return {**found, "irrelevant": free}


def addresses(task: Task) -> Tensor:
    """Keys of a bijection, stored keys of recall, the header of an HMM."""
    if isinstance(task, Bijection):
        return task.positions
    if isinstance(task, Recall):
        return torch.arange(1, PAIR_LEN * task.num_pairs, PAIR_LEN)
    # With header="tokens" a mark stands before each observation.
    return torch.arange(int(task.positions[0]) - (task.header == "tokens"))


def _same(batch: Batch, time: Tensor) -> Tensor:
    return (time == batch.positions[:, None]).expand(len(batch.tokens), -1, -1)


def _bijection(task: Bijection, batch: Batch) -> dict[str, Tensor]:
    tokens, time = batch.tokens, torch.arange(task.seq_len, device=batch.tokens.device)
    keys = tokens[:, time - time % 2]  # of the pair a position belongs to
    matching = tokens[:, batch.positions, None] == keys[:, None, :]  # [B, P, T]
    return {
        "self": _same(batch, time),
        "matching": matching & (time < batch.positions[:, None]),
        "evidence": (time % 2 == 1).expand_as(matching),
    }


def _hmm(task: HMM, batch: Batch) -> dict[str, Tensor]:
    observations = task.parameters(batch)[0]  # [B, P]
    S, V, first = task.num_states, task.num_symbols, int(task.positions[0])
    time = torch.arange(task.seq_len, device=batch.tokens.device)
    if task.header == "rows":
        transition, symbol = time < S, torch.where((time >= S) & (time < S + V), time - S, -1)
        stride = 1
    else:
        start = 2 + S * S
        transition = (time >= 1) & (time <= S * S)
        inside = (time >= start) & (time < start + S * V)
        symbol, stride = torch.where(inside, (time - start) % V, -1), 2
    back = batch.positions[:, None] - time  # [P, T]
    shape = (len(batch.tokens), len(batch.positions), task.seq_len)
    body = time >= first - (stride - 1)
    return {
        "self": _same(batch, time),
        "matching": symbol == observations[..., None],
        "transition": transition.expand(shape),
        "previous": ((back > 0) & (back <= stride) & body).expand(shape),
        "older": ((back > stride) & body).expand(shape),
    }


def _recall(task: Recall, batch: Batch) -> dict[str, Tensor]:
    time = torch.arange(task.seq_len, device=batch.tokens.device)
    asked = batch.tokens[:, batch.positions - 1]  # [B, P]
    stored = PAIR_LEN * task.num_pairs
    key_at = (time // PAIR_LEN * PAIR_LEN + 1).clamp_max(task.seq_len - 1)
    matching = (batch.tokens[:, None, key_at] == asked[..., None]) & (time < stored)
    back = batch.positions[:, None] - time
    shape = matching.shape
    return {
        "self": ((back >= 0) & (back < 3)).expand(shape),
        "matching": matching,
        "other": (time < stored).expand(shape),
    }
