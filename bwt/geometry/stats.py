"""Estimates with standard errors, correlations with the position held fixed, PCA."""

import math
from collections.abc import Callable
from typing import NamedTuple, overload

import torch
from torch import Tensor

from bwt.records.estimates import Estimate, Estimates

GROUPS = 16  # of the jackknife
# Below this share of its variance, a quantity does not vary at fixed position: it is rounding.
NEGLIGIBLE = 1e-8


def estimate(values: Tensor) -> Estimate:
    """Mean and standard error over independent sequences [B]."""
    return Estimate(*_mean_and_error(values))


def estimates(values: Tensor) -> Estimates:
    """The same of values [B, n], for each of the n."""
    return Estimates(*_mean_and_error(values))


def _mean_and_error(values: Tensor) -> tuple:
    values = values.double()
    se = values.std(0) / math.sqrt(len(values))
    return values.mean(0).tolist(), se.tolist()


def ratio(parts: Tensor, wholes: Tensor) -> Estimate | None:
    """The same as `pooled`; None if the wholes come to nothing."""
    return None if wholes.sum() <= 0 else pooled(parts, wholes)


def pooled(parts: Tensor, wholes: Tensor) -> Estimate:
    """sum(parts) / sum(wholes) over sequences [B], its error to first order; nan if the wholes
    come to nothing."""
    total = wholes.sum()
    value = parts.sum() / total
    spread = (parts - value * wholes).std() * math.sqrt(len(parts))
    return Estimate(value.item(), (spread / total).item())


@overload
def jackknife(statistic: Callable[..., float], *tensors: Tensor) -> Estimate: ...


@overload
def jackknife(statistic: Callable[..., float | None], *tensors: Tensor) -> Estimate | None: ...


def jackknife(statistic: Callable[..., float | None], *tensors: Tensor) -> Estimate | None:
    """A statistic of tensors [B, ...] and its standard error, from leaving out groups of
    sequences. None where the statistic is."""
    value = statistic(*tensors)
    if value is None:
        return None
    count = len(tensors[0])
    group = torch.arange(count, device=tensors[0].device) % min(GROUPS, count)
    without = [statistic(*(x[group != g] for x in tensors)) for g in range(min(GROUPS, count))]
    if len(without) < 2 or None in without:
        return Estimate(value, None)
    left_out = torch.tensor(without, dtype=torch.float64)
    variance = (left_out - left_out.mean()).square().sum() * (len(without) - 1) / len(without)
    return Estimate(value, variance.sqrt().item())


def jackknife_covariance(statistic: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """The covariance of a statistic [n] of tensors [B, ...], in the same way."""
    count = min(GROUPS, len(tensors[0]))
    group = torch.arange(len(tensors[0]), device=tensors[0].device) % count
    without = torch.stack([statistic(*(x[group != g] for x in tensors)) for g in range(count)])
    away = without - without.mean(0)
    return away.t() @ away * (count - 1) / count


def pearson(x: Tensor, y: Tensor) -> float | None:
    x, y = x.flatten().double(), y.flatten().double()
    x, y = x - x.mean(), y - y.mean()
    scale = x.norm() * y.norm()
    return (x @ y / scale).item() if scale > 0 else None


def spearman(x: Tensor, y: Tensor) -> float | None:
    return pearson(ranks(x.flatten()), ranks(y.flatten()))


def ranks(x: Tensor) -> Tensor:
    """Of x [..., N] along the last axis; ties share their mean rank."""
    order = x.contiguous()
    sorted_x = order.sort(-1).values
    low = torch.searchsorted(sorted_x, order, right=False)
    high = torch.searchsorted(sorted_x, order, right=True)
    return (low + high - 1).double() / 2


def varies_within(y: Tensor) -> bool:
    """Whether y [B, P] differs between sequences at a fixed position."""
    y = y.double()
    within = (y - y.mean(0)).square().sum()
    return bool(within > NEGLIGIBLE * (y - y.mean()).square().sum()) and bool(within > 0)


def pearson_within(x: Tensor, y: Tensor) -> float | None:
    """Partial correlation of x and y [B, P] given the position: that of what is left when the mean
    of each position is taken away. None if y is a function of the position: nothing is left."""
    if not varies_within(y):
        return None
    x, y = x.double(), y.double()
    return pearson(x - x.mean(0), y - y.mean(0))


def spearman_within(x: Tensor, y: Tensor) -> float | None:
    """The same of ranks taken at each position; a position at which y is constant says nothing."""
    if not varies_within(y):
        return None
    y = y.double()
    alive = (y - y.mean(0)).square().sum(0) > NEGLIGIBLE * (y - y.mean()).square().sum()
    rank_x, rank_y = (ranks(z[:, alive].double().t()).t() for z in (x, y))
    return pearson(rank_x - rank_x.mean(0), rank_y - rank_y.mean(0))


class PCA(NamedTuple):
    mean: Tensor  # [C]
    axes: Tensor  # [C, C], one component a row, strongest first
    share: Tensor  # [C] of the variance

    def __call__(self, x: Tensor, components: int) -> Tensor:
        return (x.double() - self.mean) @ self.axes[:components].t()


def pca(x: Tensor) -> PCA:
    """Of points [..., C]."""
    x = x.flatten(0, -2).double()
    centred = x - x.mean(0)
    variance, axes = torch.linalg.eigh(centred.t() @ centred)
    variance = variance.flip(0).clamp_min(0)
    share = variance / variance.sum().clamp_min(torch.finfo(torch.float64).tiny)
    return PCA(x.mean(0), axes.flip(1).t(), share)


def participation(share: Tensor) -> float:
    """Effective number of dimensions, 1 / sum of squared shares."""
    return 1 / share.square().sum().item()


def cka(x: Tensor, y: Tensor) -> float:
    """Linear centred kernel alignment of two clouds of the same points [N, C]: 1 if they are equal
    up to rotation and scale, 0 if unrelated."""
    x, y = (z.flatten(0, -2).double() for z in (x, y))
    x, y = x - x.mean(0), y - y.mean(0)
    scale = (x.t() @ x).norm() * (y.t() @ y).norm()
    return ((x.t() @ y).square().sum() / scale).item() if scale > 0 else 0.0


def jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    """[...] bits, 0 to 1, of distributions [..., T]."""
    p, q = p.double(), q.double()
    entropy = [torch.special.entr(x).sum(-1) for x in ((p + q) / 2, p, q)]
    return ((entropy[0] - (entropy[1] + entropy[2]) / 2) / math.log(2)).clamp_min(0)
