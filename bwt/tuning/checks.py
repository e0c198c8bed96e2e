"""Whether a kernel computes what it should: values and gradients against float64, on the same
inputs. Values are held against the NumPy reference, gradients against torch's own of the plain
formula.

Each check takes `call(function, *tensors, **options)`, which runs a launcher of the op's kernels on
CPU tensors, wherever they are computed.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bwt import reference
from bwt.kernels.contracts import SCAN_CHUNK
from bwt.kernels.results import Captures
from bwt.ops._attention_torch import attention_torch
from bwt.ops._hmm_filter_torch import hmm_filter_torch
from bwt.ops._selective_scan_torch import selective_scan_torch

Call = Callable[..., tuple[Tensor | None, ...]]
DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "tf32": torch.float32,
    "fp32": torch.float32,
    "fp64": torch.float64,
}
# Of the largest value: several times what kernels that pass the tests have at the sizes of a tuner,
# and far below what a wrong index or a missing barrier does.
TOLERANCE = {"fp16": 1e-2, "bf16": 8e-2, "tf32": 1e-2, "fp32": 2e-5, "fp64": 1e-11}


def attention(call: Call, mode: str, shape: tuple[int, int, int, int]) -> None:
    """shape: sequences, heads, time, size of a head."""
    draw = _source(shape)
    q, k, v, grad_out = (draw(*shape).to(DTYPES[mode]) for _ in range(4))
    wide = wide_q, wide_k, wide_v = [x.double().requires_grad_() for x in (q, k, v)]
    precision = {"precision": "tf32" if mode == "tf32" else "ieee"}
    causal, scale = True, shape[-1] ** -0.5
    options = {"causal": causal, "scale": scale}
    captured = {"capture_weights": True, "capture_entropy": True}
    outputs = call("attention_forward", q, k, v, **options, **captured, **precision)[:4]
    arrays = (x.detach().numpy() for x in wide)
    expected = reference.attention(*arrays, **options, capture=("weights", "entropy"))
    names = ("out", "lse", "weights", "entropy")
    wanted = [torch.from_numpy(x) for x in expected]
    out, lse, _, entropy = _compare(names, outputs, wanted, mode)
    rows = lse.dtype
    grad_weights = draw(*shape[:3], shape[2]).to(q.dtype)
    grad_entropy, grad_lse = draw(*shape[:3]).to(rows), draw(*shape[:3]).to(rows)
    incoming = (grad_out, grad_weights, grad_entropy, grad_lse)
    found = call(
        "attention_backward", *incoming, q, k, v, out, lse, entropy, **options, **precision
    )
    captures = Captures(weights=True, entropy=True)
    plain = attention_torch(wide_q, wide_k, wide_v, causal, scale, captures)
    given = (grad_out, grad_lse, grad_weights, grad_entropy)
    total = sum((g.double() * x).sum() for g, x in zip(given, plain, strict=False))
    _compare(("grad_q", "grad_k", "grad_v"), found, torch.autograd.grad(total, wide), mode)


def hmm_filter(
    call: Call, mode: str, path: str, shape: tuple[int, int, int, int], own: Sequence[bool]
) -> None:
    """shape: sequences, steps, states, symbols; own: which parameters each sequence has itself."""
    (B, T, S, V), draw = shape, _source(shape)
    y = torch.randint(-1, V, (B, T), generator=torch.Generator().manual_seed(B + T))
    sizes = ((S,), (S, S), (S, V))
    parameters = [
        draw(*((B,) if each else ()), *size).softmax(-1).to(DTYPES[mode])
        for size, each in zip(sizes, own, strict=True)
    ]
    wide = initial, transition, emission = [x.double().requires_grad_() for x in parameters]
    names = ("filtered", "predicted", "log_likelihood")
    found = call("hmm_filter_forward", y, *parameters, None, path=path)
    expected = [torch.from_numpy(x) for x in reference.hmm_filter(y, *parameters)]
    outputs = _compare(names, found, expected, mode, times=T)

    incoming = [draw(*x.shape).to(x.dtype) for x in outputs]
    found = call("hmm_filter_backward", *incoming, y, *parameters, None, *outputs, path=path)
    plain = hmm_filter_torch(y, initial, transition, emission, None)
    total = sum((g.double() * x).sum() for g, x in zip(incoming, plain, strict=True))
    gradients = torch.autograd.grad(total, wide)
    _compare(("grad_initial", "grad_transition", "grad_emission"), found, gradients, mode, times=T)


def selective_scan(call: Call, mode: str, shape: tuple[int, int, int, int]) -> None:
    """shape: sequences, steps, channels, states."""
    (batch, L, E, N), draw, dtype = shape, _source(shape), DTYPES[mode]
    u, delta, grad_y = (draw(batch, L, E) for _ in range(3))
    rows = (draw(batch, L, N) for _ in range(2))
    arguments = (u, delta - 2, -draw(E, N).exp(), *rows, draw(E))
    tensors, grad_y = [x.to(dtype) for x in arguments], grad_y.to(dtype)
    wide = u, delta, A, B, C, D = [x.double().requires_grad_() for x in tensors]
    options = {"softplus": True, "every": SCAN_CHUNK}
    y, states, _ = call("selective_scan_forward", *tensors, None, last=False, **options)
    expected = reference.selective_scan(*(x.detach().numpy() for x in wide), delta_softplus=True)
    _compare(("y",), (y,), (torch.from_numpy(expected),), mode, times=L)

    *found, _ = call("selective_scan_backward", grad_y, None, *tensors, None, states, **options)
    plain, _ = selective_scan_torch(u, delta, A, B, C, D, None, True)
    gradients = torch.autograd.grad(plain, wide, grad_y.double())
    names = [f"grad_{name}" for name in ("u", "delta", "A", "B", "C", "D")]
    _compare(names, found, gradients, mode, times=L)


def _source(shape: tuple[int, ...]) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(sum(shape))
    return lambda *size: torch.randn(size, generator=generator, dtype=torch.float64)


def _compare(
    names: Sequence[str],
    found: Sequence[Tensor | None],
    expected: Sequence[Tensor],
    mode: str,
    times: int = 1,
) -> list[Tensor]:
    """What was found, if all of it is right. times: steps over which errors add up.

    Raises:
        AssertionError: something is off, and by how much, or is not there.
    """
    right = []
    for name, got, wanted in zip(names, found, expected, strict=True):
        if got is None:
            raise AssertionError(f"{name} is missing")
        wanted = wanted.detach()
        allowed = TOLERANCE[mode] * times**0.5 * wanted.abs().max().clamp(min=1.0)
        error = (got.double() - wanted).abs().max()
        if not error <= allowed:  # NaN is not
            raise AssertionError(f"{name} is off by {error:.2g}, more than {allowed:.2g}")
        right.append(got)
    return right
