"""No op may give a wrong result because of the strides of an argument or a gradient."""

from functools import partial

import pytest
import torch
from helpers.strided import (
    DTYPES,
    calls,
    expected_gradients,
    gradients,
    noise_like,
    run,
    variants,
)

BACKENDS = ["native", "torch"]


def each_call(*, differentiable: bool = False):
    return pytest.mark.parametrize(
        "call",
        [
            pytest.param(call, id=f"{call.name}-{str(dtype).removeprefix('torch.')}")
            for dtype in DTYPES
            for call in calls(dtype)
            if call.differentiable or not differentiable
        ],
    )


@pytest.mark.parametrize("backend", BACKENDS)
@each_call()
def test_every_argument(call, backend):
    expected = call.expected()
    for what, variant, same in call.variants():
        target = expected if same else variant.expected()
        call.assert_close(run(variant, backend), target, what)


@pytest.mark.parametrize("backend", BACKENDS)
@each_call(differentiable=True)
def test_gradients_with_every_argument(call, backend):
    incoming = partial(noise_like, dtype=call.dtype)
    expected = expected_gradients(call, incoming)
    for what, variant, same in call.variants():
        target = expected if same else expected_gradients(variant, incoming)
        call.assert_close(gradients(variant, backend, incoming), target, what)


@pytest.mark.parametrize("backend", BACKENDS)
@each_call(differentiable=True)
def test_every_incoming_gradient(call, backend):
    plain = partial(noise_like, dtype=call.dtype)
    expected = expected_gradients(call, plain)
    for i, output in enumerate(run(call, backend)):
        noise = plain(i, output)
        for what, variant in variants(noise, range(noise.ndim)):

            def incoming(j, output, i=i, variant=variant):
                return variant if j == i else plain(j, output)

            same = torch.equal(variant, noise)
            target = expected if same else expected_gradients(call, incoming)
            got = gradients(call, backend, incoming)
            call.assert_close(got, target, f"gradient {i} {what}")


@each_call()
def test_all_arguments_at_once(call):
    for kind in ("stepped 0", "misaligned"):
        others = {name: dict(variants(x))[kind] for name, x in call.tensors().items()}
        call.assert_close(run(call.with_arguments(others), "native"), call.expected(), kind)


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
@each_call()
def test_the_negative_bit(call, backend):
    """Take tensors that store minus their values, as the imaginary part of a conjugate does."""
    others = {name: torch._neg_view(-x) for name, x in call.tensors().items()}
    assert all(x.is_neg() for x in others.values())
    call.assert_close(run(call.with_arguments(others), backend), call.expected(), "negated")


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
@each_call()
def test_sparse_arguments_are_refused_in_one_line(call, backend):
    for name, x in call.tensors().items():
        with pytest.raises(ValueError, match=f": {name} must be a dense tensor") as caught:
            run(call.with_arguments({name: x.to_sparse()}), backend)
        assert "\n" not in str(caught.value)


def test_the_gradient_of_a_channel_is_laid_out_as_its_fake_says():
    channel = torch.full((3, 3), 1 / 3, dtype=torch.float64)
    ids = torch.tensor([[0, 1, 2, 0]])
    grads = torch.randn(1, 4, 3).double(), torch.randn(1, 4).double(), torch.randn(1, 4).double()
    backward = torch.ops.bwt.bijection_posterior_backward
    for _, variant in variants(channel, (0, 1)):
        torch.library.opcheck(backward, (*grads, ids, ids, variant), test_utils="test_faketensor")
