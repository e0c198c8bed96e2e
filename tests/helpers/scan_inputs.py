"""Helpers of the tests of selective_scan: random arguments, comparison."""

import numpy as np
import torch

from bwt import reference
from helpers.strided import offset
from helpers.tolerances import scan_error

DTYPES = [torch.float32, torch.float64]
NAMES = ("u", "delta", "A", "B", "C", "D")


HALVES = [torch.float16, torch.bfloat16]


def draw(
    B, L, E, N, dtype=torch.float64, *, skip=True, softplus=True, seed=0, models=None, dense=False
):
    """u, delta, A, B, C, D; states that fade within a few to a few hundred steps. models: how many
    A and D are of, if not of all sequences. dense: without strides of their own."""
    rng = np.random.default_rng([B, L, E, N, seed])
    own = () if models is None else (models,)
    delta = rng.normal(size=(B, L, E))
    arrays = [
        rng.normal(size=(B, L, E)),
        delta - 2 if softplus else np.abs(delta) / 4,
        -rng.uniform(0.05, N + 1, size=(*own, E, N)),
        rng.normal(size=(B, L, N)),
        rng.normal(size=(B, L, N)),
        rng.normal(size=(*own, E)),
    ]
    tensors = [torch.from_numpy(x).to(dtype) for x in arrays]
    tensors = tensors if dense else apart(*tensors)
    return tensors if skip else [*tensors[:5], None]


def apart(u, delta, A, B, C, D):
    """Each with strides of its own, and NaN where nothing is to be read."""
    return [
        offset(u, (0, 0, 2)),
        delta.transpose(0, 1).contiguous().transpose(0, 1),
        offset(A, (1,) * A.ndim),
        offset(B, (0, 1, 0)),
        offset(C.transpose(0, 1), (0, 0, 1)).transpose(0, 1),
        offset(D, (1,) * D.ndim),
    ]


def to_arrays(tensors):
    return [None if x is None else x.detach().double().numpy() for x in tensors]


def assert_close(name, got, expected, bound):
    assert got.shape == expected.shape, name
    got = got.detach().double().numpy()
    scale = max(1.0, np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(got, expected, rtol=0, atol=bound * scale, err_msg=name)


def draw_states(tensors, seed=0):
    """Two [B, E, N] as initial state and as gradient of the last one, float32 beside halves."""
    rng = np.random.default_rng(seed)
    shape = (len(tensors[0]), *tensors[2].shape[-2:])
    wide = torch.float64 if tensors[0].dtype == torch.float64 else torch.float32
    return [torch.from_numpy(rng.normal(size=shape)).to(wide) for _ in range(2)]


def assert_values(tensors, y, softplus, initial=None, last=None):
    L, N = tensors[0].shape[1], tensors[2].shape[-1]
    (start,) = to_arrays([initial])
    options = {"initial_state": start, "return_last_state": True}
    expected = reference.selective_scan(*to_arrays(tensors), delta_softplus=softplus, **options)
    assert y.dtype == tensors[0].dtype
    assert_close("y", y, expected[0], scan_error(y.dtype, L, N))
    if last is not None:
        assert last.dtype == (torch.float64 if y.dtype == torch.float64 else torch.float32)
        assert_close("last state", last, expected[1], scan_error(last.dtype, L, 1))


def assert_gradients(tensors, grad_y, gradients, softplus, initial=None, grad_last=None):
    """gradients: of u, delta, A, B, C, D and the initial state; the last ones may be missing."""
    (B, L, E), N = tensors[0].shape, tensors[2].shape[-1]
    weights, start, grad_last = to_arrays([grad_y, initial, grad_last])
    expected = reference.selective_scan_backward(
        weights,
        *to_arrays(tensors),
        delta_softplus=softplus,
        initial_state=start,
        grad_last_state=grad_last,
    )
    terms = {"A": B * L, "B": E, "C": E, "D": B * L}
    arguments = zip((*NAMES, "initial state"), (*tensors, initial), strict=True)
    for (name, x), got, want in zip(arguments, gradients, expected, strict=False):
        assert got.dtype == (grad_y if x is None else x).dtype and got.isfinite().all(), name
        bound = scan_error(got.dtype, L, terms.get(name, N))
        assert_close(f"gradient of {name}", got, want, bound)
