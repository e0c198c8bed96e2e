"""Does what a model believes form clusters, and are the clusters the likeliest hypotheses?

Of the state in front of the head only its part in the row space of the head's weights is read, and
softmax makes a distribution of it: the prediction. That is what is clustered; in the states
themselves, or in logits, the distance of two almost certain beliefs has no bound, and even exact
log-posteriors do not fall into their hypotheses. How far agreement could go at all is said by the
same done with the exact posterior, the ceiling; the states as they are stand beside it, and so do
exact filters that remember little: predictions that are right for the most part agree for the most
part, however they are made.

K-means; the number of clusters is the one with the best silhouette. They are compared with the
likeliest outcome under the exact posterior (adjusted Rand index, 0 for chance), where one outcome
is the likeliest.
"""

import warnings

import numpy as np
import torch
from scipy.cluster.vq import kmeans2
from torch import Tensor

from bwt.geometry import stats
from bwt.geometry.subject import Subject
from bwt.records.floors import is_scale
from bwt.records.geometry import Clustering, Clusters, ClusterScores, Skipped

COMPONENTS = 10  # of the states; distributions are taken whole
POINTS = 1200
CERTAIN = 1e-4  # by which the likeliest outcome must lead
MOST = 24  # clusters that are tried one by one
RESTARTS, ROUNDS = 4, 40
ALIKE = 1e-9  # points nearer than this are one


def clusters(subject: Subject, untrained: Subject) -> Clusters | Skipped:
    top = subject.exact.topk(min(2, subject.exact.shape[-1]), -1).values
    unique = (top[..., 0] - top[..., -1] > CERTAIN).flatten()
    labels = subject.exact.argmax(-1).flatten()
    if unique.float().mean() < 0.5:
        return Skipped("most posteriors have no single likeliest outcome: they are ties")
    generator = torch.Generator().manual_seed(0)
    rows = unique.nonzero()[:, 0].cpu()
    rows = rows[torch.randperm(len(rows), generator=generator)[:POINTS]].to(labels.device)
    labels = labels[rows]

    def chosen(values: Tensor) -> Tensor:
        return values.flatten(0, 1).double()[rows]

    def states(which: Subject) -> Tensor:
        return chosen(which.look("head.norm")["head.norm"])

    def beliefs(which: Subject) -> Tensor:
        return chosen(which.predict().exp())

    return Clusters(
        trained=describe(states(subject), labels, COMPONENTS),
        untrained=describe(states(untrained), labels, COMPONENTS),
        entropy=subject.entropy.flatten()[rows].tolist(),
        points=len(rows),
        sequences=len(subject.batch.tokens),
        predicted=describe(beliefs(subject), labels),
        predicted_untrained=scores(beliefs(untrained), labels),
        ceiling=scores(chosen(subject.exact), labels),
        limited={
            name: scores(chosen(q), labels)
            for name, q in subject.task.floors(subject.batch).items()
            if is_scale(name)
        },
    )


def describe(points: Tensor, labels: Tensor, components: int | None = None) -> Clustering:
    """components: as many leading ones are clustered; None: the points themselves."""
    pca = stats.pca(points)
    low = points if components is None else pca(points, min(components, points.shape[-1]))
    found, groups = _best(low, labels)
    return Clustering(
        **vars(found),
        share=pca.share[:COMPONENTS].tolist(),
        plane=pca(points, 2).tolist(),
        outcome=labels.tolist(),
        cluster=groups.tolist(),
    )


def scores(points: Tensor, labels: Tensor) -> ClusterScores:
    """The same without what a picture needs."""
    return _best(points, labels)[0]


def _best(points: Tensor, labels: Tensor) -> tuple[ClusterScores, Tensor]:
    outcomes = len(labels.unique())
    kinds = len(np.unique((points / ALIKE).round().cpu().numpy(), axis=0))
    every = {*range(2, min(MOST, max(8, outcomes + 2)) + 1), outcomes}
    distances = torch.cdist(points, points)
    best = (0.0, 1, torch.zeros_like(labels))  # all points in one place are one cluster
    for k in sorted(k for k in every if 2 <= k <= kinds):
        groups = k_means(points, k)
        quality = silhouette(distances, groups)
        if best[1] == 1 or quality > best[0]:
            best = (quality, k, groups)
    quality, k, groups = best
    given = k_means(points, min(kinds, max(2, outcomes)))
    found = ClusterScores(
        clusters=k,
        silhouette=quality,
        rand=adjusted_rand(groups, labels),
        outcomes=outcomes,
        rand_given_outcomes=adjusted_rand(given, labels),
        silhouette_of_outcomes=silhouette(distances, labels),
    )
    return found, groups


def k_means(x: Tensor, k: int) -> Tensor:
    """[N] group of each point [N, C], of which at least k differ: the best of some starts by
    k-means++ from fixed seeds."""
    points = x.cpu().numpy()
    found = (_k_means_from(seed, points, k) for seed in range(RESTARTS))
    _, groups = min(found, key=lambda cost_and_groups: cost_and_groups[0])
    return torch.as_tensor(groups, device=x.device).long()


def _k_means_from(seed: int, points: np.ndarray, k: int) -> tuple[float, np.ndarray]:
    """The cost, and the group of each point."""
    with warnings.catch_warnings():
        # A start may lose a cluster on its way; another will be better.
        warnings.filterwarnings("ignore", "One of the clusters is empty", UserWarning)
        centres, groups = kmeans2(points, k, ROUNDS, minit="++", seed=seed)
    return np.square(points - centres[groups]).sum(), groups


def silhouette(distances: Tensor, groups: Tensor) -> float:
    """Mean over points of (b - a) / max(a, b), from the distances [N, N] between them: a to the own
    group, b to the nearest other."""
    names, groups = groups.unique(return_inverse=True)
    if len(names) < 2:
        return 0.0
    member = torch.nn.functional.one_hot(groups).to(distances.dtype)  # [N, K]
    count = member.sum(0)
    total = distances @ member
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
