"""torch.func.vmap over ops, as stacked models call them: the axis is merged into the batch, the
kernel is called once, and gradients come from outside."""

from typing import NamedTuple

import pytest
import torch
from helpers.op_calls import OpCalls
from torch import func

from bwt import ops

M = 3


class Case(NamedTuple):
    compute: object  # of tensors, to a tensor or several
    inputs: list[torch.Tensor]  # of one element of the axis; all with a batch, but for parameters
    batch: int
    called: tuple[str, ...]  # forward
    backward: tuple[str, ...]


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def attention(capture=(), causal=True, **chosen):
    def compute(q, k, v):
        result = ops.attention(q, k, v, capture=capture, causal=causal, **chosen)
        weights = [result.top_k.weights] if isinstance(result, ops.CapturedAttention) else []
        return [x for x in (*result[:6], *weights) if x is not None]

    inputs = [randn(2, 2, 4, 6), randn(2, 2, 5, 6), randn(2, 2, 5, 6)]
    return Case(compute, inputs, 2, ("attention",), ("attention_backward",))


def scan(skip=True):
    def compute(u, delta, A, B, C, *D):
        return ops.selective_scan(u, delta, A, B, C, *D, delta_softplus=True)

    parameters = [-randn(4, 3).abs(), randn(4)] if skip else [-randn(4, 3).abs()]
    inputs = [randn(2, 18, 4), randn(2, 18, 4), parameters[0], randn(2, 18, 3), randn(2, 18, 3)]
    called = ("selective_scan",), ("selective_scan_backward",)
    return Case(compute, inputs + parameters[1:], 2, *called)


def handed_on_scan():
    def compute(u, delta, A, B, C, state):
        options = {"initial_state": state, "return_last_state": True}
        return list(ops.selective_scan(u, delta, A, B, C, delta_softplus=True, **options))

    u, delta, B, C = (randn(2, 18, n) for n in (4, 4, 3, 3))
    called = ("selective_scan",), ("selective_scan_backward",)
    return Case(compute, [u, delta, -randn(4, 3).abs(), B, C, randn(2, 4, 3)], 2, *called)


def scan_of_models():
    """Each element of the axis has two models of its own."""

    def compute(u, delta, A, B, C, D):
        return ops.selective_scan(u, delta, A, B, C, D, delta_softplus=True)

    u, delta, A, B, C, D = (randn(4, 5, 2) for _ in range(6))
    inputs = [u, delta, -A[:2, :2].abs(), B, C, D[:2, 0]]
    return Case(compute, inputs, 4, ("selective_scan",), ("selective_scan_backward",))


def states():
    def compute(u, delta, A, B):
        return ops.selective_scan_states(u, delta, A, B)

    inputs = [randn(2, 7, 4), randn(2, 7, 4).abs(), -randn(4, 3).abs(), randn(2, 7, 3)]
    return Case(compute, inputs, 2, ("selective_scan",), ())


def hmm_filter(own=False):
    y, lengths = torch.tensor([[0, 1, 1, 0], [1, -1, 0, 1]]), torch.tensor([4, 3])

    def compute(initial, transition, emission):
        rows = [x.softmax(-1) for x in (initial, transition, emission)]
        return ops.hmm_filter(y, *rows, lengths=lengths)

    first = (2,) if own else ()
    inputs = [randn(*first, 3), randn(*first, 3, 3), randn(*first, 3, 2)]
    return Case(compute, inputs, 2, ("hmm_filter",), ("hmm_filter_backward",))


def hmm_smooth():
    y = torch.tensor([[0, 1, 1, 0], [1, -1, 0, 1]])

    def compute(initial, transition, emission):
        rows = [x.softmax(-1) for x in (initial, transition, emission)]
        return ops.hmm_smooth(y, *rows)

    inputs = [randn(3), randn(3, 3), randn(3, 2)]
    return Case(compute, inputs, 2, ("hmm_filter", "hmm_smooth"), ("hmm_filter_backward",))


CASES = {
    "attention": lambda: attention(),
    "attention, captured": lambda: attention(("weights", "entropy")),
    "attention, asked": lambda: attention(
        ("received", "max_logit", "top_k=2"), capture_heads=[1], capture_queries=[3, 0]
    ),
    "attention, of all": lambda: attention(("entropy",), causal=False),
    "selective_scan": lambda: scan(),
    "selective_scan, no skip": lambda: scan(skip=False),
    "selective_scan, handed on": lambda: handed_on_scan(),
    "selective_scan, of models": lambda: scan_of_models(),
    "selective_scan_states": lambda: states(),
    "hmm_filter": lambda: hmm_filter(),
    "hmm_filter, own": lambda: hmm_filter(own=True),
    "hmm_smooth": lambda: hmm_smooth(),
}


def in_dims(count):
    """All along the first axis or the second; and mixed, each without one once."""
    yield (0,) * count
    yield (1,) * count
    for i in range(count):
        yield tuple(None if j == i else (j + i) % 2 for j in range(count))


def strided(x, axis):
    """[M, ...] as rows of a wide buffer that hold more, with its axis at another place."""
    buffer = torch.full((M, x[0].numel() + 7), torch.nan, dtype=x.dtype)
    view = buffer[:, 3:-4].view(x.shape)
    return view.copy_(x).movedim(0, axis)


def stacked(inputs, dims):
    """Leaves, with an axis of M where dims say so."""
    leaves = []
    for x, axis in zip(inputs, dims, strict=True):
        if axis is not None:
            signs = torch.linspace(0.5, 1.5, M, dtype=x.dtype).view(M, *(1,) * x.ndim)
            x = strided(x * signs, axis)
        leaves.append(x.detach().requires_grad_())
    return leaves


def flat(outputs):
    outputs = (outputs,) if isinstance(outputs, torch.Tensor) else outputs
    return torch.cat([x.flatten() for x in outputs])


def one_by_one(compute, leaves, dims):
    return torch.stack(
        [
            flat(
                compute(
                    *(
                        x if axis is None else x.select(axis, m)
                        for x, axis in zip(leaves, dims, strict=True)
                    )
                )
            )
            for m in range(M)
        ]
    )


def gradients(found, weights, leaves):
    if not found.requires_grad:
        return ()
    return torch.autograd.grad(found, leaves, weights, materialize_grads=True)


@pytest.mark.parametrize("name", CASES)
def test_equals_a_loop_and_is_one_call(name):
    case = CASES[name]()
    for dims in in_dims(len(case.inputs)):
        leaves = stacked(case.inputs, dims)
        expected = one_by_one(case.compute, leaves, dims)
        with OpCalls() as calls:
            found = func.vmap(lambda *x: flat(case.compute(*x)), in_dims=dims)(*leaves)
        assert calls.seen == [(op, M * case.batch) for op in case.called], dims
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        weights = torch.randn_like(expected)
        with OpCalls() as calls:
            got = gradients(found, weights, leaves)
        assert calls.seen == [(op, M * case.batch) for op in case.backward], dims
        wanted = gradients(expected, weights, leaves)
        assert len(got) == len(wanted)
        for x, y in zip(got, wanted, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("dims", [(0, 0), (1, 1), (0, None)], ids=str)
def test_ids_of_bijections(dims, noise):
    one = torch.stack([torch.randperm(5) for _ in range(2)])
    turns = torch.arange(M)
    keys = (one + turns.view(M, 1, 1)) % 5
    if dims[0] == 1:
        keys = keys.movedim(0, 1)
    values = one if dims[1] is None else keys.clone()
    channel = torch.full((5, 5), noise / 4, dtype=torch.float64).fill_diagonal_(1 - noise)
    options = {"channel": channel.requires_grad_()} if noise else {}

    def compute(keys, values):
        return flat(ops.bijection_posterior(keys, values, 5, check=False, **options))

    expected = one_by_one(compute, [keys, values], dims)
    with OpCalls() as calls:
        found = func.vmap(compute, in_dims=dims)(keys, values)
    assert calls.seen == [("bijection_posterior", M * 2)]
    torch.testing.assert_close(found, expected)
    if noise:
        weights = torch.randn_like(expected)
        [got], [want] = (gradients(x, weights, [channel]) for x in (found, expected))
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["attention", "selective_scan"])
def test_halves(name, dtype):
    """The same numbers, computed in the same way: not a bit differs."""
    case = CASES[name]()
    dims = (0,) * len(case.inputs)
    leaves = stacked([x.to(dtype) for x in case.inputs], dims)
    expected = one_by_one(case.compute, leaves, dims)
    with OpCalls() as calls:
        found = func.vmap(lambda *x: flat(case.compute(*x)), in_dims=dims)(*leaves)
    assert calls.seen == [(name, M * case.batch)]
    assert torch.equal(found, expected)
    weights = torch.randn_like(expected)
    for x, y in zip(*(gradients(z, weights, leaves) for z in (found, expected)), strict=True):
        assert x.dtype == dtype and torch.equal(x, y)
