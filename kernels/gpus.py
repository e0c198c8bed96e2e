"""What GPUs can do at most.

Figures are dense ones (without sparsity) at the boost clock, in bytes and operations per second; a
multiply-add counts as two. `tensor` is of 16-bit operands summed in float32.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple


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


def tera(
    bandwidth: float, tensor: float, tf32: float, fp32: float, fp64: float, source: str
) -> Peak:
    bandwidth, tensor, tf32, fp32, fp64 = (1e12 * x for x in (bandwidth, tensor, tf32, fp32, fp64))
    return Peak(bandwidth, tensor, tf32, fp32, fp64, source)


@dataclass(frozen=True)
class Gpu:
    """What one has, and what its multiprocessors have each."""

    peak: Peak
    multiprocessors: int
    l2: int  # bytes per cycle between the L2 cache and all multiprocessors
    fp32: int  # lanes, that is, operations per cycle
    fp64: int
    warps: int  # resident at most
    blocks: int
    shared: int  # bytes

    INTEGER: ClassVar[int] = 64  # lanes of every multiprocessor here
    SPECIAL: ClassVar[int] = 16
    ISSUE: ClassVar[int] = 4  # instructions per cycle, each of a warp
    REGISTERS: ClassVar[int] = 65536

    @property
    def clock(self) -> float:
        """Cycles per second at which the peak is reached."""
        return self.peak.fp32 / (2 * self.multiprocessors * self.fp32)


# L2: 5,120 bytes per cycle of the A100 are published; those of the others are assumed, with twice
# as many for the two dies of a B200 and what was measured of a 4090.
GPUS = {
    # NVIDIA A100 Tensor Core GPU datasheet (SXM, 80 GB): 312 and 156 dense.
    "A100": Gpu(
        tera(2.039, 312, 156, 19.5, 9.7, "A100 datasheet"), 108, 5120, 64, 32, 64, 32, 164 << 10
    ),
    # NVIDIA H100 Tensor Core GPU datasheet (SXM): 1,979 and 989 with sparsity; dense is half.
    "H100": Gpu(
        tera(3.35, 989, 494, 67, 34, "H100 datasheet, half of sparse"),
        *(132, 5120, 128, 64, 64, 32, 228 << 10),
    ),
    # NVIDIA Blackwell architecture technical brief (2024), HGX B200: 4.5 and 2.2 P with sparsity;
    # other papers have 75 and 37 for fp32 and fp64 and 7.7 TB/s.
    "B200": Gpu(
        tera(8.0, 2250, 1100, 80, 40, "Blackwell brief, half of sparse"),
        *(148, 10240, 128, 64, 64, 32, 228 << 10),
    ),
    # NVIDIA Ada GPU architecture whitepaper, appendix A: 16 bits summed in float32.
    "RTX 4090": Gpu(
        tera(1.008, 165.2, 82.6, 82.6, 1.29, "Ada whitepaper"),
        *(128, 2048, 128, 2, 48, 24, 100 << 10),
    ),
}
