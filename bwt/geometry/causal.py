"""Is what a probe reads also what the model uses? States are changed and the effect is measured.

Removal: what the states hold in a subspace is replaced by its mean at the position. The subspaces
are those of the probes; beside them random ones and the leading principal ones of equal rank.
Interchange: the state of one position is replaced by that of another sequence; if it holds the
belief, the prediction follows the other sequence's posterior.
"""

import torch
from torch import Tensor, nn

from bwt.evaluate import METRICS, measure
from bwt.geometry.intervene import Edit, edited
from bwt.geometry.probes import fit, targets
from bwt.geometry.stats import estimate, pca, varies_within
from bwt.geometry.subject import Subject, blocks

DRAWS = 4  # random subspaces
STEPS = 4  # at which states are interchanged
KL, TVD = METRICS.index("kl"), METRICS.index("tvd")


def removal(subject: Subject) -> list[dict]:
    """For each block's output. Probes are fitted on the first half of the sequences, and the effect
    is measured on the other half."""
    half = len(subject.batch.tokens) // 2
    rest = subject.part(slice(half, None))
    base_kl, _ = rest.losses(rest.predict())
    generator = torch.Generator().manual_seed(0)
    rows = []
    for i in range(len(blocks(subject.model))):
        path = f"blocks.{i}"
        states = subject.look(path)[path].double()
        for target, y in targets(subject).items():
            basis = span(
                fit(states, y, within=target != "entropy" or varies_within(y[..., 0])).weight
            )
            rank = basis.shape[1]
            bases = {
                "probe": [basis],
                "random": [_random(states.shape[-1], rank, generator) for _ in range(DRAWS)],
                "principal": [pca(states[:half]).axes[:rank].t()],
            }
            found = {}
            for kind, choices in bases.items():
                effect = 0
                for basis in choices:
                    edit = remove(basis.to(states.device), subject.positions, states.mean(0))
                    with edited(subject.model, path, edit):
                        effect = effect + rest.losses(rest.predict())[0] - base_kl
                found[kind] = estimate(effect / len(choices))
            rows.append({"layer": i, "target": target, "rank": rank, "kl_added": found})
    return rows


def span(weight: Tensor) -> Tensor:
    """Orthonormal basis [C, r] of what the columns [C, K] span."""
    left, size, _ = torch.linalg.svd(weight, full_matrices=False)
    return left[:, size > 1e-6 * size.max()]


def _random(width: int, rank: int, generator: torch.Generator) -> Tensor:
    normal = torch.randn(width, rank, dtype=torch.float64, generator=generator)
    return torch.linalg.qr(normal).Q


def remove(basis: Tensor, positions: Tensor, mean: Tensor) -> Edit:
    """Replaces the part of the output in the basis [C, r] by that of the mean [P, C]."""
    basis, mean = basis.float(), mean.float()

    def edit(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        y = y.clone()
        states = y[:, positions]
        y[:, positions] = states - (states - mean) @ basis @ basis.t()
        return y

    return edit


def interchange(subject: Subject) -> list[dict]:
    """For each block's output: bits between the prediction and the posterior of the own sequence
    (`own`), and of the sequence the state comes from (`other`); `plain` without interchange."""
    count = subject.exact.shape[1]
    steps = sorted({round((j + 1) * (count - 1) / STEPS) for j in range(STEPS)})
    other = subject.exact.roll(1, 0)
    plain = measure(subject.predict(), subject.exact, subject.batch.targets)[KL][:, steps]
    distance = measure(
        subject.exact.clamp_min(1e-12).log(), other, subject.batch.targets.roll(1, 0)
    )[TVD][:, steps]
    rows = []
    for i in range(len(blocks(subject.model))):
        own_kl, other_kl = [], []
        for step in steps:
            with edited(subject.model, f"blocks.{i}", _swap(int(subject.positions[step]))):
                log_q = subject.predict()[:, [step]]
            pick = (slice(None), [step])
            goal = subject.batch.targets[pick]
            own_kl.append(measure(log_q, subject.exact[pick], goal)[KL])
            other_kl.append(measure(log_q, other[pick], goal)[KL])
        rows.append(
            {
                "layer": i,
                "own": estimate(torch.cat(own_kl, 1).mean(1)),
                "other": estimate(torch.cat(other_kl, 1).mean(1)),
                "plain": estimate(plain.mean(1)),
                "tvd_between": estimate(distance.mean(1)),
                "steps": [step + 1 for step in steps],
            }
        )
    return rows


def _swap(position: int) -> Edit:
    def edit(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        y = y.clone()
        y[:, position] = y[:, position].roll(1, 0)
        return y

    return edit
