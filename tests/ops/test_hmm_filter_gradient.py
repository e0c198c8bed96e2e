"""The gradients of hmm_filter on the CPU, against the NumPy float64 reference."""

import numpy as np
import pytest
import torch
from helpers.hmm_models import DTYPES, MIXED, OWN, SHARED, arrays, assert_close, draw, draw_lengths
from helpers.tolerances import hmm_error

from bwt.ops.hmm_filter import hmm_filter
from bwt.reference.hmm_filter import HMMFilterOutput
from bwt.reference.hmm_filter import hmm_filter as reference_filter
from bwt.reference.hmm_filter import hmm_smooth as reference_smooth

BACKENDS = ["native", "torch"]
OUTPUTS = ("filtered", "predicted", "log_likelihood")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("S", [3, 12])
@pytest.mark.parametrize("own", MIXED)
def test_any_parameter_may_be_shared(dtype, S, own):
    """The gradient of a shared parameter is the sum of those of its copies."""
    results = []
    for expand in (False, True):
        y, *parameters = draw(11, 9, S, 4, dtype, own=own)
        leaves = [x.requires_grad_() for x in parameters]
        if expand:
            full = [(11, S), (11, S, S), (11, S, 4)]
            parameters = [x.expand(size) for x, size in zip(leaves, full, strict=True)]
        got = hmm_filter(y, *parameters)
        loss = sum((x.double() * torch.linspace(-1, 1, x.numel()).view(x.shape)).sum() for x in got)
        results.append(torch.autograd.grad(loss, leaves))
    for one, two in zip(*results, strict=True):
        scale = max(1.0, float(two.abs().max()))
        torch.testing.assert_close(one, two, rtol=0, atol=scale * hmm_error(dtype, S, 9 * 11))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("S", [4, 13])
@pytest.mark.parametrize("own", [OWN, SHARED])
def test_impossible_sequences_have_no_gradient(backend, S, own):
    """The gradient of a batch is that of its possible sequences alone."""
    y, *parameters = draw(40, 8, S, 6, own=own, zeros=0.6)
    lengths = draw_lengths(40, 8).clamp_min(1)
    full = [x.requires_grad_() for x in parameters]
    got = hmm_filter(y, *full, lengths=lengths, backend=backend)
    fine = got.log_likelihood.isfinite()
    assert 0 < fine.sum() < 40
    weights = [torch.randn_like(x) for x in got]

    def gradients(outputs, weights, leaves):
        return torch.autograd.grad(
            outputs, leaves, weights, materialize_grads=True, retain_graph=True
        )

    found = gradients(list(got), weights, full)
    part = [x.detach()[fine] if each else x.detach() for x, each in zip(full, own, strict=True)]
    part = [x.requires_grad_() for x in part]
    alone = hmm_filter(y[fine], *part, lengths=lengths[fine], backend=backend)
    expected = gradients(list(alone), [w[fine] for w in weights], part)
    for x, want, each in zip(found, expected, own, strict=True):
        assert x.isfinite().all()
        if each:
            assert not x[~fine].any()
            x = x[fine]
        torch.testing.assert_close(x, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("backend,S", [("native", 1), ("native", 3), ("native", 9), ("torch", 3)])
@pytest.mark.parametrize("own", [OWN, SHARED, (False, True, False)])
def test_gradcheck(backend, own, S):
    y, *parameters = draw(3, 3, S, 2, own=own, missing=0.2)
    lengths = torch.tensor([3, 0, 2])
    inputs = [x.requires_grad_() for x in parameters]
    for chosen in (*OUTPUTS, None):

        def outputs(*parameters, chosen=chosen):
            got = hmm_filter(y, *parameters, lengths=lengths, backend=backend)
            return tuple(got) if chosen is None else getattr(got, chosen)

        assert torch.autograd.gradcheck(outputs, inputs)


def expected_counts(y, initial, transition, emission):
    """Of starts, transitions and symbols given one sequence, by forward-backward in NumPy."""
    smoothed = reference_smooth(y[None], initial, transition, emission).smoothed[0]
    filtered, predicted, _ = (
        x[0] for x in reference_filter(y[None], initial, transition, emission)
    )
    transitions = np.zeros_like(transition)
    symbols = np.zeros_like(emission)
    for t, symbol in enumerate(y):
        if t > 0:
            ratio = smoothed[t] / predicted[t]
            transitions += filtered[t - 1][:, None] * transition * ratio[None]
        if symbol >= 0:
            symbols[:, symbol] += smoothed[t]
    return smoothed[0], transitions, symbols


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("S", [5, 20])
@pytest.mark.parametrize("own", [OWN, SHARED])
def test_gradient_of_the_likelihood_is_expected_counts(dtype, S, own):
    """d log p / d parameter = expected count / parameter, for each of the three."""
    B, T, V = 6, 90, 4
    y, *parameters = draw(B, T, S, V, dtype, own=own, missing=0.1)
    leaves = [x.requires_grad_() for x in parameters]
    found = torch.autograd.grad(hmm_filter(y, *leaves).log_likelihood.sum(), leaves)
    dims = (1, 2, 2)
    for b in range(B):
        model = [x[b] if x.ndim > d else x for x, d in zip(arrays(leaves), dims, strict=True)]
        counts = expected_counts(y[b].numpy(), *model)
        if b == 0:
            totals = [[count] for count in counts]
        else:
            for total, count in zip(totals, counts, strict=True):
                total.append(count)
    for gradient, leaf, total, each in zip(found, leaves, totals, own, strict=True):
        want = np.stack(total) if each else np.sum(total, axis=0)
        got = gradient.double() * leaf.detach().double()
        assert_close("counts", got, want, hmm_error(dtype, S, T))


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("output", HMMFilterOutput._fields)
@pytest.mark.parametrize("steps", [0, 1])
def test_a_parameter_that_enters_nothing_has_a_gradient_of_zero(backend, steps, output):
    y, *parameters = draw(3, steps, 4, 2)
    leaves = [x.requires_grad_() for x in parameters]
    got = getattr(hmm_filter(y, *leaves, backend=backend), output)
    gradients = torch.autograd.grad(got.square().sum(), leaves)
    assert not gradients[1].any()
    assert bool(gradients[2].any()) == (steps == 1 and output != "predicted")


@pytest.mark.parametrize("S,V", [(3, 2), (10, 3)])
def test_backward_is_the_slope_of_the_reference(S, V):
    y, *parameters = draw(2, 6, S, V, missing=0.2)
    leaves = [x.requires_grad_() for x in parameters]
    got = hmm_filter(y, *leaves)
    weights = [torch.randn_like(x) for x in got]
    found = torch.autograd.grad(got, leaves, weights)
    rng = np.random.default_rng(0)
    for i, gradient in enumerate(found):
        direction = rng.standard_normal(gradient.shape)

        def loss(step, i=i, direction=direction):
            moved = arrays(leaves)
            moved[i] = moved[i] + step * direction
            outputs = reference_filter(y.numpy(), *moved)
            return sum((w.numpy() * x).sum() for w, x in zip(weights, outputs, strict=True))

        slope = (loss(1e-6) - loss(-1e-6)) / 2e-6
        size = np.abs(gradient.numpy() * direction).sum()
        # Central differences: rounding over the step.
        np.testing.assert_allclose((gradient.numpy() * direction).sum(), slope, atol=1e-8 * size)
