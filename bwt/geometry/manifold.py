"""The value manifold: do states lie on a curve, and is the curve ordered by uncertainty?

A curve ordered by the entropy cannot be told from one ordered by the position where the position
determines the entropy (a bijection whose keys do not repeat). So every correlation is given twice:
plain, and with the position held fixed (null where it is not defined).
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from bwt.geometry import stats
from bwt.geometry.alignment import alignments
from bwt.geometry.probes import fit
from bwt.geometry.subject import Subject, blocks, has_attention, is_residual
from bwt.records.geometry import Cloud, Manifold, Ordering, Points

COMPONENTS = 10  # whose variance is listed
POINTS = 600  # kept for the figure

Correlation = Callable[[Tensor, Tensor], float | None]


def manifold(subject: Subject, untrained: Subject) -> Manifold:
    names = _clouds(subject)
    trace = subject.look(*names.values())
    clouds = {label: trace[name] for label, name in names.items()}
    return Manifold(
        entropy_varies_within_position=stats.varies_within(subject.entropy),
        clouds={label: _cloud(x, subject.entropy) for label, x in clouds.items()},
        points={label: _points(x, subject.entropy) for label, x in clouds.items()},
        sequences=len(subject.batch.tokens),
        alignment=alignments(subject, untrained, names),
    )


def _clouds(subject: Subject) -> dict[str, str]:
    """label -> name of what is captured."""
    names = {}
    for i, block in enumerate(blocks(subject.model)):
        if has_attention(subject.model):
            names[f"attention {i}"] = f"blocks.{i}.attn"
        names[f"{'residual' if is_residual(block) else 'hidden'} {i}"] = f"blocks.{i}"
    return names or {"hidden": "hidden"}


def _cloud(x: Tensor, entropy: Tensor) -> Cloud:
    pca = stats.pca(x)
    first = pca(x, 1)[..., 0]
    return Cloud(
        share=pca.share[:COMPONENTS].tolist(),
        dimensions=stats.participation(pca.share),
        first=ordering(first, entropy),
        fitted=_fitted(x, entropy),
    )


def ordering(coordinate: Tensor, entropy: Tensor) -> Ordering:
    """How well one coordinate [B, P] orders the entropy."""

    def squared(correlation: Correlation) -> Correlation:
        def statistic(x: Tensor, y: Tensor) -> float | None:
            r = correlation(x, y)
            return None if r is None else r * r

        return statistic

    def absolute(correlation: Correlation) -> Correlation:
        def statistic(x: Tensor, y: Tensor) -> float | None:
            r = correlation(x, y)
            return None if r is None else abs(r)

        return statistic

    pairs = (coordinate, entropy)
    return Ordering(
        r2=stats.jackknife(squared(stats.pearson), *pairs),
        spearman=stats.jackknife(absolute(stats.spearman), *pairs),
        r2_within=stats.jackknife(squared(stats.pearson_within), *pairs),
        spearman_within=stats.jackknife(absolute(stats.spearman_within), *pairs),
    )


def _fitted(x: Tensor, entropy: Tensor) -> Ordering:
    """The same of the best linear coordinate, found on half of the sequences; for the numbers
    within position, one that is found within position."""
    half = len(x) // 2

    def ordered(*, within: bool) -> Ordering:
        coordinate = fit(x, entropy[..., None], within=within).prediction[..., 0]
        return ordering(coordinate, entropy[half:])

    plain = ordered(within=False)
    if not stats.varies_within(entropy):
        return plain
    held = ordered(within=True)
    return replace(plain, r2_within=held.r2_within, spearman_within=held.spearman_within)


def _points(x: Tensor, entropy: Tensor) -> Points:
    """The first three components of some states, taken at random: a few whole sequences would look
    like clusters."""
    space = stats.pca(x)(x, min(3, x.shape[-1])).flatten(0, 1)
    chosen = torch.randperm(len(space), generator=torch.Generator().manual_seed(0))[:POINTS]
    steps = torch.arange(1, x.shape[1] + 1).repeat(len(x))[chosen]
    chosen = chosen.to(x.device)
    return Points(
        x=space[chosen, 0].tolist(),
        y=space[chosen, 1].tolist(),
        entropy=entropy.flatten()[chosen].tolist(),
        step=steps.tolist(),
        z=space[chosen, 2].tolist() if space.shape[-1] > 2 else None,
    )
