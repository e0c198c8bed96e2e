"""No op may give a wrong result because of the strides of an argument or a gradient."""

from functools import partial

import pytest
import torch
from strided import DTYPES, Call, calls, results, variants

from bwt import ops

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


def run(call: Call, backend: str) -> tuple[torch.Tensor, ...]:
    return results(partial(getattr(ops, call.op), backend=backend)(**call.arguments))


def gradients(call: Call, backend: str, incoming) -> tuple[torch.Tensor, ...]:
    """Of the differentiable arguments, which keep their strides; incoming(i, output) are the
    gradients of the outputs."""
    leaves = {k: call.arguments[k].detach().requires_grad_() for k in call.differentiable}
    outputs = run(call.with_arguments(leaves), backend)
    grads = [incoming(i, output) for i, output in enumerate(outputs)]
    return torch.autograd.grad(outputs, tuple(leaves.values()), grads)


def expected_gradients(call: Call, incoming) -> list:
    """Of eager torch, in float64 and with dense tensors, whose formulas gradcheck has checked."""
    exact = {
        k: (x.double() if x.is_floating_point() else x).contiguous()
        for k, x in call.tensors().items()
    }
    dense = gradients(
        call.with_arguments(exact), "torch", lambda i, x: incoming(i, x).double().contiguous()
    )
    return [gradient.numpy() for gradient in dense]


def noise_like(i: int, output: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(i)
    return torch.randn(output.shape, generator=generator, dtype=torch.float64).to(dtype)


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


def test_the_gradient_of_a_channel_is_laid_out_as_its_fake_says():
    channel = torch.full((3, 3), 1 / 3, dtype=torch.float64)
    ids = torch.tensor([[0, 1, 2, 0]])
    grads = torch.randn(1, 4, 3).double(), torch.randn(1, 4).double(), torch.randn(1, 4).double()
    backward = torch.ops.bwt.bijection_posterior_backward
    for _, variant in variants(channel, (0, 1)):
        torch.library.opcheck(backward, (*grads, ids, ids, variant), test_utils="test_faketensor")
