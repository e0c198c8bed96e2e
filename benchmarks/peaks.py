"""What a GPU can do at most, to hold times against: by its name, or measured.

Figures are dense ones (without sparsity) at the boost clock, in bytes and operations per second; a
multiply-add counts as two. `tensor` is of 16-bit operands summed in float32.
"""

import re
from typing import NamedTuple

import torch
from timing import Call


class Peak(NamedTuple):
    bandwidth: float
    tensor: float
    tf32: float
    fp32: float  # multiply-adds, no tensor cores
    fp64: float
    source: str

    def arithmetic(self, dtype: str) -> float:
        """bwt computes float32 exactly, unless it is told otherwise."""
        names = {"float16": "tensor", "bfloat16": "tensor", "float64": "fp64"}
        return getattr(self, names.get(dtype, "fp32"))


def _tera(bandwidth, tensor, tf32, fp32, fp64, source) -> Peak:
    return Peak(*(1e12 * x for x in (bandwidth, tensor, tf32, fp32, fp64)), source)


A100, H100 = "A100 datasheet", "H100 datasheet, half of sparse"
B200, ADA = "Blackwell brief, half of sparse", "Ada whitepaper"
TABLE: list[tuple[str, Peak]] = [
    # NVIDIA A100 Tensor Core GPU datasheet: 312 and 156 dense, memory by form.
    (r"A100.*SXM.*80GB", _tera(2.039, 312, 156, 19.5, 9.7, A100)),
    (r"A100.*80GB", _tera(1.935, 312, 156, 19.5, 9.7, A100)),
    (r"A100", _tera(1.555, 312, 156, 19.5, 9.7, A100)),
    # NVIDIA H100 Tensor Core GPU datasheet: SXM 1,979 and 989 with sparsity, PCIe 1,513 and 756;
    # dense is half of that.
    (r"H100 PCIe", _tera(2.0, 756, 378, 51, 26, H100)),
    (r"\bH100 80GB HBM3", _tera(3.35, 989, 494, 67, 34, H100)),
    # NVIDIA Blackwell architecture technical brief (2024), HGX B200: 4.5 and 2.2 P with sparsity;
    # other papers have 75 and 37 for fp32 and fp64 and 7.7 TB/s.
    (r"\bB200", _tera(8.0, 2250, 1100, 80, 40, B200)),
    # NVIDIA Ada GPU architecture whitepaper, appendix A: 16 bits summed in float32.
    (r"RTX 4090(?! D| Laptop)", _tera(1.008, 165.2, 82.6, 82.6, 1.29, ADA)),
]


def known(name: str) -> Peak | None:
    return next((peak for pattern, peak in TABLE if re.search(pattern, name)), None)


def of(name: str, seconds) -> Peak:
    """The table's, or what a copy and a matrix product reach; `seconds(call)` times a call."""
    return known(name) or measured(seconds)


COPIED = 1 << 28  # bytes, far beyond any L2 cache
ORDER = 4096  # of a matrix


def measured(seconds, device: str = "cuda", copied: int = COPIED, order: int = ORDER) -> Peak:
    source = torch.zeros(copied, dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    rates = {"bandwidth": 2 * copied / seconds(lambda: target.copy_(source))}
    for name, dtype in (("tensor", torch.bfloat16), ("fp32", torch.float32)):
        rates[name] = 2 * order**3 / seconds(_product(dtype, order, device))
    half = order // 4  # float64 is slow on most
    rates["fp64"] = 2 * half**3 / seconds(_product(torch.float64, half, device))
    with _tf32():
        rates["tf32"] = 2 * order**3 / seconds(_product(torch.float32, order, device))
    return Peak(**rates, source="measured by a copy and torch.mm")


def _product(dtype: torch.dtype, order: int, device: str) -> Call:
    left, right = (torch.ones(order, order, dtype=dtype, device=device) for _ in range(2))
    out = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=out)


class _tf32:
    def __enter__(self):
        self.before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")

    def __exit__(self, *_):
        torch.set_float32_matmul_precision(self.before)
