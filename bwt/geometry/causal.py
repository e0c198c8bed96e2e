"""Is what a probe reads also what the model uses? States are changed and the effect is measured.

Removal: what the states hold in a subspace is replaced by its mean. Four subspaces of equal rank:

    encoded    spanned by the covariance of states and target: without it no linear probe finds the
               target any more
    readout    spanned by the probe's weights. It may hold little of the variance: where the state
               says the same thing in several ways, a probe listens to the quietest
    random     the mean effect of random ones
    principal  the leading principal components

Interchange: the state of one position is replaced by that of another sequence; if it holds the
belief, the prediction follows the other sequence's posterior.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bwt.evaluate import METRICS, measure
from bwt.geometry.intervene import Edit
from bwt.geometry.probes import differs_within, fit, targets
from bwt.geometry.recording import Recording
from bwt.geometry.stats import estimate, pca
from bwt.geometry.subject import Subject, blocks
from bwt.records.geometry import Interchange, RemainingR2, Removal, RemovalCost

DRAWS = 4  # random subspaces
STEPS = 4  # at which states are interchanged
KL, TVD = METRICS.index("kl"), METRICS.index("tvd")


def removal(subject: Subject, tick: Callable[[], None] = lambda: None) -> list[Removal]:
    """For each block's output. Subspaces are found on the first half of the sequences, and the
    effect is measured on the other half."""
    half = len(subject.batch.tokens) // 2
    whole = Recording.of(subject)
    intact = whole.part(slice(half, None))
    rest = intact.subject
    base_kl, _ = rest.losses(intact.log_q)
    generator = torch.Generator().manual_seed(0)
    rows = []
    for i in range(len(blocks(subject.model))):
        path = f"blocks.{i}"
        states = whole.outputs[path].index_select(1, subject.positions).double()
        for target, y in targets(subject).items():
            # The mean at each position, unless the target is a function of the position.
            within = differs_within(y)
            mean = states[:half].mean(0) if within else states[:half].mean((0, 1))
            bases = _bases(states, y, within, generator)
            added = {}
            for kind, choices in bases.items():
                edits = (remove(basis, subject.positions, mean) for basis in choices)
                effects = [rest.losses(intact.predict(path, edit))[0] - base_kl for edit in edits]
                added[kind] = estimate(torch.stack(effects).mean(0))
            left = {
                kind: fit(without(states, bases[kind][0], mean), y, within=within).r2()
                for kind in ("encoded", "readout")
            }
            rank = bases["encoded"][0].shape[1]
            rows.append(Removal(i, target, rank, RemovalCost(**added), RemainingR2(**left)))
        tick()
    return rows


def _bases(
    states: Tensor, y: Tensor, within: bool, generator: torch.Generator
) -> dict[str, list[Tensor]]:
    half, width = len(states) // 2, states.shape[-1]
    encoded = span(covariance(states[:half], y[:half], within))
    rank = encoded.shape[1]
    normals = torch.randn(DRAWS, width, rank, dtype=torch.float64, generator=generator)
    return {
        "encoded": [encoded],
        "readout": [span(fit(states, y, within=within).weight)],
        "random": list(torch.linalg.qr(normals).Q.to(states.device)),
        "principal": [pca(states[:half]).axes[:rank].t()],
    }


def covariance(x: Tensor, y: Tensor, within: bool) -> Tensor:
    """[C, K] of states [B, P, C] and targets [B, P, K]."""
    axes = 0 if within else (0, 1)
    x, y = ((z - z.mean(axes)).flatten(0, 1) for z in (x, y))
    return x.t() @ y


def span(weight: Tensor) -> Tensor:
    """Orthonormal basis [C, r] of what the columns [C, K] span."""
    left, size, _ = torch.linalg.svd(weight, full_matrices=False)
    return left[:, size > 1e-6 * size.max()]


def without(x: Tensor, basis: Tensor, mean: Tensor) -> Tensor:
    """x [B, P, C] with its part in the basis [C, r] replaced by that of the mean."""
    return x - (x - mean) @ basis @ basis.t()


def remove(basis: Tensor, positions: Tensor, mean: Tensor) -> Edit:
    """The edit that does so at the positions."""

    def edit(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        y = y.clone()
        y[:, positions] = without(y[:, positions], basis.to(y.dtype), mean.to(y.dtype))
        return y

    return edit


def interchange(subject: Subject, tick: Callable[[], None] = lambda: None) -> list[Interchange]:
    """For each block's output: bits between the prediction and the posterior of the own sequence
    (`own`), and of the sequence the state comes from (`other`); `plain` without interchange."""
    count = subject.exact.shape[1]
    steps = sorted({round((j + 1) * (count - 1) / STEPS) for j in range(STEPS)})
    other = subject.exact.roll(1, 0)
    intact = Recording.of(subject)
    plain = measure(intact.log_q, subject.exact, subject.batch.targets)[KL][:, steps]
    distance = measure(
        subject.exact.clamp_min(1e-12).log(), other, subject.batch.targets.roll(1, 0)
    )[TVD][:, steps]
    rows = []
    for i in range(len(blocks(subject.model))):
        own_kl, other_kl = [], []
        for step in steps:
            swap = _swap(int(subject.positions[step]))
            log_q = intact.predict(f"blocks.{i}", swap, slice(step, step + 1))
            pick = (slice(None), [step])
            goal = subject.batch.targets[pick]
            own_kl.append(measure(log_q, subject.exact[pick], goal)[KL])
            other_kl.append(measure(log_q, other[pick], goal)[KL])
        rows.append(
            Interchange(
                layer=i,
                own=estimate(torch.cat(own_kl, 1).mean(1)),
                other=estimate(torch.cat(other_kl, 1).mean(1)),
                plain=estimate(plain.mean(1)),
                tvd_between=estimate(distance.mean(1)),
                steps=[step + 1 for step in steps],
            )
        )
        tick()
    return rows


def _swap(position: int) -> Edit:
    def edit(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        y = y.clone()
        y[:, position] = y[:, position].roll(1, 0)
        return y

    return edit
