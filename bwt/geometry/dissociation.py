"""Frame and precision: does attention settle before the predictions are precise?

Over the checkpoints, on the same sequences: how far the attention maps are from the final ones
(Jensen-Shannon divergence in bits, of each head and question, then the mean), how far the
predictions are from exact Bayes, and how the states of the last layer spread out:

    distance    1 - CKA to the final states
    spread      scatter of the most certain quarter of the states about its own centre, as a share
                of the scatter of all states: small when confident states are bunched together
    pc1         variance along the first principal component
    entropy_r2  how well the best linear coordinate gives the posterior entropy, on other sequences
"""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from bwt.geometry import stats
from bwt.geometry.probes import fit
from bwt.geometry.subject import Subject, blocks, has_attention, stages
from bwt.records.geometry import Checkpoint, Dissociation, Settled

SETTLED = 0.1  # of the way that is left


def dissociation(
    subject: Subject, steps: list[int], load: Callable[[int], nn.Module], tick: Callable[[], None]
) -> Dissociation:
    """load: gives the model as it was at a step; the last of the steps is the final one."""
    final = _Snapshot(subject.of(load(steps[-1])))
    rows = []
    for step in steps:
        snapshot = _Snapshot(subject.of(load(step)))
        rows.append(_compare(step, snapshot, final, subject))
        tick()
    return _summary(rows, len(subject.batch.tokens))


class _Snapshot:
    def __init__(self, subject: Subject):
        last = stages(subject.model)[-1]
        patterns = [last]
        if has_attention(subject.model):
            patterns += [f"blocks.{i}.attn.weights" for i in range(len(blocks(subject.model)))]
        trace = subject.look(*patterns)
        self.states = trace.pop(last)
        self.maps: list[Tensor] = list(trace.values())  # [B, H, P, T] each
        self.kl, self.entropy_mae = subject.losses(subject.predict())


def _compare(step: int, now: _Snapshot, final: _Snapshot, subject: Subject) -> Checkpoint:
    checkpoint = Checkpoint(
        step=step,
        kl=stats.estimate(now.kl),
        entropy_mae=stats.estimate(now.entropy_mae),
        distance=1 - stats.cka(now.states, final.states),
        spread=spread(now.states, subject.entropy),
        pc1=stats.pca(now.states).share[0].item(),
    )
    if subject.entropy.std() > 1e-6:
        r2 = fit(now.states, subject.entropy[..., None], within=False).r2()
        checkpoint = replace(checkpoint, entropy_r2=r2 and r2.mean)
    if now.maps:
        pairs = zip(now.maps, final.maps, strict=True)
        layers = [stats.jensen_shannon(a, b).mean((1, 2)) for a, b in pairs]  # [B] each
        checkpoint = replace(
            checkpoint,
            attention=stats.estimate(torch.stack(layers).mean(0)),
            attention_layers=[layer.mean().item() for layer in layers],
        )
    return checkpoint


def spread(states: Tensor, entropy: Tensor) -> float:
    x, entropy = states.flatten(0, 1).double(), entropy.flatten()
    certain = x[entropy.argsort(stable=True)[: max(2, len(x) // 4)]]
    scatter = [(z - z.mean(0)).square().sum(-1).mean() for z in (certain, x)]
    return (scatter[0] / scatter[1]).sqrt().item() if scatter[1] > 0 else 0.0


def settles(steps: list[int], values: list[float]) -> int:
    """The first step from which a value stays within a tenth of its largest distance from its
    last one."""
    away = [abs(value - values[-1]) for value in values]
    limit = SETTLED * max(away)
    step = steps[-1]
    for candidate, distance in zip(reversed(steps), reversed(away), strict=True):
        if distance > limit:
            break
        step = candidate
    return step


def _summary(rows: list[Checkpoint], sequences: int) -> Dissociation:
    """When each settles; precision on a log scale, where it is gained. And what was still gained
    after attention had settled."""
    steps = [row.step for row in rows]
    kl = [row.kl.mean for row in rows]
    settled = Settled(
        precision=settles(steps, [math.log(max(x, 1e-12)) for x in kl]),
        distance=settles(steps, [row.distance for row in rows]),
        spread=settles(steps, [row.spread for row in rows]),
        pc1=settles(steps, [row.pc1 for row in rows]),
    )
    if all(row.entropy_r2 is not None for row in rows):
        settled = replace(settled, entropy_r2=settles(steps, [row.entropy_r2 for row in rows]))
    if rows[-1].attention is None:
        return Dissociation(rows, settled, sequences)
    settled = replace(settled, attention=settles(steps, [row.attention.mean for row in rows]))
    then = kl[steps.index(settled.attention)]
    return Dissociation(
        rows,
        settled,
        sequences,
        kl_when_attention_settled=then,
        kl_factor_after=then / max(kl[-1], 1e-12),
    )
