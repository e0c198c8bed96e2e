"""How selective_scan is called: registration, bad input, backends."""

import pytest
import torch
from helpers.scan_inputs import draw

from bwt.ops import selective_scan, selective_scan_states


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("softplus", [False, True])
def test_gradcheck(skip, softplus):
    tensors = draw(2, 18, 3, 2, skip=skip, softplus=softplus)
    state = torch.linspace(-1, 1, 12, dtype=torch.float64).view(2, 3, 2)
    leaves = [x.requires_grad_() for x in (state, *tensors) if x is not None]

    def compute(state, *leaves):
        options = {"initial_state": state, "return_last_state": True}
        return selective_scan(*leaves, delta_softplus=softplus, **options)

    assert torch.autograd.gradcheck(compute, leaves)


@pytest.mark.parametrize("models", [None, 2])
@pytest.mark.parametrize("skip", [False, True])
def test_opcheck(skip, models):
    tensors = draw(2, 20, 5, 3, torch.float32, skip=skip, models=models)
    leaves = [None if x is None else x.clone().requires_grad_() for x in tensors]
    for state in (None, torch.ones(2, 3, 5)):
        initial = None if state is None else state.clone().requires_grad_()
        arguments = (*leaves, initial, True, 16, state is not None)
        torch.library.opcheck(torch.ops.bwt.selective_scan.default, arguments)
        y, states, _ = torch.ops.bwt.selective_scan(*tensors, state, True, 16, False)
        arguments = (torch.ones_like(y), state, *tensors, state, states, True, 16)
        torch.library.opcheck(torch.ops.bwt.selective_scan_backward.default, arguments)


def test_module_compiles_without_graph_break():
    A = torch.nn.Parameter(-torch.rand(6, 4))

    def loss(u, delta, B, C):
        return selective_scan(u, delta, A, B, C, delta_softplus=True).square().sum()

    u, delta, _, B, C, _ = draw(2, 20, 6, 4, torch.float32)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found = [torch.autograd.grad(f(u, delta, B, C), A)[0] for f in (loss, compiled)]
    torch.testing.assert_close(*found)


U, DELTA, A, B, C, D = draw(2, 3, 4, 5, torch.float32)
BAD_INPUT = {
    "list": (([1.0], DELTA, A, B, C), {}, "u must be a floating-point tensor, got list"),
    "half": ((U, DELTA, A.half(), B, C), {}, "u and A must agree in dtype and device"),
    "mixed halves": ((U.half(), DELTA, A, B, C), {}, "u and delta must agree in dtype and device"),
    "integers": ((U, DELTA, A, B.long(), C), {}, "B must be a floating-point tensor, got"),
    "dimensions": ((U[0], DELTA, A, B, C), {}, r"u must be \[B, L, E\], got shape \(3, 4\)"),
    "A": ((U, DELTA, A[0], B, C), {}, r"A must be \[E, N\] or \[M, E, N\], got shape \(5,\)"),
    "A of models": ((U, DELTA, B, B, C), {}, r"\[M, E, N\] = \[2, 4, 5\] .*, got \[2, 3, 5\]"),
    "models": ((U, DELTA, A.expand(3, 4, 5), B, C), {}, "A is of 3 models, and u has 2 sequences"),
    "no models": ((U, DELTA, A.expand(0, 4, 5), B, C), {}, "A is of 0 models"),
    "models of D": ((U, DELTA, A, B, C, D.expand(3, 4)), {}, "D is of 3 models, and u has 2"),
    "other models": (
        (U, DELTA, A.expand(2, 4, 5), B, C, D.expand(1, 4)),
        {},
        r"D must be \[E\] = \[4\] or \[M, E\] = \[2, 4\], got \[1, 4\]",
    ),
    "dimensions of D": ((U, DELTA, A, B, C, D.expand(1, 2, 4)), {}, r"D must be .*\[1, 2, 4\]"),
    "dtypes": ((U, DELTA, A, B, C.double()), {}, "u and C must agree in dtype and device"),
    "no states": ((U, DELTA, A[:, :0], B, C), {}, "A must have 1 to 64 states, got 0"),
    "delta": ((U, DELTA[:, 1:], A, B, C), {}, r"delta must be \[B, L, E\] = \[2, 3, 4\]"),
    "channels": ((U, DELTA, A[1:], B, C), {}, r"A must be .* = \[4, 5\]"),
    "B": ((U, DELTA, A, B[..., :4], C), {}, r"B must be \[B, L, N\] = \[2, 3, 5\]"),
    "C": ((U, DELTA, A, B, C[:1]), {}, r"C must be \[B, L, N\] = \[2, 3, 5\] .*got \[1, 3, 5\]"),
    "D": ((U, DELTA, A, B, C, D[:3]), {}, r"D must be \[E\] = \[4\] .*, got \[3\]"),
    "D dtype": ((U, DELTA, A, B, C, D.double()), {}, "D must be None or like u"),
    "D number": ((U, DELTA, A, B, C, 1.0), {}, "D must be None or like u .* got float"),
    "state": (
        (U, DELTA, A, B, C),
        {"initial_state": D},
        r"initial_state must be \[B, E, N\] = \[2, 4, 5\], got \[4\]",
    ),
    "state dtype": (
        (U, DELTA, A, B, C),
        {"initial_state": torch.zeros(2, 4, 5).double()},
        "initial_state must be None or like u torch.float32 on cpu, got torch.float64 on cpu",
    ),
    "backend": ((U, DELTA, A, B, C), {"backend": "numpy"}, "no backend 'numpy'; choose one of"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_answered_with_one_clear_line(name):
    inputs, options, message = BAD_INPUT[name]
    with pytest.raises(ValueError, match=f"selective_scan: .*{message}") as caught:
        selective_scan(*inputs, **options)
    assert "\n" not in str(caught.value)


def test_triton_is_refused_for_cpu_tensors():
    with pytest.raises(RuntimeError, match="backend 'triton' cannot serve: serves CUDA tensors"):
        selective_scan(U, DELTA, A, B, C, backend="triton")


def test_reference_backend():
    got = selective_scan(U, DELTA, A, B, C, D, delta_softplus=True, backend="reference")
    torch.testing.assert_close(got, selective_scan(U, DELTA, A, B, C, D, delta_softplus=True))
    state = torch.ones(2, 4, 5)
    options = {"initial_state": state, "return_last_state": True, "delta_softplus": True}
    got = selective_scan(U, DELTA, A, B, C, D, backend="reference", **options)
    torch.testing.assert_close(got, selective_scan(U, DELTA, A, B, C, D, **options))
    with pytest.raises(RuntimeError, match="backend 'reference' has no gradient"):
        selective_scan(U.clone().requires_grad_(), DELTA, A, B, C, backend="reference")


def test_captured_states_have_no_gradient():
    u = U.clone().requires_grad_()
    assert not selective_scan_states(u, DELTA, A, B).requires_grad
