"""Tests of the public ops as functions of the device: the same body runs on a CPU today and on a
GPU where there is one. All compare with the NumPy reference in float64."""

from functools import partial

import numpy as np
import torch

from bwt import ops, reference
from helpers import attention_triton, hmm_triton, scan_inputs
from helpers.op_calls import OpCalls
from helpers.tolerances import gelu_error, norm_error, rounding, subset_sums

ALL = ("weights", "entropy")


def odd(x, device):
    """Equal values on the device at strides no kernel is written for: every other element of a
    larger tensor whose axes are in reverse order, at an offset."""
    wide = torch.zeros([2 * n + 1 for n in reversed(x.shape)], dtype=x.dtype, device=device)
    view = wide.permute(*reversed(range(x.ndim)))[(slice(1, None, 2),) * x.ndim]
    view.copy_(x)
    return view


def dense(x, device):
    return x.to(device)


LAYOUTS = {"dense": dense, "odd": odd}


def leaves(tensors, place):
    return [place(x).detach().requires_grad_() for x in tensors]


def to_cpu(tensors):
    return [None if x is None else x.detach().cpu() for x in tensors]


def attention(device, mode, shape, layout, causal=True):
    x, gradients = attention_triton.draw(mode, shape)
    place = partial(LAYOUTS[layout], device=device)
    qkv = leaves(x.values(), place)
    got = ops.attention(*qkv, causal=causal, capture=ALL)
    outputs = [getattr(got, name) for name in ("out", "weights", "entropy", "lse")]
    incoming = [place(g).to(o.dtype) for g, o in zip(gradients.values(), outputs, strict=True)]
    found = torch.autograd.grad(outputs, qkv, incoming)
    names = (*attention_triton.FORWARD, *attention_triton.BACKWARD)
    values = to_cpu([got.out, got.lse, got.weights, got.entropy, *found])
    expected = attention_triton.expect(x, gradients, causal=causal)
    allowed = attention_triton.bounds(mode, x, gradients, expected, causal=causal)
    attention_triton.assert_agrees(dict(zip(names, values, strict=True)), expected, allowed)
    assert got.out.device.type == torch.device(device).type


def hmm_filter(device, mode, case, layout):
    y, parameters, lengths = hmm_triton.draw(mode, case)
    gradients = hmm_triton.draw_gradients(mode, case)
    place = partial(LAYOUTS[layout], device=device)
    inputs = leaves(parameters.values(), place)
    got = ops.hmm_filter(place(y), *inputs, lengths=place(lengths))
    found = torch.autograd.grad(got, inputs, [place(g) for g in gradients.values()])
    directions = hmm_triton.draw_directions(parameters)
    hmm_triton.assert_agrees(
        mode,
        case,
        parameters,
        dict(zip(hmm_triton.OUTPUTS, to_cpu(got), strict=True)),
        dict(zip(hmm_triton.PARAMETERS, to_cpu(found), strict=True)),
        hmm_triton.expect(y, parameters, lengths),
        hmm_triton.slopes(y, parameters, lengths, gradients, directions),
        directions,
    )


def hmm_smooth(device, case, layout):
    y, parameters, lengths = hmm_triton.draw("fp64", case)
    place = partial(LAYOUTS[layout], device=device)
    got = ops.hmm_smooth(place(y), *map(place, parameters.values()), lengths=place(lengths))
    arrays = [x.numpy() for x in parameters.values()]
    want = reference.hmm_smooth(y.numpy(), *arrays, lengths=lengths.numpy())
    # As hmm_triton bounds the filter; smoothing has a second pass of as many steps.
    bound = 2 * torch.finfo(torch.float64).eps * (case.S + 6) * case.T
    for name, a, b in zip(want._fields, to_cpu(got), want, strict=True):
        scale = max(1.0, np.abs(b).max())
        np.testing.assert_allclose(a.numpy(), b, rtol=0, atol=bound * scale, err_msg=name)


def bijection_posterior(device, layout, noise, backend="auto"):
    B, K, V = 5, 6, 5
    rng = np.random.default_rng(3)
    keys = torch.from_numpy(rng.integers(V, size=(B, K)))
    values = torch.from_numpy(np.stack([rng.permutation(V)[row] for row in keys.numpy()]))
    place = partial(LAYOUTS[layout], device=device)
    channel = leaf = None
    if noise:
        channel = (1 - noise) * torch.eye(V, dtype=torch.float64) + noise / V
        leaf = channel.clone().to(device).requires_grad_()
    ids = place(keys), place(values)
    got = ops.bijection_posterior(*ids, V, channel=leaf, backend=backend)
    exact = None if channel is None else channel.numpy()
    want = reference.bijection_posterior(keys.numpy(), values.numpy(), V, channel=exact)
    bound = rounding(got.posterior.dtype) + subset_sums(V, K)
    for name, a, b in zip(want._fields, to_cpu(got), want, strict=True):
        scale = max(1.0, np.abs(b).max())
        np.testing.assert_allclose(a.double(), b, rtol=0, atol=bound * scale, err_msg=name)
    if noise:
        _assert_channel_slope(got, leaf, keys, values, exact)


def _assert_channel_slope(got, leaf, keys, values, exact):
    """The gradient along one direction against central differences of the reference, whose error
    is of the order of step^2 and eps / step."""
    weights = [torch.randn(x.shape, dtype=x.dtype) for x in to_cpu(got)]
    (found,) = torch.autograd.grad(got, leaf, [w.to(leaf.device) for w in weights])
    direction = exact * np.random.default_rng(1).standard_normal(exact.shape)

    def objective(channel):
        fields = reference.bijection_posterior(
            keys.numpy(), values.numpy(), len(channel), channel=channel
        )
        return sum((w.numpy() * field).sum() for w, field in zip(weights, fields, strict=True))

    step = 1e-5
    rise = objective(exact + step * direction) - objective(exact - step * direction)
    terms = found.cpu().numpy() * direction
    assert abs(terms.sum() - rise / (2 * step)) <= 1e-7 * np.abs(terms).sum()


def selective_scan(device, shape, layout, dtype=torch.float32, models=None):
    tensors = scan_inputs.draw(*shape, dtype, models=models)
    place = partial(LAYOUTS[layout], device=device)
    inputs = leaves(tensors, place)
    y = ops.selective_scan(*inputs, delta_softplus=True)
    grad = torch.randn(y.shape, dtype=dtype)
    found = torch.autograd.grad(y, inputs, place(grad))
    scan_inputs.assert_values(tensors, y.cpu(), True)
    scan_inputs.assert_gradients(tensors, grad, to_cpu(found), True)


def handed_on_scan(device, layout, dtype=torch.float32):
    """From an initial state to the last one, with the gradients of both."""
    tensors = scan_inputs.draw(2, 18, 7, 3, dtype)
    initial, grad_last = scan_inputs.draw_states(tensors)
    place = partial(LAYOUTS[layout], device=device)
    *inputs, start = leaves([*tensors, initial], place)
    options = {"delta_softplus": True, "initial_state": start, "return_last_state": True}
    y, last = ops.selective_scan(*inputs, **options)
    grad = torch.randn(y.shape, dtype=dtype)
    incoming = place(grad), place(grad_last)
    found = torch.autograd.grad((y, last), (*inputs, start), incoming)
    scan_inputs.assert_values(tensors, y.cpu(), True, initial, last.cpu())
    scan_inputs.assert_gradients(tensors, grad, to_cpu(found), True, initial, grad_last)


def stacked_scan(device, dtype):
    """vmap over models: one call of the kernel each way, against the reference of each model."""
    models = [scan_inputs.draw(2, 18, 5, 3, dtype, seed=seed) for seed in range(3)]
    stacks = [torch.stack(x) for x in zip(*models, strict=True)]
    inputs = leaves(stacks, partial(odd, device=device))
    compute = partial(ops.selective_scan, delta_softplus=True)
    grad = torch.randn(3, 2, 18, 5, dtype=dtype)
    with OpCalls() as calls:
        y = torch.func.vmap(compute)(*inputs)
        found = torch.autograd.grad(y, inputs, grad.to(device))
    assert calls.seen == [("selective_scan", 6), ("selective_scan_backward", 6)]
    for m, tensors in enumerate(models):
        scan_inputs.assert_values(tensors, y[m].cpu(), True)
        scan_inputs.assert_gradients(tensors, grad[m], [x[m].cpu() for x in found], True)


def stacked_attention(device):
    """vmap over models: one call of the kernel each way, against one call for each model."""
    inputs = leaves([torch.randn(3, 2, 2, 9, 8) for _ in range(3)], partial(odd, device=device))

    def compute(q, k, v):
        result = ops.attention(q, k, v, capture=("weights", "entropy"))
        return result.out, result.weights, result.entropy

    with OpCalls() as calls:
        outputs = torch.func.vmap(compute)(*inputs)
        incoming = [torch.randn_like(x) for x in outputs]
        found = torch.autograd.grad(outputs, inputs, incoming)
    assert calls.seen == [("attention", 6), ("attention_backward", 6)]
    alone = [torch.stack(x) for x in zip(*map(compute, *inputs), strict=True)]
    for got, want in zip(outputs, alone, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    for got, want in zip(found, torch.autograd.grad(alone, inputs, incoming), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


def gelu(device, layout):
    x = 2 * torch.randn(7, 33)
    place = partial(LAYOUTS[layout], device=device)
    [leaf] = leaves([x], place)
    y = ops.gelu(leaf)
    grad = torch.randn(x.shape)
    (found,) = torch.autograd.grad(y, leaf, place(grad))
    array, bound = x.double().numpy(), gelu_error(x.dtype, x.abs().max().item())
    assert np.abs(y.detach().cpu().numpy() - reference.gelu(array)).max() <= bound
    want = reference.gelu_backward(array, grad.double().numpy())
    assert np.abs(found.cpu().numpy() - want).max() <= bound * max(1.0, grad.abs().max().item())


def rms_norm(device, layout):
    x, weight, grad = torch.randn(70, 33), torch.randn(33), torch.randn(70, 33)
    place = partial(LAYOUTS[layout], device=device)
    inputs = leaves([x, weight], place)
    y = ops.rms_norm(*inputs)
    found = torch.autograd.grad(y, inputs, place(grad))
    arrays = [a.double().numpy() for a in (x, weight, grad)]
    grad_x, grad_weight = reference.rms_norm_backward(*arrays)
    # The gradient of x is a difference of terms of this size.
    terms = arrays[1] * arrays[2] / np.sqrt((arrays[0] ** 2).mean(-1, keepdims=True))
    wanted = [
        (y, reference.rms_norm(*arrays[:2]), None, 33),
        (found[0], grad_x, terms, 33),
        (found[1], grad_weight, None, 70),
    ]
    for got, want, terms, count in wanted:
        largest = np.abs(want if terms is None else terms).max()
        error = np.abs(got.detach().cpu().numpy() - want).max()
        assert error <= norm_error(x.dtype, count) * largest


def empty_batches(device):
    """Results of the right shape and gradients of zero, without a launch."""
    x = torch.zeros(0, 2, 5, 16, device=device, requires_grad=True)
    out = ops.attention(x, x, x, capture=ALL)
    assert [tuple(y.shape) for y in out] == [(0, 2, 5, 16), (0, 2, 5), (0, 2, 5, 5), (0, 2, 5)]
    out.out.sum().backward()
    assert x.grad.shape == x.shape
    y = torch.zeros(0, 7, dtype=torch.int64, device=device)
    shared = [torch.full(s, 1 / s[-1], device=device) for s in ((4,), (4, 4), (4, 3))]
    shared[1].requires_grad_()
    found = ops.hmm_filter(y, *shared)
    assert tuple(found.filtered.shape) == (0, 7, 4) and tuple(found.log_likelihood.shape) == (0,)
    found.log_likelihood.sum().backward()
    assert not shared[1].grad.any()
    posterior = ops.bijection_posterior(y, y, 9).posterior
    assert tuple(posterior.shape) == (0, 7, 9)
    u, rows = torch.zeros(0, 7, 6, device=device), torch.zeros(0, 7, 4, device=device)
    A = torch.full((6, 4), -1.0, device=device, requires_grad=True)
    scanned = ops.selective_scan(u, u, A, rows, rows)
    scanned.sum().backward()
    assert tuple(scanned.shape) == (0, 7, 6) and not A.grad.any()
    assert tuple(ops.gelu(u).shape) == (0, 7, 6)


def opcheck(device, name):
    """Schema, fake, autograd registration: torch's own test of a custom op."""
    operator, arguments = OPERATORS[name](device)
    torch.library.opcheck(operator, arguments)


def _attention_arguments(device, weights=True):
    q, k, v = (torch.randn(2, 2, n, 16, device=device, requires_grad=True) for n in (5, 6, 6))
    return torch.ops.bwt.attention.default, (q, k, v, True, 0.3, weights, weights)


def _hmm_arguments(device):
    case = hmm_triton.Case("rows", 3, 5, 4, 3)
    y, parameters, lengths = hmm_triton.draw("fp32", case)
    inputs = [x.to(device).requires_grad_() for x in parameters.values()]
    return torch.ops.bwt.hmm_filter.default, (y.to(device), *inputs, lengths.to(device))


def _wide_hmm_arguments(device):
    """More symbols than are summed in registers."""
    y, parameters, _ = hmm_triton.draw("fp32", hmm_triton.Case("rows", 3, 5, 4, 40))
    inputs = [x.to(device).requires_grad_() for x in parameters.values()]
    return torch.ops.bwt.hmm_filter.default, (y.to(device), *inputs, None)


def _scan_arguments(device):
    inputs = leaves(scan_inputs.draw(2, 20, 5, 3, torch.float32), partial(dense, device=device))
    initial = torch.randn(2, 3, 5, device=device, requires_grad=True)
    return torch.ops.bwt.selective_scan.default, (*inputs, initial, True, 16, True)


def _posterior_arguments(device):
    ids = torch.tensor([[0, 1, 2], [2, 0, 1]], device=device)
    return torch.ops.bwt.bijection_posterior.default, (ids, ids, 4, torch.float32)


def _noisy_posterior_arguments(device):
    ids = torch.tensor([[0, 1, 2], [2, 0, 1]], device=device)
    channel = (0.8 * torch.eye(4) + 0.05).double().to(device).requires_grad_()
    return torch.ops.bwt.bijection_posterior.noisy, (ids, ids, channel, torch.float32)


OPERATORS = {
    "attention": _attention_arguments,
    "attention-plain": partial(_attention_arguments, weights=False),
    "hmm_filter": _hmm_arguments,
    "hmm_filter-wide": _wide_hmm_arguments,
    "selective_scan": _scan_arguments,
    "bijection_posterior": _posterior_arguments,
    "bijection_posterior-noisy": _noisy_posterior_arguments,
}
