"""hmm_filter and hmm_smooth in eager torch for sequences whose probabilities leave the range of
floats: unnormalised, in float64, with an exponent for each state that carries no gradient."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

NOTHING = -(2**40)  # the exponent of 0 where sums are aligned
LARGEST = 1e100  # of adjoints: that of a state that is not reached may grow without bound


class Wide(NamedTuple):
    """mantissa * 2^exponent. A 0 has an exponent, too, which its adjoint is relative to."""

    mantissa: Tensor
    exponent: Tensor  # int64

    @classmethod
    def of(cls, x: Tensor, exponent: Tensor | int = 0) -> "Wide":
        own = torch.frexp(x.detach()).exponent.long()
        mantissa = scaled(x, -own)
        if mantissa.requires_grad:
            mantissa.register_hook(lambda g: g.nan_to_num(0.0).clamp(-LARGEST, LARGEST))
        return cls(mantissa, own + exponent)

    def times(self, other: "Wide") -> "Wide":
        return Wide.of(self.mantissa * other.mantissa, self.exponent + other.exponent)

    def sum(self, dim: int) -> "Wide":
        zero = self.mantissa.detach() == 0
        largest = torch.where(zero, NOTHING, self.exponent).amax(dim, keepdim=True)
        largest = torch.where(largest == NOTHING, self.exponent.amax(dim, keepdim=True), largest)
        total = scaled(self.mantissa, self.exponent - largest).sum(dim)
        return Wide.of(total, largest.squeeze(dim))

    def over(self, other: "Wide") -> Tensor:
        """As floats; 0 where the other is 0."""
        zero = other.mantissa == 0
        divided = self.mantissa / torch.where(zero, 1.0, other.mantissa)
        return torch.where(zero, 0.0, scaled(divided, self.exponent - other.exponent))

    def log(self) -> Tensor:
        zero = self.mantissa == 0
        log = torch.where(zero, 1.0, self.mantissa).log() + self.exponent.double() * math.log(2)
        return torch.where(zero, -math.inf, log)

    def where(self, mask: Tensor, other: "Wide") -> "Wide":
        pairs = zip(self, other, strict=True)
        return Wide(*(torch.where(mask, one, two) for one, two in pairs))

    def rows(self) -> "Wide":
        return Wide(self.mantissa[:, None], self.exponent[:, None])


def scaled(x: Tensor, exponent: Tensor) -> Tensor:
    """x * 2^exponent in two steps, as the power alone may overflow."""
    half = exponent.clamp(-2000, 2000) // 2
    rest = exponent.clamp(-2000, 2000) - half
    return x * torch.exp2(half.double()) * torch.exp2(rest.double())


def _doubled(x: Tensor) -> Tensor:
    """In float64; derivatives that overflow the dtype are its largest number."""
    most, doubled = torch.finfo(x.dtype).max, x.double()
    if doubled is not x and doubled.requires_grad:
        doubled.register_hook(lambda g: g.clamp(-most, most))
    return doubled


class Model:
    """The arguments in float64, one set of parameters for each sequence."""

    def __init__(self, observations, initial, transition, emission, lengths):
        self.batch, self.steps = observations.shape
        self.initial = Wide.of(_doubled(initial).expand(self.batch, -1))
        self.matrix = Wide.of(_doubled(transition).expand(self.batch, -1, -1))
        self.emission = _doubled(emission).expand(self.batch, -1, -1)
        self.observations = observations.long()
        self.lengths = lengths

    def active(self, t: int) -> Tensor:
        if self.lengths is None:
            return torch.ones_like(self.observations[:, 0], dtype=torch.bool)
        return self.lengths > t

    def shown(self, t: int) -> Wide:
        """p(y_t | z_t = .) [B, S]; ones where y_t is missing or beyond the length."""
        y = torch.where(self.active(t), self.observations[:, t], -1)
        places = y.clamp_min(0)[:, None, None].expand(-1, self.emission.shape[1], 1)
        found = self.emission.gather(2, places)[:, :, 0]
        return Wide.of(torch.where((y < 0)[:, None], 1.0, found))

    def joints(self):
        """(before, joint) of each step: p(z_t, y_1..t-1) and p(z_t, y_1..t)."""
        before = self.initial
        for t in range(self.steps):
            joint = before.times(self.shown(t))
            yield before, joint
            columns = Wide(joint.mantissa[:, :, None], joint.exponent[:, :, None])
            before = columns.times(self.matrix).sum(1)


def hmm_filter_wide(observations, initial, transition, emission, lengths):
    """Returns filtered, predicted, log_likelihood in the dtype of the parameters."""
    model = Model(observations, initial, transition, emission, lengths)
    evidence = Wide.of(torch.ones_like(observations[:, 0], dtype=torch.float64))
    filtered, predicted = [], []
    for t, (before, joint) in enumerate(model.joints()):
        active = model.active(t)
        column = Wide(evidence.mantissa[:, None], evidence.exponent[:, None])
        predicted.append(torch.where(active[:, None], before.over(column), 0.0))
        evidence = joint.sum(1).where(active, evidence)
        column = Wide(evidence.mantissa[:, None], evidence.exponent[:, None])
        filtered.append(torch.where(active[:, None], joint.over(column), 0.0))
    log_likelihood = evidence.log()
    outputs = (torch.stack(filtered, 1), torch.stack(predicted, 1))
    impossible = log_likelihood.isneginf()
    # An impossible sequence has no gradient.
    outputs = [torch.where(impossible[:, None, None], x.detach(), x) for x in outputs]
    return *(x.to(initial.dtype) for x in outputs), log_likelihood.to(initial.dtype)


def hmm_smooth_wide(observations, initial, transition, emission, lengths) -> Tensor:
    model = Model(observations, initial, transition, emission, lengths)
    joints = [joint for _, joint in model.joints()]
    future = Wide.of(torch.ones_like(joints[0].mantissa))
    smoothed = []
    for t in reversed(range(model.steps)):
        joint = joints[t].times(future)
        total = joint.sum(1)
        column = Wide(total.mantissa[:, None], total.exponent[:, None])
        active = model.active(t)[:, None]
        smoothed.append(torch.where(active, joint.over(column), 0.0))
        step = model.matrix.times(model.shown(t).times(future).rows()).sum(2)
        future = step.where(active, future)
    return torch.stack(smoothed[::-1], 1).to(initial.dtype)
