"""The value manifold: do states lie on a curve, and is the curve ordered by uncertainty?

A curve ordered by the entropy cannot be told from one ordered by the position where the position
determines the entropy (a bijection whose keys do not repeat). So every correlation is given twice:
plain, and with the position held fixed (null where it is not defined).
"""

import torch
from torch import Tensor

from bwt.geometry import stats
from bwt.geometry.probes import fit
from bwt.geometry.subject import Subject, blocks, has_attention

COMPONENTS = 10  # whose variance is listed
POINTS = 600  # kept for the figure


def manifold(subject: Subject) -> dict:
    names = _clouds(subject)
    trace = subject.look(*names.values())
    clouds = {label: trace[name] for label, name in names.items()}
    return {
        "entropy_varies_within_position": stats.varies_within(subject.entropy),
        "clouds": {label: _cloud(x, subject.entropy) for label, x in clouds.items()},
        "points": {label: _points(x, subject.entropy) for label, x in clouds.items()},
        "sequences": len(subject.batch.tokens),
    }


def _clouds(subject: Subject) -> dict[str, str]:
    """label -> name of what is captured."""
    names = {}
    for i in range(len(blocks(subject.model))):
        if has_attention(subject.model):
            names[f"attention {i}"] = f"blocks.{i}.attn"
        names[f"residual {i}"] = f"blocks.{i}"
    return names or {"hidden": "hidden"}


def _cloud(x: Tensor, entropy: Tensor) -> dict:
    found = stats.pca(x)
    first = found(x, 1)[..., 0]
    return {
        "share": found.share[:COMPONENTS].tolist(),
        "dimensions": stats.participation(found.share),
        "first": ordering(first, entropy),
        "fitted": _fitted(x, entropy),
    }


def ordering(coordinate: Tensor, entropy: Tensor) -> dict:
    """How well one coordinate [B, P] orders the entropy."""

    def squared(correlation):
        def statistic(x, y):
            r = correlation(x, y)
            return None if r is None else r * r

        return statistic

    def absolute(correlation):
        def statistic(x, y):
            r = correlation(x, y)
            return None if r is None else abs(r)

        return statistic

    pairs = (coordinate, entropy)
    return {
        "r2": stats.jackknife(squared(stats.pearson), *pairs),
        "spearman": stats.jackknife(absolute(stats.spearman), *pairs),
        "r2_within": stats.jackknife(squared(stats.pearson_within), *pairs),
        "spearman_within": stats.jackknife(absolute(stats.spearman_within), *pairs),
    }


def _fitted(x: Tensor, entropy: Tensor) -> dict:
    """The same of the best linear coordinate, found on half of the sequences; for the numbers
    within position, one that is found within position."""
    half = len(x) // 2
    plain = fit(x, entropy[..., None], within=False).prediction[..., 0]
    found = ordering(plain, entropy[half:])
    if stats.varies_within(entropy):
        within = ordering(
            fit(x, entropy[..., None], within=True).prediction[..., 0], entropy[half:]
        )
        found |= {key: within[key] for key in ("r2_within", "spearman_within")}
    return found


def _points(x: Tensor, entropy: Tensor) -> dict:
    """The first two components of some states, taken at random: a few whole sequences would look
    like clusters."""
    plane = stats.pca(x)(x, 2).flatten(0, 1)
    chosen = torch.randperm(len(plane), generator=torch.Generator().manual_seed(0))[:POINTS]
    steps = torch.arange(1, x.shape[1] + 1).repeat(len(x))[chosen]
    chosen = chosen.to(x.device)
    return {
        "x": plane[chosen, 0].tolist(),
        "y": plane[chosen, 1].tolist(),
        "entropy": entropy.flatten()[chosen].tolist(),
        "step": steps.tolist(),
    }
