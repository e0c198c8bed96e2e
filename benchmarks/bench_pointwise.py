"""Speed of gelu and rms_norm, at the sizes of the paper's bijection model (batch 64, 37 positions).

    python benchmarks/bench_pointwise.py

`torch` is the same op of torch. `write` is the bound: the output is written to memory, and nothing
else is done.
"""

import sys
from typing import NamedTuple

import command
import common
import numpy as np
import torch
from bounds import deviation, gelu_error, norm_error
from common import FORWARD, FULL, Bench, Case, Provider, Unavailable
from torch import Tensor

from bwt import ops, reference
from bwt.ops import _dispatch


def declare(op: str, rows: int, width: int) -> Case:
    return Case(f"{op}-{rows}x{width}", dict(op=op, rows=rows, width=width), (FORWARD, FULL))


CASES = [declare("gelu", 64 * 37, 768), declare("rms_norm", 64 * 37, 192)]


class Inputs(NamedTuple):
    tensors: tuple[Tensor, ...]  # x, or x and weight
    grad: Tensor


def inputs(case: Case, device: str) -> Inputs:
    generator = torch.Generator().manual_seed(0)
    shapes = [(case.shape["rows"], case.shape["width"])] * 2
    if case.shape["op"] == "rms_norm":
        shapes.insert(1, shapes[0][1:])
    *tensors, grad = (torch.randn(shape, generator=generator).to(device) for shape in shapes)
    return Inputs(tuple(tensors), grad)


def provider(backend: str, devices=("cpu", "cuda")) -> Provider:
    def make(case, mode, x, device):
        op = case.shape["op"]
        try:
            _dispatch.choose(op, backend, torch.device(device))
        except RuntimeError as reason:
            raise Unavailable(str(reason)) from reason
        compute = getattr(ops, op)
        if mode == FORWARD:
            return lambda: [compute(*x.tensors, backend=backend)], case.units
        leaves = [tensor.clone().requires_grad_() for tensor in x.tensors]

        def call():
            y = compute(*leaves, backend=backend)
            return [y.detach(), *torch.autograd.grad(y, leaves, x.grad)]

        return call, case.units

    return Provider(backend, make, devices, backend=backend)


def check(case: Case, mode: str, x: Inputs, outputs, units: float) -> str | None:
    op, arrays = case.shape["op"], [tensor.double().cpu().numpy() for tensor in x.tensors]
    wanted = [getattr(reference, op)(*arrays)]
    if mode == FULL:
        gradients = getattr(reference, f"{op}_backward")(*arrays, x.grad.double().cpu().numpy())
        wanted += gradients if isinstance(gradients, tuple) else [gradients]
    dtype = x.tensors[0].dtype
    if op == "gelu":
        bound = gelu_error(dtype, np.abs(arrays[0]).max())
    else:
        bound = norm_error(dtype, max(case.shape["rows"], case.shape["width"]))
    for index, (got, want) in enumerate(zip(outputs, wanted, strict=True)):
        if fault := deviation(f"result {index}", got, want, bound):
            return fault
    return None


def traffic(case: Case, mode: str) -> float:
    """x is read, y written; backward, x and the gradient of y are read, that of x written."""
    return 4 * case.shape["rows"] * case.shape["width"] * (2 if mode == FORWARD else 5)


BENCH = Bench(
    op="pointwise",
    cases=CASES,
    providers=[
        provider("native", devices=("cpu",)),
        provider("torch"),
        common.write_bound("write", lambda case: [(case.shape["rows"], case.shape["width"])]),
    ],
    inputs=inputs,
    check=check,
    baseline="torch",
    traffic=traffic,
    quick=tuple(CASES),
)


def main(argv: list[str] | None = None) -> int:
    return command.main(BENCH, argv)


if __name__ == "__main__":
    sys.exit(main())
