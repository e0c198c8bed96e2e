"""Where attention goes from the positions that are asked, and how sharply."""

import torch
from torch import Tensor

from bwt.geometry.stats import estimates, ratio
from bwt.geometry.subject import Subject
from bwt.records.estimates import Estimate
from bwt.records.geometry import Attention, AttentionLayer


def attention(subject: Subject, untrained: Subject | None = None) -> Attention:
    trace = subject.look(
        "blocks.*.attn.weights", "blocks.*.attn.entropy", "blocks.*.attn.q", "blocks.*.attn.k"
    )
    masks = subject.task.roles(subject.batch)
    count = sum(name.endswith(".weights") for name in trace)
    layers = [
        _layer(
            {tap: trace[f"blocks.{i}.attn.{tap}"] for tap in ("weights", "entropy", "q", "k")},
            masks,
        )
        for i in range(count)
    ]
    visible = torch.stack([mask.sum(-1) for mask in masks.values()]).sum(0).double()  # [B, P]
    uniform = {
        name: (mask.sum(-1) / visible).mean(-1).mean().item() for name, mask in masks.items()
    }
    entropy = layer_entropy(subject)
    control = None if untrained is None else layer_entropy(untrained)
    return Attention(
        layers=layers,
        uniform_mass=uniform,
        uniform_entropy=visible.log2().mean().item(),
        meaning={name: subject.task.meanings.get(name, name) for name in masks},
        sequences=len(subject.batch.tokens),
        entropy=estimates(entropy),
        untrained_entropy=None if control is None else estimates(control),
        fall=fall(entropy),
        untrained_fall=None if control is None else fall(control),
        asked=subject.positions.tolist(),
    )


def layer_entropy(subject: Subject) -> Tensor:
    """[B, layers] bits, mean over heads and steps."""
    trace = subject.look("blocks.*.attn.entropy")
    layers = [trace[f"blocks.{i}.attn.entropy"] for i in range(len(trace))]
    return torch.stack([x.double().mean((1, 2)) for x in layers], 1)


def fall(entropy: Tensor) -> Estimate | None:
    """The share of the first layer's entropy that the last one has lost, of [B, layers]; None if
    there is none to lose."""
    left = ratio(entropy[:, -1], entropy[:, 0])
    return None if left is None else Estimate(1 - left.mean, left.se)


def _layer(captured: dict[str, Tensor], masks: dict[str, Tensor]) -> AttentionLayer:
    weights = captured["weights"]  # [B, H, P, T]
    mass = {name: mass_on(weights, mask) for name, mask in masks.items()}  # [B, H, P]
    cosine = _cosines(captured["q"], captured["k"])
    return AttentionLayer(
        # Entropy of each head first, then the mean: the entropy of a mean map would be larger.
        entropy=estimates(captured["entropy"].mean(-1)),
        mass={name: estimates(m.mean(-1)) for name, m in mass.items()},
        mass_by_step={name: estimates(m.mean(1)) for name, m in mass.items()},
        alignment_by_step={name: _mean_where(cosine, mask) for name, mask in masks.items()},
        maps=_rounded(weights.mean(0)),  # [H, P, T]
        example=_rounded(weights[0]),
    )


def _rounded(maps: Tensor) -> list:
    """As many digits as a picture needs: these are most of the file."""
    return maps.double().round(decimals=3).tolist()


def mass_on(weights: Tensor, mask: Tensor) -> Tensor:
    """[B, H, P] attention that falls on the positions of a mask [B, P, T]."""
    return (weights.double() * mask[:, None]).sum(-1)


def _cosines(q: Tensor, k: Tensor) -> Tensor:
    """[B, P, T] mean over heads of cos(query, key)."""
    unit_q, unit_k = (torch.nn.functional.normalize(x.double(), dim=-1) for x in (q, k))
    return (unit_q @ unit_k.transpose(-1, -2)).mean(1)


def _mean_where(x: Tensor, mask: Tensor) -> list[float | None]:
    """Mean of x [B, P, T] over sequences and the positions of the mask, for each step."""
    total, count = (x * mask).sum((0, 2)), mask.sum((0, 2))
    return [t / n if n else None for t, n in zip(total.tolist(), count.tolist(), strict=True)]
