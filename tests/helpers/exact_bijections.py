"""bijection_posterior by its definition, in whole numbers: a sum over all V! bijections.

Every float64 is a whole number over a power of two, so that the weight of a bijection is one too,
whatever the length and however small the channel. Nothing is rounded before the last division.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np


class Exact(NamedTuple):
    posterior: np.ndarray  # [K, V]
    entropy: np.ndarray  # [K]
    log_evidence: np.ndarray  # [K]


def whole_numbers(channel) -> tuple[list[list[int]], int]:
    """The channel times 2^bits, for the fewest bits that leave no fraction."""
    ratios = [[float(p).as_integer_ratio() for p in row] for row in channel]
    bits = max(below.bit_length() - 1 for row in ratios for _, below in row)
    return [[above * (2**bits // below) for above, below in row] for row in ratios], bits


class Weights:
    """The weight of each bijection, and its derivative by each entry of the channel, scaled by
    one power of two for all."""

    def __init__(self, channel, slopes: bool):
        self.channel, self.bits = whole_numbers(channel)
        self.symbols = range(len(self.channel))
        self.bijections = list(itertools.permutations(self.symbols))
        self.weight = [1] * len(self.bijections)
        self.slope = [{entry: 0 for entry in self.entries()} for _ in self.bijections if slopes]
        self.shown = 0

    def entries(self):
        return itertools.product(self.symbols, repeat=2)

    def observe(self, key: int, value: int) -> None:
        for i, bijection in enumerate(self.bijections):
            factor = self.channel[bijection[key]][value]
            if self.slope:
                slope = {entry: old * factor for entry, old in self.slope[i].items()}
                slope[bijection[key], value] += self.weight[i] << self.bits
                self.slope[i] = slope
            self.weight[i] *= factor
        self.shown += 1

    def by_value(self, key: int, numbers) -> list[int]:
        """Sums of a number per bijection, over those that give the key each value."""
        sums = [0 for _ in self.symbols]
        for bijection, number in zip(self.bijections, numbers, strict=True):
            sums[bijection[key]] += number
        return sums

    def log_evidence(self) -> float:
        total = sum(self.weight)
        power = total.bit_length()
        log_sum = math.log(total / (1 << power)) + (power - self.bits * self.shown) * math.log(2)
        return log_sum - math.log(len(self.bijections))


def exact(keys, values, channel) -> Exact:
    """One sequence; the evidence must be possible."""
    weights = Weights(channel, slopes=False)
    posterior, log_evidence = [], []
    for key, value in zip(keys, values, strict=True):
        row = weights.by_value(key, weights.weight)
        posterior.append([part / sum(row) for part in row])
        weights.observe(key, value)
        log_evidence.append(weights.log_evidence())
    posterior = np.array(posterior)
    return Exact(posterior, entropy_bits(posterior), np.array(log_evidence))


def entropy_bits(posterior) -> np.ndarray:
    return -(posterior * np.log2(np.where(posterior > 0, posterior, 1.0))).sum(-1)


def surprise_bits(part: int, total: int) -> float:
    """-log2(part / total), beyond the range of a float too."""
    shift = total.bit_length() - part.bit_length()
    return shift - math.log2((part << shift) / total)


def exact_gradient(keys, values, channel, d_posterior, d_entropy, d_log_evidence) -> np.ndarray:
    """d(sum of the outputs, weighted) / d(channel), times the entry of the channel where it is not
    zero. An infinity says that a double cannot hold it."""
    weights = Weights(channel, slopes=True)
    unit = {(v, y): weights.channel[v][y] or 1 << weights.bits for v, y in weights.entries()}
    gradient = {entry: 0.0 for entry in unit}  # Python's numbers do not warn of inf - inf
    for t, (key, value) in enumerate(zip(keys, values, strict=True)):
        row = weights.by_value(key, weights.weight)
        total = sum(row)
        # d(entropy)/dp = -log2 p, less a constant that cancels as the row sums to one; but for an
        # impossible value, which stays impossible, it is taken for 0.
        by_p = [
            d + d_entropy[t] * (surprise_bits(part, total) if part else 1 / math.log(2))
            for d, part in zip(d_posterior[t], row, strict=True)
        ]
        for entry in weights.entries():
            slopes = weights.by_value(key, (slope[entry] for slope in weights.slope))
            for part, slope, d in zip(row, slopes, by_p, strict=True):
                # The quotient rule, so that what cancels cancels exactly.
                change = (slope * total - part * sum(slopes)) * unit[entry]
                gradient[entry] += float(d) * quotient(change, total**2 << weights.bits)
        weights.observe(key, value)
        total = sum(weights.weight)
        for entry in weights.entries():
            slope = sum(slope[entry] for slope in weights.slope) * unit[entry]
            gradient[entry] += float(d_log_evidence[t]) * quotient(slope, total << weights.bits)
    return np.reshape(list(gradient.values()), np.shape(channel))


def quotient(a: int, b: int) -> float:
    try:
        return a / b
    except OverflowError:
        return math.inf if a > 0 else -math.inf


def exact_rows(keys, values, channel, steps) -> np.ndarray:
    """The rows of a few steps of a long sequence, from its counts: factors that all bijections
    share are left out before anything is multiplied."""
    keys, values = np.asarray(keys), np.asarray(values)
    numbers, _ = whole_numbers(channel)
    distinct = sorted({number for row in numbers for number in row})
    place = {number: i for i, number in enumerate(distinct)}
    bijections = list(itertools.permutations(range(len(numbers))))
    rows = []
    for t in steps:
        counts = np.zeros((len(bijections), len(distinct)), dtype=int)
        shown = np.zeros((len(numbers), len(numbers)), dtype=int)
        np.add.at(shown, (keys[:t], values[:t]), 1)
        for i, bijection in enumerate(bijections):
            for key, value in zip(*shown.nonzero(), strict=True):
                counts[i, place[numbers[bijection[key]][value]]] += shown[key, value]
        row = [0] * len(numbers)
        for bijection, count in zip(bijections, (counts - counts.min(0)).tolist(), strict=True):
            weight = math.prod(number**n for number, n in zip(distinct, count, strict=True))
            row[bijection[keys[t]]] += weight
        rows.append([part / sum(row) for part in row])
    return np.array(rows)
