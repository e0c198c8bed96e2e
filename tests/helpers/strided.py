"""Every argument of every op with every kind of strides, for any function that computes an op.

A call names an op, its arguments and how far a result may be off. `function(**call.arguments)` must
agree with `bwt.reference` of the same name, whichever argument is replaced by one of its variants.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bwt import ops, reference
from helpers.tolerances import (
    attention_error,
    gelu_error,
    hmm_error,
    norm_error,
    rounding,
    scan_error,
    subset_sums,
)

DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True)
class Call:
    name: str
    op: str
    arguments: dict[str, Any]  # tensors and options
    differentiable: tuple[str, ...]
    error: Callable[[torch.dtype], float]  # relative to the largest entry of a result
    # Dimensions along which an argument may be constant, where not along all.
    constant: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def dtype(self) -> torch.dtype:
        tensors = (x for x in self.arguments.values() if isinstance(x, Tensor))
        return next((x.dtype for x in tensors if x.is_floating_point()), torch.get_default_dtype())

    def tensors(self) -> dict[str, Tensor]:
        return {name: x for name, x in self.arguments.items() if isinstance(x, Tensor)}

    def with_arguments(self, others: dict[str, Tensor]) -> "Call":
        return replace(self, arguments={**self.arguments, **others})

    def variants(self) -> Iterator[tuple[str, "Call", bool]]:
        """Calls with one argument of other strides, and whether it still has the same values."""
        for name, x in self.tensors().items():
            for kind, other in variants(x, self.constant.get(name, range(x.ndim))):
                same = torch.equal(x, other)
                yield f"{name} {kind}", self.with_arguments({name: other}), same

    def expected(self) -> tuple[np.ndarray, ...]:
        arrays = {k: x.numpy() if isinstance(x, Tensor) else x for k, x in self.arguments.items()}
        return results(getattr(reference, self.op)(**arrays))

    def assert_close(self, got, expected, what: str) -> None:
        for actual, target in zip(got, expected, strict=True):
            scale = max(1.0, np.abs(target).max(initial=0.0))
            np.testing.assert_allclose(
                actual.detach().double().numpy(),
                target,
                rtol=0,
                atol=self.error(self.dtype) * scale,
                err_msg=f"{self.name}: {what}",
            )


def results(output) -> tuple:
    """What an op returns, as a tuple without positions and the parts that were not asked for."""
    if isinstance(output, tuple):
        return tuple(x for part in output for x in results(part))
    is_number = output is not None and output.dtype not in (torch.int64, np.int64)
    return (output,) if is_number else ()


def variants(x: Tensor, constant=()) -> Iterator[tuple[str, Tensor]]:
    """Tensors of the shape of x with other strides. All equal x but those that are expanded, whose
    stride is 0 along one of the dimensions in `constant`."""
    for i in range(x.ndim):
        for j in range(i):
            yield f"transposed {j} {i}", x.transpose(i, j).contiguous().transpose(i, j)
    for d in range(x.ndim):
        yield f"stepped {d}", stepped(x, d)
    yield "offset", offset(x, (1,) * x.ndim)
    yield "misaligned", offset(x.reshape(-1), (1,)).view(x.shape)
    for d in constant:
        yield f"expanded {d}", x.narrow(d, 0, 1).expand(x.shape)


def poison(shape, like: Tensor) -> Tensor:
    """What must not be read."""
    return like.new_full(shape, float("nan") if like.is_floating_point() else 1 << 20)


def stepped(x: Tensor, dim: int) -> Tensor:
    spread = poison([3 * n if d == dim else n for d, n in enumerate(x.shape)], x)
    view = spread[tuple(slice(None, None, 3 if d == dim else 1) for d in range(x.ndim))]
    return view.copy_(x)


def offset(x: Tensor, margins) -> Tensor:
    wide = poison([n + 2 * m for n, m in zip(x.shape, margins, strict=True)], x)
    return wide[tuple(slice(m, m + n) for n, m in zip(x.shape, margins, strict=True))].copy_(x)


def calls(dtype: torch.dtype) -> list[Call]:
    rng = np.random.default_rng(0)
    return [
        *attention_calls(rng, dtype),
        *hmm_calls(rng, dtype),
        *bijection_calls(rng, dtype),
        *scan_calls(rng, dtype),
        *pointwise_calls(rng, dtype),
    ]


def normal(rng, dtype, *shape) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype)


def distributions(rng, dtype, *shape) -> Tensor:
    return torch.from_numpy(rng.dirichlet(np.ones(shape[-1]), size=shape[:-1])).to(dtype)


def attention_calls(rng, dtype) -> Iterator[Call]:
    for batch, heads, queries, keys, size in [(2, 3, 5, 7, 6), (2, 2, 33, 33, 16), (2, 2, 3, 4, 1)]:
        yield Call(
            f"attention T{queries} D{size}",
            "attention",
            {
                "q": normal(rng, dtype, batch, heads, queries, size),
                "k": normal(rng, dtype, batch, heads, keys, size),
                "v": normal(rng, dtype, batch, heads, keys, size),
                "capture": ("weights", "entropy"),
            },
            ("q", "k", "v"),
            lambda dtype, keys=keys, size=size: attention_error(dtype, keys, size),
        )


def hmm_calls(rng, dtype) -> Iterator[Call]:
    # Few states: sequences in lanes; many: states in lanes. Parameters for all or for each.
    for states, symbols, own in [(3, 4, False), (5, 3, True), (40, 6, False), (40, 6, True)]:
        batch, steps = 9, 7
        lead = (batch,) if own else ()
        rows = tuple(range(len(lead)))
        arguments = {
            "observations": torch.from_numpy(rng.integers(-1, symbols, size=(batch, steps))),
            "initial": distributions(rng, dtype, *lead, states),
            "transition": distributions(rng, dtype, *lead, states, states),
            "emission": distributions(rng, dtype, *lead, states, symbols),
            "lengths": torch.from_numpy(rng.integers(1, steps + 1, size=batch)),
        }
        for op in ("hmm_filter", "hmm_smooth"):
            yield Call(
                f"{op} S{states}{' own' if own else ''}",
                op,
                arguments,
                ("initial", "transition", "emission") if op == "hmm_filter" else (),
                lambda dtype, S=states, V=symbols, T=steps: hmm_error(dtype, max(S, V), T),
                # A row of equal entries would sum to one only by chance.
                {"initial": rows, "transition": (*rows, -2), "emission": (*rows, -2)},
            )


def bijection_calls(rng, dtype) -> Iterator[Call]:
    # Keys and values are distinct in each sequence, so that any keys fit any values.
    keys, values = (
        torch.from_numpy(np.stack([rng.permutation(8)[:6] for _ in range(9)])) for _ in range(2)
    )
    yield Call(
        "bijection_posterior",
        "bijection_posterior",
        {"keys": keys, "values": values, "num_symbols": 8},
        (),
        rounding,
        {"keys": (0,), "values": (0,)},
    )
    for symbols, steps in [(3, 9), (7, 4)]:
        keys, values = torch.from_numpy(rng.integers(symbols, size=(2, 4, steps)))
        yield Call(
            f"bijection_posterior noisy V{symbols}",
            "bijection_posterior",
            {
                "keys": keys,
                "values": values,
                "num_symbols": symbols,
                "channel": distributions(rng, dtype, symbols, symbols),
            },
            ("channel",),
            lambda dtype, V=symbols, K=steps: rounding(dtype) + K * subset_sums(V, K),
            {"channel": (0,)},
        )


def scan_calls(rng, dtype) -> Iterator[Call]:
    for batch, steps, channels, states in [(3, 21, 9, 4), (2, 5, 1, 1)]:
        rows = {
            "u": normal(rng, dtype, batch, steps, channels),
            "delta": normal(rng, dtype, batch, steps, channels),
            "A": -normal(rng, dtype, channels, states).abs(),
            "B": normal(rng, dtype, batch, steps, states),
        }
        more = {"C": normal(rng, dtype, batch, steps, states), "D": normal(rng, dtype, channels)}
        models = {"A": -normal(rng, dtype, batch, channels, states).abs()}
        models["D"] = normal(rng, dtype, batch, channels)

        def error(dtype, steps=steps, states=states):
            return scan_error(dtype, steps, states)

        yield Call(
            f"selective_scan E{channels}",
            "selective_scan",
            {**rows, **more, "delta_softplus": True},
            (*rows, *more),
            error,
        )
        yield Call(
            f"selective_scan of models E{channels}",
            "selective_scan",
            {**rows, **more, **models, "delta_softplus": True},
            (*rows, *more),
            error,
        )
        state = {"initial_state": normal(rng, dtype, batch, channels, states)}
        yield Call(
            f"selective_scan from a state E{channels}",
            "selective_scan",
            {**rows, **more, **state, "delta_softplus": True},
            (*rows, *more, *state),
            error,
        )
        yield Call(
            f"selective_scan_states E{channels}",
            "selective_scan_states",
            {**rows, "delta_softplus": True},
            (),
            error,
        )


def pointwise_calls(rng, dtype) -> Iterator[Call]:
    x, weight = normal(rng, dtype, 3, 5, 33), normal(rng, dtype, 33)
    yield Call(
        "rms_norm",
        "rms_norm",
        {"x": x, "weight": weight},
        ("x", "weight"),
        lambda dtype: norm_error(dtype, 33),
    )
    largest = float(x.abs().max())
    yield Call("gelu", "gelu", {"x": x}, ("x",), lambda dtype: gelu_error(dtype, largest))
    branch, bias = normal(rng, dtype, 3, 5, 33), normal(rng, dtype, 33)
    largest += float(bias.abs().max())
    yield Call(
        "gelu of a sum",
        "gelu",
        {"x": x, "bias": bias},
        ("x", "bias"),
        lambda dtype: gelu_error(dtype, largest) + norm_error(dtype, 15),
    )
    yield Call(
        "add_bias",
        "add_bias",
        {"x": x, "bias": bias.expand(3, 33)},
        ("x", "bias"),
        lambda dtype: norm_error(dtype, 15),
    )
    yield Call(
        "add_rms_norm",
        "add_rms_norm",
        {"x": x, "branch": branch, "weight": weight, "bias": bias},
        ("x", "branch", "weight", "bias"),
        lambda dtype: norm_error(dtype, 33),
    )


def run(call: Call, backend: str) -> tuple[torch.Tensor, ...]:
    return results(partial(getattr(ops, call.op), backend=backend)(**call.arguments))


def gradients(call: Call, backend: str, incoming, only=None) -> tuple[torch.Tensor, ...]:
    """Of the differentiable arguments, which keep their strides; incoming(i, output) are the
    gradients of the outputs, or of one only."""
    leaves = {k: call.arguments[k].detach().requires_grad_() for k in call.differentiable}
    outputs = run(call.with_arguments(leaves), backend)
    pairs = [(x, incoming(i, x)) for i, x in enumerate(outputs) if only in (None, i)]
    outputs, grads = zip(*pairs, strict=True)
    return torch.autograd.grad(outputs, tuple(leaves.values()), grads, materialize_grads=True)


def expected_gradients(call: Call, incoming, only=None) -> list:
    """Of eager torch, in float64 and with dense tensors, whose formulas gradcheck has checked."""
    exact = {
        k: (x.double() if x.is_floating_point() else x).contiguous()
        for k, x in call.tensors().items()
    }
    dense = gradients(
        call.with_arguments(exact),
        "torch",
        lambda i, x: incoming(i, x).double().contiguous(),
        only,
    )
    return [gradient.numpy() for gradient in dense]


def noise_like(i: int, output: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(i)
    return torch.randn(output.shape, generator=generator, dtype=torch.float64).to(dtype)
