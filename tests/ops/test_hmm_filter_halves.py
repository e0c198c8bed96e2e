"""hmm_filter and hmm_smooth of float16 and bfloat16: computed in float32, rounded once."""

import numpy as np
import pytest
import torch
from helpers.hmm_models import SHARED, draw, draw_lengths
from helpers.hmm_triton import slopes
from helpers.tolerances import hmm_error

from bwt import reference
from bwt.ops import hmm_filter, hmm_smooth

HALVES = (torch.float16, torch.bfloat16)
BACKENDS = ("native", "torch", "reference")
OPS = {"hmm_filter": hmm_filter, "hmm_smooth": hmm_smooth}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("S", [5, 11])
def test_values(op, backend, dtype, S):
    y, *parameters = draw(9, 12, S, 4, dtype, missing=0.2, zeros=0.2)
    lengths = draw_lengths(9, 12)
    got = OPS[op](y, *parameters, lengths=lengths, backend=backend)
    wide = [x.double().numpy() for x in parameters]
    want = getattr(reference, op)(y.numpy(), *wide, lengths=lengths.numpy())
    bound = hmm_error(torch.float32, S, 12)
    assert got.log_likelihood.dtype == torch.float32
    finite = np.abs(want.log_likelihood[np.isfinite(want.log_likelihood)]).max(initial=1.0)
    np.testing.assert_allclose(
        got.log_likelihood.double(), want.log_likelihood, rtol=0, atol=bound * finite
    )
    rounding, smallest = torch.finfo(dtype).eps / 2, torch.finfo(dtype).tiny
    for name in got._fields[:-1]:
        found = getattr(got, name)
        assert found.dtype == dtype
        np.testing.assert_allclose(
            found.double(), getattr(want, name), rtol=rounding, atol=bound + smallest, err_msg=name
        )


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_gradients(backend, dtype):
    """Against slopes of the reference recursion; what comes in for halves is a half."""
    y, *parameters = draw(3, 8, 4, 3, dtype, own=SHARED)
    leaves = [x.clone().requires_grad_() for x in parameters]
    outputs = hmm_filter(y, *leaves, backend=backend)
    incoming = [torch.randn(x.shape).to(x.dtype) for x in outputs]
    grads = torch.autograd.grad(outputs, leaves, incoming)
    names = ("initial", "transition", "emission")
    gradients = dict(zip(outputs._fields, incoming, strict=True))
    named = {name: x.double() for name, x in zip(names, parameters, strict=True)}
    directions = {name: np.eye(x.numel()) for name, x in named.items()}
    want = slopes(y, named, None, gradients, directions)
    for name, grad in zip(names, grads, strict=True):
        assert grad.dtype == dtype
        target = want[name].reshape(grad.shape)
        bound = 4 * hmm_error(torch.float32, 4, 8) * max(1.0, np.abs(target).max())
        np.testing.assert_allclose(
            grad.double(), target, rtol=torch.finfo(dtype).eps / 2, atol=bound, err_msg=name
        )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("op", OPS)
def test_rows_may_be_off_by_their_rounding_and_no_more(op, backend):
    y = torch.zeros((1, 2), dtype=torch.int64)
    initial, transition = torch.full((3,), 1 / 3).bfloat16(), torch.eye(3).bfloat16()
    emission = torch.full((3, 3), 1 / 3).bfloat16()
    assert abs(float(initial.double().sum()) - 1) > 1e-4
    OPS[op](y, initial, transition, emission, backend=backend)
    for wrong in (1.02, 0.99):
        with pytest.raises(ValueError, match=r"transition.*is not a distribution"):
            OPS[op](y, initial, transition * wrong, emission, backend=backend)
    with pytest.raises(ValueError, match="initial is not a distribution"):
        OPS[op](y, initial.float(), transition.float(), emission.float(), backend=backend)
