"""Helpers of the tests of hmm_filter's Triton kernels: cases, values and slopes in float64."""

from typing import NamedTuple

import numpy as np
import pytest
import torch

from bwt.reference.hmm_filter import hmm_filter as reference_filter
from helpers.hmm_models import OWN, SHARED

MODULE = "bwt.kernels.hmm_filter"
DTYPES = {"fp32": torch.float32, "fp64": torch.float64}
DTYPES |= {"fp16": torch.float16, "bf16": torch.bfloat16}
OUTPUTS = ("filtered", "predicted", "log_likelihood")
PARAMETERS = ("initial", "transition", "emission")


class Case(NamedTuple):
    path: str
    B: int
    T: int
    S: int
    V: int
    own: tuple[bool, bool, bool] = OWN

    @property
    def name(self):
        owner = {OWN: "own", SHARED: "shared"}.get(self.own, "mixed")
        return f"{self.path}-B{self.B}-T{self.T}-S{self.S}-V{self.V}-{owner}"


def cases(*listed):
    return pytest.mark.parametrize("case", listed, ids=lambda case: case.name)


def draw(mode, case, *, integers=torch.int64, missing=0.2, ragged=True):
    """(observations, parameters by name, lengths); the first sequence has all steps and the last
    of several has none."""
    _, B, T, S, V, own = case
    generator = torch.Generator().manual_seed(B + T + S + V)
    y = torch.randint(0, V, (B, T), generator=generator)
    y[torch.rand((B, T), generator=generator) < missing] = -1
    lengths = None
    if ragged:
        lengths = torch.randint(1, T + 1, (B,), generator=generator)
        lengths[-1:], lengths[:1] = 0, T
    shapes = {"initial": (S,), "transition": (S, S), "emission": (S, V)}
    parameters = {}
    for (name, shape), each in zip(shapes.items(), own, strict=True):
        x = torch.empty((B, *shape) if each else shape, dtype=torch.float64)
        x.exponential_(generator=generator)
        parameters[name] = (x / x.sum(-1, keepdim=True)).to(DTYPES[mode])
    return y.to(integers), parameters, lengths


def draw_gradients(mode, case, incoming=OUTPUTS):
    _, B, T, S, _, _ = case
    generator = torch.Generator().manual_seed(B * T * S)
    shapes = {"filtered": (B, T, S), "predicted": (B, T, S), "log_likelihood": (B,)}
    gradients = {
        name: torch.randn(shape, generator=generator).to(DTYPES[mode])
        for name, shape in shapes.items()
    }
    return {name: x if name in incoming else None for name, x in gradients.items()}


def plain_filter(y, initial, transition, emission, lengths):
    """The recursion; parameters [..., B, S], [..., B, S, S], [..., B, S, V] may be complex."""
    (B, T), S = y.shape, initial.shape[-1]
    shape = np.broadcast_shapes(
        (B,), initial.shape[:-1], transition.shape[:-2], emission.shape[:-2]
    )
    emission = np.broadcast_to(emission, (*shape, *emission.shape[-2:]))
    each, states = np.arange(B)[:, None], np.arange(S)[None, :]
    kind = np.result_type(initial, transition, emission)
    filtered, predicted = (np.zeros((*shape, T, S), kind) for _ in range(2))
    log_likelihood = np.zeros(shape, kind)
    p = np.broadcast_to(initial, (*shape, S)).astype(kind)
    for t in range(T):
        now = np.ones(B, bool) if lengths is None else t < lengths
        column = emission[..., each, states, np.maximum(y[:, t], 0)[:, None]]
        u = p * np.where((y[:, t] < 0)[:, None], 1.0, column)
        c = u.sum(-1)
        possible = c.real != 0
        f = np.where(possible[..., None], u / np.where(possible, c, 1.0)[..., None], 0)
        predicted[..., t, :] = np.where(now[:, None], p, 0)
        filtered[..., t, :] = np.where(now[:, None], f, 0)
        log_likelihood += np.where(now & possible, np.log(np.where(possible, c, 1.0)), 0)
        log_likelihood = np.where(now & ~possible, -np.inf, log_likelihood)
        p = np.einsum("...i,...ij->...j", f, transition)
    return filtered, predicted, log_likelihood


def batched(parameters):
    """[B or 1, ...] in float64."""
    dims = {"initial": 1, "transition": 2, "emission": 2}
    return {n: (x if x.ndim > dims[n] else x[None]).double().numpy() for n, x in parameters.items()}


def expect(y, parameters, lengths):
    return reference_filter(y, **parameters, lengths=lengths)._asdict()


def slopes(y, parameters, lengths, gradients, directions):
    """The derivative of sum(gradients * outputs) along `directions` [K, size of a parameter] of
    each parameter, [B or 1, K]: by a step so small that its square is nothing, along i."""
    lengths = None if lengths is None else lengths.numpy()
    g = {n: None if x is None else x.double().numpy() for n, x in gradients.items()}
    arrays, step, found = batched(parameters), 1e-100, {}
    for name, d in directions.items():
        d = d.reshape(-1, 1, *arrays[name].shape[1:])
        moved = arrays | {name: arrays[name] + 1j * step * d}
        outputs = dict(zip(OUTPUTS, plain_filter(y.numpy(), **moved, lengths=lengths), strict=True))
        possible = np.isfinite(outputs["log_likelihood"].real)
        total = np.zeros(possible.shape)  # [K, B]
        for output, value in outputs.items():
            if g[output] is not None:
                terms = g[output] * value.imag / step
                total += np.where(possible, terms.reshape(*total.shape, -1).sum(-1), 0)
        own = parameters[name].ndim == arrays[name].ndim
        found[name] = total.T if own else total.sum(1)[None]
    return found


def draw_directions(parameters):
    """All entries one by one where they are few, else some random mixtures."""
    found = {}
    for name, x in batched(parameters).items():
        size = x[0].size
        rng = np.random.default_rng(size)
        found[name] = np.eye(size) if size <= 128 else rng.standard_normal((3, size))
    return found


def compute(call, case, y, parameters, lengths, gradients):
    inputs = (y, *parameters.values(), lengths)
    outputs = call("hmm_filter_forward", *inputs, path=case.path)
    found = dict(zip(OUTPUTS, outputs, strict=True))
    grads = call("hmm_filter_backward", *gradients.values(), *inputs, *outputs, path=case.path)
    return found, dict(zip(PARAMETERS, grads, strict=True))


def assert_agrees(mode, case, parameters, got, grads, expected, expected_slopes, directions):
    """A step has relative errors of at most (S + 6) eps, as nothing cancels, and they add up over
    the steps; adjoints have a few of them, relative to the largest entry, as there signs differ."""
    unit = torch.finfo(DTYPES[mode]).eps * (case.S + 6) * max(case.T, 1)
    for name, target in expected.items():
        actual = got[name].double().numpy()
        assert actual.shape == target.shape and got[name].dtype == DTYPES[mode], name
        size = max(1.0, np.abs(target[np.isfinite(target)]).max(initial=0))
        np.testing.assert_allclose(actual, target, rtol=0, atol=unit * size, err_msg=name)
    for name in OUTPUTS[:2]:
        np.testing.assert_array_equal(got[name].numpy()[expected[name] == 0], 0, err_msg=name)
    for name, target in expected_slopes.items():
        actual = grads[name].double().numpy()
        assert actual.shape == parameters[name].shape and grads[name].dtype == DTYPES[mode], name
        assert np.isfinite(actual).all(), name
        actual = actual.reshape(target.shape[0], -1) @ directions[name].T
        size = max(1.0, np.abs(target).max(initial=0))
        np.testing.assert_allclose(actual, target, rtol=0, atol=4 * unit * size, err_msg=name)


def check_halves(call, mode, case):
    """The forward pass, computed in float32 and rounded once."""
    y, parameters, lengths = draw(mode, case)
    found = call("hmm_filter_forward", y, *parameters.values(), lengths, path=case.path)
    wide = {name: x.double() for name, x in parameters.items()}
    half, unit = torch.finfo(DTYPES[mode]), torch.finfo(torch.float32).eps * (case.S + 6) * case.T
    for (name, target), got in zip(expect(y, wide, lengths).items(), found, strict=True):
        is_log = name == "log_likelihood"
        assert got.dtype == (torch.float32 if is_log else DTYPES[mode]), name
        size = max(1.0, np.abs(target).max(initial=0)) if is_log else 1.0
        rounding = 0.0 if is_log else half.eps / 2
        allowed = unit * size + half.smallest_normal * half.eps * (not is_log)
        np.testing.assert_allclose(
            got.double().numpy(), target, rtol=rounding, atol=allowed, err_msg=name
        )


def check(call, mode, case, incoming=OUTPUTS, change=None, **options):
    y, parameters, lengths = draw(mode, case, **options)
    if change is not None:
        change(y, parameters, lengths)
    gradients = draw_gradients(mode, case, incoming)
    got, grads = compute(call, case, y, parameters, lengths, gradients)
    directions = draw_directions(parameters)
    expected = expect(y, parameters, lengths)
    expected_slopes = slopes(y, parameters, lengths, gradients, directions)
    everything = (mode, case, parameters, got, grads, expected, expected_slopes, directions)
    assert_agrees(*everything)
    return everything
