"""Do the final states form clusters, and are the clusters the likeliest hypotheses?

K-means on the leading components of the state in front of the head; the number of clusters is the
one with the best silhouette. They are compared with the likeliest outcome under the exact posterior
(adjusted Rand index, 0 for chance), where one outcome is the likeliest.
"""

import torch
from torch import Tensor

from bwt.geometry import stats
from bwt.geometry.subject import Subject
from bwt.records.geometry import Clustering, Clusters, Skipped

COMPONENTS = 10
POINTS = 1200
CERTAIN = 1e-4  # by which the likeliest outcome must lead


def clusters(subject: Subject, untrained: Subject) -> Clusters | Skipped:
    top = subject.exact.topk(min(2, subject.exact.shape[-1]), -1).values
    unique = (top[..., 0] - top[..., -1] > CERTAIN).flatten()
    labels = subject.exact.argmax(-1).flatten()
    if unique.float().mean() < 0.5:
        return Skipped("most posteriors have no single likeliest outcome: they are ties")
    generator = torch.Generator().manual_seed(0)
    rows = unique.nonzero()[:, 0].cpu()
    rows = rows[torch.randperm(len(rows), generator=generator)[:POINTS]].to(labels.device)

    def clustering(which: Subject) -> Clustering:
        states = which.look("head.norm")["head.norm"].flatten(0, 1).double()
        return _describe(states[rows], labels[rows])

    return Clusters(
        trained=clustering(subject),
        untrained=clustering(untrained),
        entropy=subject.entropy.flatten()[rows].tolist(),
        points=len(rows),
        sequences=len(subject.batch.tokens),
    )


def _describe(states: Tensor, labels: Tensor) -> Clustering:
    pca = stats.pca(states)
    low = pca(states, min(COMPONENTS, states.shape[-1]))
    outcomes = len(labels.unique())
    best = None
    for k in range(2, min(24, max(8, outcomes + 2)) + 1):
        groups = k_means(low, k)
        quality = silhouette(low, groups)
        if best is None or quality > best[0]:
            best = (quality, k, groups)
    quality, k, groups = best
    given = k_means(low, max(2, outcomes))
    return Clustering(
        clusters=k,
        silhouette=quality,
        rand=adjusted_rand(groups, labels),
        outcomes=outcomes,
        rand_given_outcomes=adjusted_rand(given, labels),
        silhouette_of_outcomes=silhouette(low, labels),
        share=pca.share[:COMPONENTS].tolist(),
        plane=pca(states, 2).tolist(),
        outcome=labels.tolist(),
        cluster=groups.tolist(),
    )


def k_means(x: Tensor, k: int, *, restarts: int = 4, rounds: int = 50) -> Tensor:
    """[N] group of each point [N, C]; starts by k-means++ from fixed seeds."""
    best = None
    for seed in range(restarts):
        generator = torch.Generator(x.device).manual_seed(seed)
        centres = x[torch.randint(len(x), (1,), generator=generator, device=x.device)]
        while len(centres) < k:
            distance = torch.cdist(x, centres).min(1).values.square() + 1e-12
            centres = torch.cat((centres, x[torch.multinomial(distance, 1, generator=generator)]))
        for _ in range(rounds):
            near = torch.cdist(x, centres).argmin(1)
            member = torch.nn.functional.one_hot(near, k).to(x.dtype)
            count = member.sum(0)[:, None]
            moved = torch.where(count > 0, member.t() @ x / count.clamp_min(1), centres)
            if torch.equal(moved, centres):
                break
            centres = moved
        distance, near = torch.cdist(x, centres).min(1)
        cost = distance.square().sum().item()
        if best is None or cost < best[0]:
            best = (cost, near)
    return best[1]


def silhouette(x: Tensor, groups: Tensor) -> float:
    """Mean over points of (b - a) / max(a, b): a to the own group, b to the nearest other."""
    names, groups = groups.unique(return_inverse=True)
    if len(names) < 2:
        return 0.0
    member = torch.nn.functional.one_hot(groups).to(x.dtype)  # [N, K]
    count = member.sum(0)
    total = torch.cdist(x, x) @ member
    own = total.gather(1, groups[:, None])[:, 0] / (count[groups] - 1).clamp_min(1)
    other = (total / count).masked_fill(member.bool(), torch.inf).min(1).values
    score = (other - own) / torch.maximum(own, other).clamp_min(1e-12)
    return score.where(count[groups] > 1, 0.0).mean().item()  # alone in its group: 0


def adjusted_rand(a: Tensor, b: Tensor) -> float:
    """Agreement of two groupings: 1 if they are the same, 0 on average by chance."""
    a, b = a.unique(return_inverse=True)[1], b.unique(return_inverse=True)[1]
    table = torch.zeros(int(a.max()) + 1, int(b.max()) + 1, dtype=torch.float64, device=a.device)
    table.index_put_((a, b), torch.ones_like(a, dtype=torch.float64), accumulate=True)

    def pairs(n: Tensor) -> float:
        return (n * (n - 1) / 2).sum().item()

    both, one, other = pairs(table), pairs(table.sum(1)), pairs(table.sum(0))
    chance = one * other / pairs(table.sum()[None])
    most = (one + other) / 2
    return (both - chance) / (most - chance) if most != chance else 1.0
