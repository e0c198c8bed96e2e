"""Speed of attention with captured weights.

    python benchmarks/bench_attention.py --plot attention.svg

`native` and `triton` return the exact weights; so do the eager and compiled versions and
torch.nn.MultiheadAttention, whose time includes its two projections. `sdpa` is torch's fused
attention, which returns no weights. `gemm` is the roofline: the counted causal operations at the
speed of torch.mm in the same run; `write` the time to write out and weights to memory.

`native-received` and the like capture what is asked of the weights and no weights, to be held
against `native-plain`; beside them `eager-received` sums the columns of eager weights, and
`flex-received` has them from two calls of torch's flex_attention, the second with keys for queries.

At T = 39 memory bounds `native`, not arithmetic: on one thread its passes take 2.2 ms on a head
that stays in the cache and 3.0 to 3.4 ms on all heads, and touching the arrays alone
takes 2.0 to 2.7 ms; autograd's wrappers around a custom op add 0.2 ms.
"""

import functools
import math
import sys
from typing import NamedTuple

import command
import common
import numpy as np
import plots
import torch
from bounds import attention_error, deviation
from common import FORWARD, FULL, Bench, Case, Claim, Provider, Unavailable
from torch import Tensor
from torch.nn import functional

from bwt import ops, reference
from bwt.ops import _dispatch

OP = "attention"
BOTH = (FORWARD, FULL)
ASKED = ("received", "max_logit", "argmax", "top_k=4")


class Inputs(NamedTuple):
    leaf: Tensor  # [B, T, 3, H, D], or the three stacked [3, B, H, T, D]
    qkv: tuple[Tensor, Tensor, Tensor]  # views of the leaf, each [B, H, T, D]
    grad_out: Tensor  # [B, H, T, D]


def declare(B: int, H: int, T: int, D: int, *, fused: bool, dtype: str = "float32") -> Case:
    name = f"B{B}-H{H}-T{T}-D{D}-{'fused' if fused else 'dense'}"
    shape = dict(B=B, H=H, T=T, D=D, fused=fused)
    if dtype == "float32":
        return Case(name, shape, BOTH)
    return Case(f"{name}-{dtype}", shape, BOTH, dtype, devices=("cuda",))


SHAPES = [(64, 6, 39, 32), (64, 8, 93, 32), (16, 8, 128, 32), (4, 8, 512, 64)]
FLOAT32 = [declare(*shape, fused=fused) for shape in SHAPES for fused in (False, True)]
CASES = FLOAT32 + [declare(*shape, fused=True, dtype="bfloat16") for shape in SHAPES]


# One of the short kernel, one of the long.
QUICK = (declare(16, 6, 39, 32, fused=True), declare(2, 8, 128, 32, fused=True))


def sizes(case: Case) -> tuple[int, int, int, int]:
    return tuple(case.shape[name] for name in "BHTD")


def inputs(case: Case, device: str) -> Inputs:
    B, H, T, D = sizes(case)
    rng = np.random.default_rng(0)
    shape = (B, T, 3, H, D) if case.shape["fused"] else (3, B, H, T, D)

    def normal(shape):
        return torch.from_numpy(rng.standard_normal(shape, np.float32)).to(device, dtype)

    dtype = getattr(torch, case.dtype)
    leaf = normal(shape).requires_grad_()
    if case.shape["fused"]:
        qkv = tuple(x.transpose(1, 2) for x in leaf.unbind(2))
    else:
        qkv = leaf.unbind(0)
    grad_out = normal((B, H, T, D))
    # Leaves of their own: the time of splitting a projection's gradient is not attention's.
    qkv = tuple(x.detach().requires_grad_() for x in qkv)
    return Inputs(leaf, qkv, grad_out)


def provider(name: str, attend, *, devices=("cpu", "cuda"), modes=BOTH, backend="") -> Provider:
    """attend(case) returns a function (q, k, v) -> (out, weights | None)."""

    def make(case, mode, x, device):
        run = attend(case, device)
        if mode == FORWARD:

            def forward():
                with torch.no_grad():
                    return run(*x.qkv)

            return forward, case.units

        def full():
            out, weights = run(*x.qkv)
            return out, weights, *torch.autograd.grad(out, x.qkv, x.grad_out)

        return full, case.units

    return Provider(name, make, devices, modes, backend=backend)


def asking(backend: str, device: str) -> list[Provider]:
    """One for each of what is asked of the weights."""
    return [
        provider(
            f"{backend}-{name}",
            of_backend(backend, (name,)),
            devices=(device,),
            modes=(FORWARD,),
            backend=backend,
        )
        for name in ASKED
    ]


def of_backend(backend: str, capture: tuple[str, ...]):
    def attend(case, device):
        try:
            _dispatch.choose(OP, backend, torch.device(device))
        except RuntimeError as reason:
            raise Unavailable(reason) from reason

        def run(q, k, v):
            got = ops.attention(q, k, v, capture=capture, backend=backend)
            return got.out, got.weights

        return run

    return attend


@functools.cache
def additive_mask(queries: int, device: str) -> Tensor:
    return torch.full((queries, queries), -math.inf, device=device).triu(1)


def eager(case, device):
    """With the mask added inside the product, which was the fastest eager form found."""
    if case.dtype != "float32":
        raise Unavailable("rounds scores to 16 bits, which is too coarse for the check")
    B, H, T, D = sizes(case)
    mask, scale = additive_mask(T, device), D**-0.5

    def run(q, k, v):
        flat = [x.reshape(B * H, T, D) for x in (q, k, v)]
        scores = torch.baddbmm(mask, flat[0], flat[1].transpose(1, 2), alpha=scale)
        weights = scores.softmax(-1)
        return torch.bmm(weights, flat[2]).view(B, H, T, D), weights.view(B, H, T, T)

    return run


def compiled(case, device):
    torch._dynamo.reset()
    return torch.compile(eager(case, device))


def eager_received(case, device):
    """Out, and the column sums of the weights."""
    attend = eager(case, device)

    def run(q, k, v):
        out, weights = attend(q, k, v)
        weights.sum(-2)
        return out, None

    return run


def flex_received(case, device):
    """What a key receives is e^(log-sum-exp over queries of score - lse of the query)."""
    from torch.nn.attention import flex_attention as flex

    T, auxiliary = case.shape["T"], flex.AuxRequest(lse=True)
    torch._dynamo.reset()
    attend = torch.compile(flex.flex_attention)
    sees = flex.create_block_mask(lambda b, h, t, s: s <= t, None, None, T, T, device=device)
    seen = flex.create_block_mask(lambda b, h, s, t: s <= t, None, None, T, T, device=device)

    def run(*qkv):
        q, k, v = (x.detach() for x in qkv)  # on a CPU it refuses what has a gradient
        out, found = attend(q, k, v, block_mask=sees, return_aux=auxiliary)

        def relative(score, b, h, s, t):
            return score - found.lse[b, h, t]

        _, of_keys = attend(k, q, q, relative, block_mask=seen, return_aux=auxiliary)
        of_keys.lse.exp()
        return out, None

    try:
        run(*torch.zeros(3, 1, 1, T, case.shape["D"], device=device))
    except RuntimeError as error:  # what it compiles to differs from device to device
        raise Unavailable(str(error).splitlines()[0]) from error
    return run


def sdpa(case, device):
    return lambda q, k, v: (functional.scaled_dot_product_attention(q, k, v, is_causal=True), None)


def multihead(case, device):
    """The module people reach for when they want weights; identity projections."""
    if case.dtype != "float32":
        raise Unavailable("rounds scores to 16 bits, which is too coarse for the check")
    B, H, T, D = sizes(case)
    module = torch.nn.MultiheadAttention(H * D, H, bias=False, batch_first=True, device=device)
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.eye(H * D).repeat(3, 1))
        module.out_proj.weight.copy_(torch.eye(H * D))
    mask = additive_mask(T, device)

    def run(q, k, v):
        merged = [x.transpose(1, 2).reshape(B, T, H * D) for x in (q, k, v)]
        out, weights = module(*merged, attn_mask=mask, average_attn_weights=False)
        return out.view(B, T, H, D).transpose(1, 2), weights

    return run


@functools.cache
def expected(case: Case):
    x = inputs(case, "cpu")
    q, k, v = (y.detach().double().numpy()[:2] for y in x.qkv)
    forward = reference.attention(q, k, v, capture=("weights",))
    grads = reference.attention_backward(q, k, v, grad_out=x.grad_out[:2].double().numpy())
    return forward, grads


@functools.cache
def coarse_bounds(case: Case) -> list[float]:
    """In 16 bits, as the tests allow it: what rounding the operands of each product costs."""
    from helpers import attention_triton

    x = inputs(case, "cpu")
    tensors = {name: y.detach()[:2] for name, y in zip("qkv", x.qkv, strict=True)}
    gradients = dict.fromkeys(attention_triton.INCOMING) | {"grad_out": x.grad_out[:2]}
    wanted = attention_triton.expect(tensors, gradients)
    mode = {"bfloat16": "bf16", "float16": "fp16"}[case.dtype]
    found = attention_triton.bounds(mode, tensors, gradients, wanted)
    names = ("out", "weights", *attention_triton.BACKWARD)
    return [found[name] / max(1.0, np.abs(wanted[name]).max()) for name in names]


def check(case: Case, mode: str, x: Inputs, outputs, units: float) -> str | None:
    """The first two sequences against the reference."""
    forward, grads = expected(case)
    wanted = [forward.out, forward.weights, *(grads if mode == FULL else ())]
    _, _, T, D = sizes(case)
    whole = case.dtype == "float32"
    allowed = [attention_error(torch.float32, T, D)] * 5 if whole else coarse_bounds(case)
    for index, (got, want) in enumerate(zip(outputs, wanted, strict=True)):
        if got is None:
            continue
        if fault := deviation(f"result {index}", got[:2], want, allowed[index]):
            return fault
    return None


def operations(case: Case, mode: str) -> float:
    """Floating-point operations of the visible scores: two products forward, five more back."""
    B, H, T, D = sizes(case)
    return (2 if mode == FORWARD else 7) * 2 * B * H * D * T * (T + 1) / 2


def traffic(case: Case, mode: str) -> float:
    """q, k, v are read, out and weights written; backward, q, k, v, out and its gradient are read
    and three gradients written."""
    B, H, T, D = sizes(case)
    heads, weights = B * H * T * D, B * H * T * T
    size = getattr(torch, case.dtype).itemsize
    return size * (4 * heads + weights + (8 * heads if mode == FULL else 0))


def output_shapes(case: Case) -> list[tuple[int, ...]]:
    B, H, T, D = sizes(case)
    return [(B, H, T, D), (B, H, T, T)]


COLOURS = {
    "native": "#009E73",
    "triton": "#CC79A7",
    "sdpa": "#0072B2",
    "eager": "#D55E00",
    "compiled": "#E69F00",
    "multihead": "#999999",
    "gemm": "#000000",
}


def claims():
    limits = {39: 0.6, 93: 0.9, 128: 0.9, 512: 1.1}
    for case in FLOAT32:
        limit = limits[case.shape["T"]]
        goal = "goal: as fast as torch's fused attention, which returns no weights, or faster"
        yield Claim(case.name, slow="native", fast="sdpa", at_most=limit, mode=FULL, goal=goal)
        if case.shape["T"] == 39:
            for peer in ("eager", "compiled", "multihead"):
                goal = "goal: 1.8 times as fast as what torch has with weights"
                remark = "known: memory bounds it, which two threads share (benchmarks/README.md)"
                target = dict(slow=peer, fast="native", at_least=1.8, mode=FULL)
                yield Claim(case.name, **target, goal=goal, remark=remark)
        if case.shape["T"] in (128, 512):
            for name in ASKED:
                goal = "goal: what is asked of the weights costs 30% of a forward pass at most"
                target = dict(slow=f"native-{name}", fast="native-plain", at_most=1.3)
                yield Claim(case.name, **target, goal=goal)


BENCH = Bench(
    op=OP,
    cases=CASES,
    providers=[
        provider("native", of_backend("native", ("weights",)), devices=("cpu",), backend="native"),
        provider("native-plain", of_backend("native", ()), devices=("cpu",), backend="native"),
        provider(
            "native-entropy",
            of_backend("native", ("weights", "entropy")),
            devices=("cpu",),
            backend="native",
        ),
        *asking("native", "cpu"),
        provider("triton", of_backend("triton", ("weights",)), devices=("cuda",), backend="triton"),
        *asking("triton", "cuda"),
        provider("eager-received", eager_received, modes=(FORWARD,)),
        provider("flex-received", flex_received, modes=(FORWARD,)),
        provider("sdpa", sdpa),
        provider("eager", eager),
        provider("compiled", compiled),
        provider("multihead", multihead),
        common.gemm_bound("gemm", operations),
        common.write_bound("write", output_shapes),
    ],
    inputs=inputs,
    check=check,
    baseline="sdpa",
    operations=operations,
    traffic=traffic,
    claims=tuple(claims()),
    quick=QUICK,
    slow=("compiled", "flex-received"),
    plot=functools.partial(
        plots.bars,
        mode=FULL,
        cases=[case.name for case in FLOAT32],
        colours=COLOURS,
        title="attention, causal, float32",
    ),
    plot_help="draw forward + backward times of all cases",
)


def main(argv: list[str] | None = None) -> int:
    return command.main(BENCH, argv)


if __name__ == "__main__":
    sys.exit(main())
