"""Filtering, smoothing and derivatives of one sequence in exact arithmetic.

A float is an integer over a power of two, so all that recursions add and multiply are integers of
any length; only what comes out is rounded, once.
"""

import math
from typing import NamedTuple

import numpy as np

from helpers.oracles import kept


class Exact(NamedTuple):
    filtered: np.ndarray  # [T, S]
    predicted: np.ndarray  # [T, S]
    smoothed: np.ndarray  # [T, S]
    log_likelihood: float


class Integers(NamedTuple):
    """The parameters times 2^bits."""

    initial: list  # [S]
    transition: list  # [S][S]
    emission: list  # [S][V + 1]; the last is for a missing observation, y = -1
    bits: int


def quotient(a: int, b: int) -> float:
    try:
        return a / b
    except OverflowError:
        return math.inf if a > 0 else -math.inf


def integers(initial, transition, emission) -> Integers:
    ratios = [
        [[float(x).as_integer_ratio() for x in row] for row in np.atleast_2d(np.asarray(table))]
        for table in (initial, transition, emission)
    ]
    bits = max(d.bit_length() - 1 for table in ratios for row in table for _, d in row)
    scaled = [[[n * ((1 << bits) // d) for n, d in row] for row in table] for table in ratios]
    [initial], transition, emission = scaled
    return Integers(initial, transition, [[*row, 1 << bits] for row in emission], bits)


def times(row, matrix):
    """row [S] times matrix [S][S]; most entries of interest are 0."""
    found = [0] * len(matrix[0])
    for x, weights in zip(row, matrix, strict=True):
        if x:
            for j, weight in enumerate(weights):
                if weight:
                    found[j] += x * weight
    return found


def product(a: int, b: int) -> int:
    """All but exact: of 300 leading bits each."""
    cut_a, cut_b = (max(x.bit_length() - 300, 0) for x in (a, b))
    return ((a >> cut_a) * (b >> cut_b)) << (cut_a + cut_b)


def shares(row):
    total = sum(row)
    return [quotient(x, total) if total else 0.0 for x in row]


def forward(y, model):
    """p(z_t, y_1..t-1) and p(z_t, y_1..t) for all t, as integers."""
    before, joint = [model.initial], []
    for t, symbol in enumerate(y):
        if t > 0:
            before.append(times(joint[-1], model.transition))
        joint.append([p * e[symbol] for p, e in zip(before[-1], model.emission, strict=True)])
    return before, joint


def shortened(y, model):
    """The same, each step's divided by the powers of two that all its numbers have, and how many
    these were: models of few bits stay short."""
    before, joint, dropped = [model.initial], [], 0
    for t, symbol in enumerate(y):
        if t > 0:
            before.append(times(joint[-1], model.transition))
        row = [p * e[symbol] for p, e in zip(before[-1], model.emission, strict=True)]
        shift = max(min(((x & -x).bit_length() - 1 for x in row if x), default=0), 0)
        joint.append([x >> shift for x in row])
        dropped += shift
    return before, joint, dropped


@kept
def exact(y, initial, transition, emission) -> Exact:
    y = [int(symbol) for symbol in y]
    model = integers(initial, transition, emission)
    before, joint, dropped = shortened(y, model)
    # predicted is relative to what led there, which is 0 after an impossible observation.
    led = [1, *(sum(row) for row in joint[:-1])]
    predicted = np.array(
        [
            [quotient(p, c << model.bits) if c else 0.0 for p in row]
            for row, c in zip(before, led, strict=True)
        ]
    )
    filtered = np.array([shares(row) for row in joint])
    total = sum(joint[-1])
    if total == 0:
        return Exact(filtered, predicted, np.zeros_like(filtered), -math.inf)
    smoothed = np.zeros_like(filtered)
    future = [1] * len(model.initial)
    for t in reversed(range(len(y))):
        smoothed[t] = shares([product(u, f) for u, f in zip(joint[t], future, strict=True)])
        seen = [e[y[t]] * f for e, f in zip(model.emission, future, strict=True)]
        future = [sum(a * s for a, s in zip(row, seen, strict=True)) for row in model.transition]
        shift = min(((x & -x).bit_length() - 1 for x in future if x), default=0)
        future = [x >> shift for x in future]
    size = total.bit_length()
    log = math.log(total / (1 << size)) + (size + dropped - 2 * len(y) * model.bits) * math.log(2)
    return Exact(filtered, predicted, smoothed, log)


@kept
def slopes(y, initial, transition, emission, weights):
    """The derivative of sum(weights * outputs) by each entry of a parameter, and the sum of its
    terms' sizes: [2, ...] for each parameter. Weights: filtered, predicted [T, S], likelihood."""
    y = [int(symbol) for symbol in y]
    model = integers(initial, transition, emission)
    before, joint = forward(y, model)
    parameters = {"initial": initial, "transition": transition, "emission": emission}
    found = []
    for name, parameter in parameters.items():
        pair = np.zeros((2, *np.shape(parameter)))
        for place in np.ndindex(np.shape(parameter)):
            pair[(slice(None), *place)] = _slope(y, model, before, joint, name, place, weights)
        found.append(pair)
    return found


def _slope(y, model, before, joint, name, place, weights):
    """A parameter moves by 2^-bits: what is exact stays integer."""
    S, scale = len(model.initial), 1 << model.bits
    moved = [int(name == "initial" and place == (j,)) for j in range(S)]
    c, c_slope, moved_joint = 1, 0, moved
    total, size = 0.0, 0.0

    def add(weight, numerator, denominator):
        nonlocal total, size
        if weight and numerator:
            term = weight * quotient(numerator, denominator)
            total, size = total + term, size + abs(term)

    for t, symbol in enumerate(y):
        if t > 0:
            moved = times(moved_joint, model.transition)
            if name == "transition":
                moved[place[1]] += joint[t - 1][place[0]]
        for j in range(S):
            add(float(weights[1][t, j]), moved[j] * c - before[t][j] * c_slope, c * c)
        moved_joint = [m * e[symbol] for m, e in zip(moved, model.emission, strict=True)]
        if name == "emission" and place[1] == symbol:
            moved_joint[place[0]] += before[t][place[0]]
        c, c_slope = sum(joint[t]), sum(moved_joint)
        for j in range(S):
            change = (moved_joint[j] * c - joint[t][j] * c_slope) * scale
            add(float(weights[0][t, j]), change, c * c)
    add(float(weights[2]), c_slope * scale, c)
    return total, size
