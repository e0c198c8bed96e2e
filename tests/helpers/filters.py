"""Exact HMM filters in the form of models, some of which carry their belief along."""

import torch
from torch import Tensor, nn

from bwt.tasks.hmm import marginals


class Sight(nn.Module):
    """[B, F + L, S + S + S * S]: a belief that knows no observation, the likelihood of what is
    observed, and the transition matrix; nothing in the header."""

    def __init__(self, task):
        super().__init__()
        self.task = task

    def forward(self, tokens: Tensor, features: Tensor) -> Tensor:
        S, V = self.task.num_states, self.task.num_symbols
        transition, emission, initial = features.double().split((S, V, 1), 1)
        likelihood = emission.gather(1, tokens[..., None].expand(-1, -1, S))
        belief = marginals(initial[:, 0], transition, tokens.shape[1])
        same = transition.flatten(1)[:, None].expand(-1, tokens.shape[1], -1)
        body = torch.cat((belief, likelihood, same), -1)
        return torch.cat((body.new_zeros(len(body), features.shape[1], body.shape[-1]), body), 1)


class Update(nn.Module):
    """Each position takes the belief of the one before and its own observation, `times` over."""

    def __init__(self, task, times: int):
        super().__init__()
        self.task, self.times = task, times

    def forward(self, x: Tensor) -> Tensor:
        S, start = self.task.num_states, self.task.num_features
        belief, likelihood, transition = x[:, start:].split((S, S, S * S), -1)
        matrix = transition.unflatten(-1, (S, S))
        first = belief.new_full((len(x), 1, S), 1 / S)
        for _ in range(self.times):
            moved = (belief[:, :-1, None] @ matrix[:, :-1])[:, :, 0]
            belief = likelihood * torch.cat((first, moved), 1)
            belief = belief / belief.sum(-1, keepdim=True)
        body = torch.cat((belief, likelihood, transition), -1)
        return torch.cat((x[:, :start], body), 1)


class Filter(nn.Module):
    """With one update in each of many blocks it is recursive: a belief goes from one position to
    the next, one block higher. With many updates in one block nothing of its output is read at
    other positions: every position computes its belief from the last observations."""

    def __init__(self, task, *, deep: int = 1, updates: int = 1):
        super().__init__()
        self.task = task
        self.embed = Sight(task)
        self.blocks = nn.ModuleList(Update(task, updates) for _ in range(deep))

    def forward(self, tokens: Tensor, features: Tensor, positions=None) -> Tensor:
        x = self.embed(tokens, features)
        for block in self.blocks:
            x = block(x)
        logits = x[..., : self.task.num_states].clamp_min(1e-30).log()
        return logits if positions is None else logits[:, positions]
