"""What a GPU can do at most, to hold times against: by its name, or measured."""

import re

import torch
from bwt.kernels.gpus import GPUS, Peak, tera
from timing import Call

A100 = GPUS["A100"].peak
TABLE: list[tuple[str, Peak]] = [
    # The same chip with other memories.
    (r"A100.*SXM.*80GB", A100),
    (r"A100.*80GB", A100._replace(bandwidth=1.935e12)),
    (r"A100", A100._replace(bandwidth=1.555e12)),
    # The datasheet of the H100 has 1,513 and 756 with sparsity for this form.
    (r"H100 PCIe", tera(2.0, 756, 378, 51, 26, GPUS["H100"].peak.source)),
    (r"\bH100 80GB HBM3", GPUS["H100"].peak),
    (r"\bB200", GPUS["B200"].peak),
    (r"RTX 4090(?! D| Laptop)", GPUS["RTX 4090"].peak),
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
