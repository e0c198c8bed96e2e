"""Is the posterior entropy what states mostly vary in?

The direction in which states move with the entropy is their covariance with it (a probe's weights
would point to where the entropy is easiest to tell from all else, which may hold next to no
variance). Its cosine with the first principal component alone says little: where one component has
most of the variance, even labels of other sequences give a direction near it. So this is told
beside it, as is what a random direction has, and how much of the entropy the first component gives
compared with the best direction. Where the entropy varies at a fixed position, each position's
mean is taken away from both.
"""

import torch
from torch import Tensor
from torch.nn import functional

from bwt.geometry import stats
from bwt.geometry.causal import covariance
from bwt.geometry.probes import fit
from bwt.geometry.subject import Subject, blocks, has_attention
from bwt.records.estimates import mean_of
from bwt.records.geometry import Alignment

SHUFFLES = 8  # of the labels, and random directions


def alignments(subject: Subject, untrained: Subject, names: dict[str, str]) -> dict[str, Alignment]:
    """For each cloud (label -> name of what is captured), and the values of attention. Empty if
    the entropy is the same everywhere."""
    if subject.entropy.std() < 1e-9:
        return {}
    found = {}
    for label, name in (names | _values(subject)).items():
        x, control = (_states(s, name) for s in (subject, untrained))
        result = align(x, subject.entropy)
        if result is not None:
            found[label] = _beside(result, align(control, subject.entropy))
    return found


def _values(subject: Subject) -> dict[str, str]:
    if not has_attention(subject.model):
        return {}
    return {f"values {i}": f"blocks.{i}.attn.v" for i in range(len(blocks(subject.model)))}


def _states(subject: Subject, name: str) -> Tensor:
    """[B, P, C]; values of all heads in a row, at the supervised positions."""
    x = subject.look(name)[name].double()
    return x if x.ndim == 3 else x[:, :, subject.positions].transpose(1, 2).flatten(2)


def _beside(trained: Alignment, untrained: Alignment | None) -> Alignment:
    if untrained is None:
        return trained
    fields = vars(trained) | {
        "untrained_cosine": untrained.cosine.mean,
        "untrained_best_r2": untrained.best_r2,
    }
    return Alignment(**fields)


def align(x: Tensor, entropy: Tensor) -> Alignment | None:
    """Of states [B, P, C] and entropies [B, P]; None if the states do not vary."""
    within = stats.varies_within(entropy)
    half, y = len(x) // 2, entropy[..., None]
    rest, labels = _centred(x[half:], within), _centred(entropy[half:], within)
    if float(rest.square().sum()) <= 1e-12 * float(x.square().sum()):
        return None
    pca = stats.pca(rest)
    direction = _direction(x[:half], y[:half], within)
    generator = torch.Generator().manual_seed(0)
    others = [
        _direction(x[:half], y[:half][_shuffled(half, within, y, generator)], within)
        for _ in range(SHUFFLES)
    ]
    normals = torch.randn(SHUFFLES, x.shape[-1], dtype=torch.float64, generator=generator)
    along = rest @ direction
    return Alignment(
        cosine=stats.jackknife(lambda a, b: _cosine(a, b, within), x, entropy),
        shuffled=_mean_cosine(others, pca),
        random=_mean_cosine(list(functional.normalize(normals, dim=-1).to(x.device)), pca),
        plane=float((pca.axes[:2] @ direction).norm()),
        share=float(along.square().sum() / rest.square().sum()),
        first_share=float(pca.share[0]),
        first_r2=(stats.pearson(rest @ pca.axes[0], labels) or 0.0) ** 2,
        best_r2=mean_of(fit(x, y, within=within).r2()) or 0.0,
    )


def _shuffled(half: int, within: bool, y: Tensor, generator: torch.Generator) -> Tensor | tuple:
    """Labels of other sequences at the same position; where the position determines them, of any
    step."""
    if within:
        return torch.randperm(half, generator=generator).to(y.device)
    steps = torch.randperm(half * y.shape[1], generator=generator).to(y.device)
    return steps.view(half, -1) // y.shape[1], steps.view(half, -1) % y.shape[1]


def _centred(x: Tensor, within: bool) -> Tensor:
    x = x.double()
    return x - x.mean(0) if within else x - x.mean((0, 1))


def _direction(x: Tensor, y: Tensor, within: bool) -> Tensor:
    return functional.normalize(covariance(x.double(), y.double(), within)[:, 0], dim=0)


def _cosine(x: Tensor, entropy: Tensor, within: bool) -> float:
    half = len(x) // 2
    first = stats.pca(_centred(x[half:], within)).axes[0]
    return abs(float(first @ _direction(x[:half], entropy[:half, :, None], within)))


def _mean_cosine(directions: list[Tensor], pca: stats.PCA) -> float:
    return sum(abs(float(pca.axes[0] @ d)) for d in directions) / len(directions)
