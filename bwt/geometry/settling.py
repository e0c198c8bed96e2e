"""Which comes to rest sooner, attention or precision? Slopes on log scales, from where learning
begins.

Attention's distance is taken to two late checkpoints that are left out of the comparison, as

    d(t) = (JS(t, R1) + JS(t, R2) - JS(R1, R2)) / 2

The square root of the Jensen-Shannon divergence is a distance in a Hilbert space (Fuglede and
Topsøe, 2004), so this is the product of the ways from t to R1 and from t to R2: what the two
references have by chance does not enter, and maps that only tremble about one place stay at the
variance of their tremor instead of falling to zero. So does KL at the end of training at a constant
rate.

On log scales, lines from where learning begins through the checkpoints after it have slopes in the
ratio

    ratio = sum log d(t) / d0  over  sum log KL(t) / KL0

which is 1 if distance is proportional to KL, whatever the shape of the curves. d0 and KL0 are the
largest values before learning begins, step 0 included, KL0 at most that of a uniform guess: a frame
that is done by then has no slope left among the checkpoints that follow, and attention may go away
from its end at first.

What is left at the references can be read in two ways, and these are the ends of a range:

    low   the KL of the references is a rest of the way, of which attention has one, too. d(t) lacks
          it, and so must KL: (sqrt KL(t) - sqrt KL(R1)) (sqrt KL(t) - sqrt KL(R2)) stands for it,
          as KL is the square of a way
    high  that KL is what the model cannot learn, and what the references differ by is the tremor
          of the maps, to be taken off d(t) (at most half of it, as it is not well known)

The ratio is the middle of the two, and the interval reaches from the lower end of one's interval to
the upper end of the other's. Each is Fieller's, of the ratios r for which the mean of
log d(t) / d0 - r log KL(t) / KL0 is within 2.5 standard errors of 0, over checkpoints and over
sequences together. Checkpoints of one doubling of the steps count as one: they lie on one curve,
and more of them say nothing new.

A ratio of 2 or 1/2 alone may be a matter of units: small changes of soft attention enter the
divergence squared, a small mass on impossible outcomes enters KL as it is. Freezing weights
(bwt/train/freezing.py) is the test of causes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bwt.geometry import stats
from bwt.records.geometry import Slopes

BEGUN = 0.9  # of the KL before training: below it, learning has begun
TO_GAIN = 2.0  # times the KL of the references: above it, precision is still to be gained
FEWEST = 4  # checkpoints, of two doublings of the steps at least
FALL = 5.0  # of the KL, over them: less is no slope to speak of
ERRORS = 2.5  # standard errors: of few checkpoints, which moreover hang together
RESOLUTION = 1e-9  # bits: below it, distances are rounding

Reading = Callable[[Tensor], Tensor]


def compared(kl: list[float]) -> list[int]:
    """Indices of the checkpoints from which slopes are taken: of these KL, the first is that before
    training and the last two are those of the references. Chosen by KL alone, so that the choice
    does not favour any course of attention."""
    waiting = [i for i, value in enumerate(kl) if value > BEGUN * kl[0]]
    candidates = range(max(waiting, default=0) + 1, len(kl) - 2)
    return [i for i in candidates if kl[i] >= TO_GAIN * max(kl[-2:])]


def slopes(steps: list[int], distance: Tensor, kl: Tensor, tremor: float) -> Slopes | None:
    """Of distance [B, n] and KL [B, n + 2], one column a checkpoint as in `compared`; tremor: the
    part of the distance that may be noise. None if there are too few checkpoints, or KL does not
    fall far enough over them."""
    rows = compared(kl.mean(0).tolist())
    if len(rows) < FEWEST or _doubling(steps[rows[0]]) == _doubling(steps[rows[-1]]):
        return None

    def less_tremor(way: Tensor) -> Tensor:
        return (way - tremor).maximum(way / 2)

    fallen = [_falls(x.double().mean(0), rows)[-1].exp().item() for x in (distance, kl)]
    low, high = (
        _ratio(_Falls(rows, steps, *readings), distance, kl)
        for readings in ((_as_it_is, _less_rest), (less_tremor, _as_it_is))
    )
    if fallen[1] < FALL or low is None or high is None:
        return None
    return Slopes(
        ratio=(low.ratio + high.ratio) / 2,
        low=min(low.low, high.low),
        high=max(low.high, high.high),
        steps=[steps[i] for i in rows],
        attention_factor=fallen[0],
        kl_factor=fallen[1],
    )


class Interval(NamedTuple):
    """A ratio and the ends of its interval."""

    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class _Falls:
    """Of attention and KL, [2, doublings], in one reading of what is left."""

    rows: list[int]
    steps: list[int]
    of_distance: Reading
    of_kl: Reading

    def __call__(self, distance: Tensor, kl: Tensor) -> Tensor:
        read = self.of_distance(distance.double().mean(0)), self.of_kl(kl.double().mean(0))
        falls = torch.stack([_falls(x, self.rows) for x in read])
        doublings: dict[int, list[int]] = {}
        for place, row in enumerate(self.rows):
            doublings.setdefault(_doubling(self.steps[row]), []).append(place)
        return torch.stack([falls[:, places].mean(1) for places in doublings.values()], 1)


def _ratio(falls: _Falls, distance: Tensor, kl: Tensor) -> Interval | None:
    """None if its interval has no ends."""
    found = falls(distance, kl)
    over_sequences = stats.jackknife_covariance(lambda *x: falls(*x).mean(1), distance, kl)
    covariance = found.cov() / found.shape[1] + over_sequences
    y, x = found.mean(1).tolist()
    return fieller(y, x, covariance)


def fieller(y: float, x: float, covariance: Tensor) -> Interval | None:
    """y / x and the ends of its interval, from the covariance of (y, x). None if x might be 0."""
    (yy, xy), (_, xx) = (ERRORS**2 * covariance).tolist()
    a, b, c = x * x - xx, x * y - xy, y * y - yy
    if not a > 0:
        return None
    reach = math.sqrt(max(b * b - a * c, 0))
    return Interval(y / x, (b - reach) / a, (b + reach) / a)


def _falls(values: Tensor, rows: list[int]) -> Tensor:
    """How far the logarithm has come down at each of the rows from where it was before them."""
    logs = values.clamp_min(RESOLUTION).log()
    return logs[: rows[0]].max() - logs[rows]


def _doubling(step: int) -> int:
    """How many times 1 was doubled up to the step."""
    return step.bit_length() - 1


def _as_it_is(values: Tensor) -> Tensor:
    return values


def _less_rest(kl: Tensor) -> Tensor:
    way = kl.sqrt()
    return (way - way[-2]) * (way - way[-1])
