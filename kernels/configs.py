"""Tile sizes, warps and stages of every kernel: a plain table, and nothing is tuned at run time.

The same call therefore runs the same code on every machine of an architecture, and every entry
can be compiled ahead of time (`python -m bwt.kernels.aot`). `bwt tune` times candidates on a GPU
and keeps a table for that device, which goes before this one (tuned.py).
"""

import warnings
from contextlib import nullcontext
from functools import cache
from typing import Any, NamedTuple

from . import tuned

# Fusing multiply and add is Triton's default today and not tomorrow; it decides the last bits.
FP_FUSION = True
Table = dict[tuple[str, str, str, int, str], tuple["Config", ...]]
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "gfx942")
MAX_REGISTERS = 255  # of a thread, on any NVIDIA GPU
# Tensor cores as Ampere's, and its smaller shared memory too.
SERVED_AS = {"sm_89": "sm_86", "sm_120": "sm_86"}
# Triton multiplies without tensor cores there, whatever the dtype: as float32 does everywhere.
WITHOUT_TENSOR_CORES = ("sm_75",)
# Bytes that one block may have.
SHARED_MEMORY = {
    "sm_75": 64 << 10,
    "sm_80": 163 << 10,
    "sm_86": 99 << 10,
    "sm_89": 99 << 10,
    "sm_90": 227 << 10,
    "sm_100": 227 << 10,
    "sm_120": 99 << 10,
    "gfx942": 64 << 10,
}


class Config(NamedTuple):
    tiles: dict[str, int]  # constexprs of the kernel
    warps: int
    stages: int
    # Of a thread, at most. Without it ptxas aims at a number of resident warps, and rather spills
    # a register or two than miss it.
    registers: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Triton's."""
        found = {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": FP_FUSION}
        return found if self.registers is None else found | {"maxnreg": self.registers}


class Launch(NamedTuple):
    kernel: Any
    grid: int
    arguments: dict[str, Any]  # tensors, numbers and flags by name; tiles are in the config
    config: Config

    @property
    def name(self) -> str:
        return self.kernel.__name__.removesuffix("_kernel")

    def run(self, device) -> Any:
        import torch

        # Triton launches on the current device, whatever the tensors say.
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            return self.kernel[(self.grid,)](
                **self.arguments, **self.config.tiles, **self.config.options
            )


def C(warps: int, stages: int, registers: int | None = None, **tiles: int) -> Config:
    return Config(tiles, warps, stages, registers)


# (op, kernel, dtype, size, architecture or "any") -> configs, smallest tile first. The size is that
# of a head in attention, and of the padded states in hmm_filter and selective_scan.
# bf16 is served by the entries of fp16. tf32 is float32 on tensor cores, fp32 is exact float32.
# A third number is the most registers, where ptxas would spill for the sake of more warps.
# Attention of short sequences (short_*, blocks_backward, and stream_offset before it) has 1 or 2
# warps or products of fewer than 64 rows: with more of both Triton takes wgmma on sm_90 and tcgen05
# on sm_100, which no test can execute and which gain nothing where memory is the bound.
TABLE: Table = {
    ("attention", "short_forward", "fp16", 16, "any"): (
        C(1, 1, BT=16, BS=16, PACK=1),
        C(2, 1, BT=32, BS=32, PACK=1),
        C(2, 1, BT=64, BS=64, PACK=1),
        C(2, 1, BT=32, BS=128, PACK=1),
        C(4, 1, BT=32, BS=256, PACK=1),
    ),
    ("attention", "short_forward", "fp16", 32, "any"): (
        C(1, 1, BT=16, BS=16, PACK=1),
        C(2, 1, BT=32, BS=32, PACK=1),
        C(2, 1, BT=64, BS=64, PACK=1),
        C(2, 1, BT=32, BS=128, PACK=1),
        C(4, 1, BT=32, BS=256, PACK=1),
    ),
    ("attention", "short_forward", "fp16", 32, "sm_120"): (
        C(1, 1, BT=16, BS=16, PACK=1),
        C(2, 1, BT=32, BS=32, PACK=1),
        C(2, 1, BT=64, BS=64, PACK=1),
        C(2, 1, BT=32, BS=128, PACK=1),
        C(8, 1, BT=32, BS=256, PACK=1),
    ),
    ("attention", "short_forward", "fp16", 64, "any"): (
        C(1, 1, BT=16, BS=16, PACK=1),
        C(2, 1, BT=32, BS=32, PACK=1),
        C(2, 1, BT=64, BS=64, PACK=1),
        C(4, 1, BT=32, BS=128, PACK=1),
        C(4, 1, BT=32, BS=256, PACK=1),
    ),
    ("attention", "short_forward", "fp16", 128, "any"): (
        C(1, 1, BT=16, BS=16, PACK=1),
        C(2, 1, BT=32, BS=32, PACK=1),
        C(2, 1, BT=32, BS=64, PACK=1),
        C(4, 1, BT=32, BS=128, PACK=1),
        C(8, 1, BT=32, BS=256, PACK=1),
    ),
    ("attention", "short_forward", "fp16", 128, "gfx942"): (
        C(1, 1, BT=16, BS=16, PACK=1),
        C(2, 1, BT=32, BS=32, PACK=1),
        C(2, 1, BT=32, BS=64, PACK=1),
        C(4, 1, BT=32, BS=128, PACK=1),
        C(4, 1, BT=16, BS=256, PACK=1),
    ),
    ("attention", "short_forward", "tf32", 16, "any"): (
        C(1, 1, BT=16, BS=16, PACK=1),
        C(2, 1, BT=32, BS=32, PACK=1),
        C(2, 1, BT=64, BS=64, PACK=1),
        C(2, 1, BT=32, BS=128, PACK=1),
        C(4, 1, BT=16, BS=256, PACK=1),
    ),
    ("attention", "short_forward", "tf32", 32, "any"): (
        C(1, 1, BT=16, BS=16, PACK=1),
        C(2, 1, BT=32, BS=32, PACK=1),
        C(2, 1, BT=64, BS=64, PACK=1),
        C(2, 1, BT=32, BS=128, PACK=1),
        C(4, 1, BT=16, BS=256, PACK=1),
    ),
    ("attention", "short_forward", "tf32", 64, "any"): (
        C(1, 1, BT=16, BS=16, PACK=1),
        C(2, 1, BT=32, BS=32, PACK=1),
        C(2, 1, BT=32, BS=64, PACK=1),
        C(4, 1, BT=32, BS=128, PACK=1),
        C(8, 1, BT=32, BS=256, PACK=1),
    ),
    ("attention", "short_forward", "tf32", 64, "gfx942"): (
        C(1, 1, BT=16, BS=16, PACK=1),
        C(2, 1, BT=32, BS=32, PACK=1),
        C(2, 1, BT=32, BS=64, PACK=1),
        C(4, 1, BT=32, BS=128, PACK=1),
        C(4, 1, BT=16, BS=256, PACK=1),
    ),
    ("attention", "short_forward", "tf32", 64, "sm_86"): (
        C(1, 1, BT=16, BS=16, PACK=1),
        C(2, 1, BT=32, BS=32, PACK=1),
        C(2, 1, BT=32, BS=64, PACK=1),
        C(4, 1, BT=32, BS=128, PACK=1),
        C(8, 1, BT=16, BS=256, PACK=1),
    ),
    ("attention", "short_forward", "tf32", 128, "any"): (
        C(2, 1, BT=16, BS=16, PACK=1),
        C(4, 1, BT=32, BS=32, PACK=1),
        C(4, 1, BT=32, BS=64, PACK=1),
        C(8, 1, BT=32, BS=128, PACK=1),
    ),
    ("attention", "short_forward", "tf32", 128, "gfx942"): (
        C(2, 1, BT=16, BS=16, PACK=1),
        C(4, 1, BT=32, BS=32, PACK=1),
        C(4, 1, BT=32, BS=64, PACK=1),
        C(4, 1, BT=16, BS=128, PACK=1),
    ),
    ("attention", "short_forward", "tf32", 128, "sm_86"): (
        C(2, 1, BT=16, BS=16, PACK=1),
        C(4, 1, BT=32, BS=32, PACK=1),
        C(4, 1, BT=32, BS=64, PACK=1),
    ),
    ("attention", "short_forward", "fp32", 16, "any"): (
        C(1, 1, BT=16, BS=16, PACK=1),
        C(2, 1, BT=32, BS=32, PACK=1),
        C(4, 1, BT=16, BS=64, PACK=1),
        C(8, 1, BT=32, BS=128, PACK=1),
        C(8, 1, BT=16, BS=256, PACK=1),
    ),
    ("attention", "short_forward", "fp32", 16, "sm_75"): (
        C(1, 1, BT=16, BS=16, PACK=1),
        C(2, 1, BT=32, BS=32, PACK=1),
    ),
    ("attention", "short_forward", "fp32", 32, "any"): (
        C(1, 1, BT=16, BS=16, PACK=1),
        C(2, 1, BT=32, BS=32, PACK=1),
        C(4, 1, BT=32, BS=64, PACK=1),
        C(8, 1, BT=16, BS=128, PACK=1),
        C(8, 1, BT=16, BS=256, PACK=1),
    ),
    ("attention", "short_forward", "fp32", 32, "sm_75"): (
        C(1, 1, BT=16, BS=16, PACK=1),
        C(2, 1, BT=32, BS=32, PACK=1),
    ),
    ("attention", "short_forward", "fp32", 64, "any"): (
        C(1, 1, BT=16, BS=16, PACK=1),
        C(4, 1, BT=32, BS=32, PACK=1),
        C(4, 1, BT=16, BS=64, PACK=1),
    ),
    ("attention", "short_forward", "fp32", 64, "sm_75"): (),
    ("attention", "short_forward", "fp32", 128, "any"): (
        C(4, 1, BT=16, BS=16, PACK=1),
        C(4, 1, BT=16, BS=32, PACK=1),
        C(8, 1, BT=16, BS=64, PACK=1),
    ),
    ("attention", "short_forward", "fp32", 128, "sm_75"): (),
    ("attention", "short_backward", "fp16", 16, "any"): (
        C(1, 1, 255, BT=16, BS=16, PACK=1),
        C(2, 1, 255, BT=32, BS=32, PACK=1),
        C(2, 1, BT=16, BS=64, PACK=1),
    ),
    ("attention", "short_backward", "fp16", 32, "any"): (
        C(1, 1, BT=16, BS=16, PACK=1),
        C(2, 1, BT=32, BS=32, PACK=1),
        C(2, 1, BT=16, BS=64, PACK=1),
    ),
    ("attention", "short_backward", "fp16", 64, "any"): (
        C(1, 1, BT=16, BS=16, PACK=1),
        C(2, 1, BT=16, BS=32, PACK=1),
    ),
    ("attention", "short_backward", "fp16", 128, "any"): (),
    ("attention", "short_backward", "tf32", 16, "any"): (
        C(1, 1, 255, BT=16, BS=16, PACK=1),
        C(2, 1, BT=32, BS=32, PACK=1),
        C(2, 1, BT=16, BS=64, PACK=1),
    ),
    ("attention", "short_backward", "tf32", 32, "any"): (
        C(1, 1, BT=16, BS=16, PACK=1),
        C(2, 1, BT=32, BS=32, PACK=1),
        C(2, 1, BT=16, BS=64, PACK=1),
    ),
    ("attention", "short_backward", "tf32", 64, "any"): (
        C(2, 1, BT=16, BS=16, PACK=1),
        C(4, 1, BT=32, BS=32, PACK=1),
    ),
    ("attention", "short_backward", "tf32", 128, "any"): (),
    ("attention", "short_backward", "fp32", 16, "any"): (
        C(2, 1, BT=16, BS=16, PACK=1),
        C(4, 1, BT=32, BS=32, PACK=1),
    ),
    ("attention", "short_backward", "fp32", 16, "sm_75"): (),
    ("attention", "short_backward", "fp32", 16, "sm_86"): (
        C(4, 1, BT=16, BS=16, PACK=1),
        C(4, 1, BT=32, BS=32, PACK=1),
    ),
    ("attention", "short_backward", "fp32", 32, "any"): (
        C(2, 1, 255, BT=16, BS=16, PACK=1),
        C(8, 1, BT=32, BS=32, PACK=1),
    ),
    ("attention", "short_backward", "fp32", 32, "sm_75"): (),
    ("attention", "short_backward", "fp32", 64, "any"): (),
    ("attention", "short_backward", "fp32", 128, "any"): (),
    ("attention", "blocks_backward", "fp16", 16, "any"): (C(4, 1, BT=16, BS=32),),
    ("attention", "blocks_backward", "fp16", 32, "any"): (C(4, 1, 255, BT=32, BS=32),),
    ("attention", "blocks_backward", "fp16", 64, "any"): (C(4, 1, BT=32, BS=32),),
    ("attention", "blocks_backward", "fp16", 128, "any"): (C(4, 1, BT=16, BS=32),),
    ("attention", "blocks_backward", "tf32", 16, "any"): (C(4, 1, BT=16, BS=32),),
    ("attention", "blocks_backward", "tf32", 32, "any"): (C(4, 1, BT=32, BS=32),),
    ("attention", "blocks_backward", "tf32", 64, "any"): (C(4, 1, BT=32, BS=32),),
    ("attention", "blocks_backward", "tf32", 128, "any"): (C(4, 1, BT=16, BS=32),),
    ("attention", "blocks_backward", "fp32", 16, "any"): (C(4, 1, BT=32, BS=32),),
    ("attention", "blocks_backward", "fp32", 16, "sm_75"): (C(4, 1, BT=16, BS=32),),
    ("attention", "blocks_backward", "fp32", 32, "any"): (C(4, 1, BT=32, BS=32),),
    ("attention", "blocks_backward", "fp32", 32, "sm_75"): (C(4, 1, BT=16, BS=32),),
    ("attention", "blocks_backward", "fp32", 32, "sm_100"): (C(4, 1, BT=16, BS=32),),
    ("attention", "blocks_backward", "fp32", 32, "sm_120"): (C(4, 1, BT=16, BS=32),),
    ("attention", "blocks_backward", "fp32", 64, "any"): (C(4, 1, BT=16, BS=32),),
    ("attention", "blocks_backward", "fp32", 64, "sm_90"): (C(4, 1, 255, BT=16, BS=32),),
    ("attention", "blocks_backward", "fp32", 64, "sm_120"): (C(4, 1, BT=16, BS=16),),
    ("attention", "blocks_backward", "fp32", 128, "any"): (C(8, 1, BT=16, BS=32),),
    ("attention", "blocks_backward", "fp32", 128, "sm_75"): (C(8, 1, BT=16, BS=16),),
    ("attention", "stream_forward", "fp16", 16, "any"): (C(4, 2, BT=64, BS=64),),
    ("attention", "stream_forward", "fp16", 32, "any"): (C(4, 2, BT=64, BS=64),),
    ("attention", "stream_forward", "fp16", 64, "any"): (C(4, 2, BT=64, BS=64),),
    ("attention", "stream_forward", "fp16", 128, "any"): (C(4, 2, BT=64, BS=32),),
    ("attention", "stream_forward", "tf32", 16, "any"): (C(4, 2, BT=64, BS=64),),
    ("attention", "stream_forward", "tf32", 32, "any"): (C(4, 2, BT=64, BS=64),),
    ("attention", "stream_forward", "tf32", 64, "any"): (C(4, 2, BT=64, BS=64),),
    ("attention", "stream_forward", "tf32", 64, "sm_120"): (C(8, 2, BT=64, BS=64),),
    ("attention", "stream_forward", "tf32", 128, "any"): (C(4, 2, BT=32, BS=32),),
    ("attention", "stream_forward", "fp32", 16, "any"): (C(4, 2, BT=32, BS=32),),
    ("attention", "stream_forward", "fp32", 32, "any"): (C(4, 2, BT=32, BS=32),),
    ("attention", "stream_forward", "fp32", 64, "any"): (C(4, 2, BT=32, BS=32),),
    ("attention", "stream_forward", "fp32", 128, "any"): (C(4, 1, BT=16, BS=16),),
    ("attention", "stream_weights", "fp16", 16, "any"): (C(4, 1, BT=64, BS=64),),
    ("attention", "stream_weights", "fp16", 32, "any"): (C(4, 1, BT=64, BS=64),),
    ("attention", "stream_weights", "fp16", 64, "any"): (C(4, 1, BT=64, BS=64),),
    ("attention", "stream_weights", "fp16", 64, "sm_120"): (C(4, 1, 255, BT=64, BS=64),),
    ("attention", "stream_weights", "fp16", 128, "any"): (C(4, 1, BT=64, BS=64),),
    ("attention", "stream_weights", "tf32", 16, "any"): (C(4, 1, BT=64, BS=64),),
    ("attention", "stream_weights", "tf32", 32, "any"): (C(4, 1, BT=64, BS=64),),
    ("attention", "stream_weights", "tf32", 64, "any"): (C(4, 1, BT=64, BS=64),),
    ("attention", "stream_weights", "tf32", 128, "any"): (C(4, 1, BT=32, BS=32),),
    ("attention", "stream_weights", "tf32", 128, "sm_120"): (C(4, 1, 255, BT=32, BS=32),),
    ("attention", "stream_weights", "fp32", 16, "any"): (C(4, 1, BT=32, BS=32),),
    ("attention", "stream_weights", "fp32", 32, "any"): (C(4, 1, BT=32, BS=32),),
    ("attention", "stream_weights", "fp32", 64, "any"): (C(4, 1, BT=32, BS=32),),
    ("attention", "stream_weights", "fp32", 64, "sm_75"): (C(4, 1, BT=16, BS=32),),
    ("attention", "stream_weights", "fp32", 128, "any"): (C(8, 1, BT=32, BS=32),),
    ("attention", "stream_weights", "fp32", 128, "sm_75"): (C(8, 1, BT=16, BS=16),),
    ("attention", "stream_offset", "fp16", 16, "any"): (C(2, 2, BT=32, BS=32),),
    ("attention", "stream_offset", "fp16", 32, "any"): (C(2, 2, BT=32, BS=32),),
    ("attention", "stream_offset", "fp16", 64, "any"): (C(2, 2, BT=32, BS=64),),
    ("attention", "stream_offset", "fp16", 128, "any"): (C(4, 2, BT=32, BS=32),),
    ("attention", "stream_offset", "tf32", 16, "any"): (C(2, 2, BT=32, BS=32),),
    ("attention", "stream_offset", "tf32", 32, "any"): (C(2, 2, BT=32, BS=32),),
    ("attention", "stream_offset", "tf32", 64, "any"): (C(2, 2, BT=32, BS=64),),
    ("attention", "stream_offset", "tf32", 128, "any"): (C(4, 2, BT=32, BS=32),),
    ("attention", "stream_offset", "fp32", 16, "any"): (C(4, 2, BT=32, BS=32),),
    ("attention", "stream_offset", "fp32", 32, "any"): (C(4, 2, BT=32, BS=32),),
    ("attention", "stream_offset", "fp32", 64, "any"): (C(4, 2, BT=32, BS=32),),
    ("attention", "stream_offset", "fp32", 128, "any"): (C(8, 1, BT=16, BS=32),),
    ("attention", "stream_offset", "fp32", 128, "sm_75"): (C(8, 1, BT=16, BS=16),),
    ("attention", "stream_keys", "fp16", 16, "any"): (C(4, 2, 255, BT=32, BS=64),),
    ("attention", "stream_keys", "fp16", 32, "any"): (C(4, 2, BT=32, BS=64),),
    ("attention", "stream_keys", "fp16", 32, "sm_120"): (C(4, 2, BT=32, BS=32),),
    ("attention", "stream_keys", "fp16", 64, "any"): (C(4, 2, BT=32, BS=32),),
    ("attention", "stream_keys", "fp16", 128, "any"): (C(8, 2, BT=32, BS=32),),
    ("attention", "stream_keys", "tf32", 16, "any"): (C(4, 1, BT=32, BS=64),),
    ("attention", "stream_keys", "tf32", 32, "any"): (C(4, 1, BT=32, BS=64),),
    ("attention", "stream_keys", "tf32", 32, "sm_89"): (C(4, 1, BT=32, BS=32),),
    ("attention", "stream_keys", "tf32", 32, "sm_120"): (C(4, 1, BT=32, BS=32),),
    ("attention", "stream_keys", "tf32", 64, "any"): (C(4, 1, BT=32, BS=32),),
    ("attention", "stream_keys", "tf32", 64, "sm_100"): (C(4, 1, 255, BT=32, BS=32),),
    ("attention", "stream_keys", "tf32", 128, "any"): (C(8, 1, BT=32, BS=32),),
    ("attention", "stream_keys", "tf32", 128, "sm_86"): (C(8, 1, 255, BT=32, BS=32),),
    ("attention", "stream_keys", "fp32", 16, "any"): (C(4, 1, BT=32, BS=32),),
    ("attention", "stream_keys", "fp32", 32, "any"): (C(4, 1, BT=32, BS=32),),
    ("attention", "stream_keys", "fp32", 64, "any"): (C(8, 1, BT=32, BS=32),),
    ("attention", "stream_keys", "fp32", 128, "any"): (C(8, 1, BT=16, BS=16),),
    ("attention", "stream_queries", "fp16", 16, "any"): (C(4, 2, BT=64, BS=32),),
    ("attention", "stream_queries", "fp16", 32, "any"): (C(4, 2, BT=64, BS=32),),
    ("attention", "stream_queries", "fp16", 64, "any"): (C(4, 2, BT=64, BS=32),),
    ("attention", "stream_queries", "fp16", 64, "sm_120"): (C(4, 2, BT=32, BS=32),),
    ("attention", "stream_queries", "fp16", 128, "any"): (C(4, 2, BT=32, BS=32),),
    ("attention", "stream_queries", "tf32", 16, "any"): (C(4, 1, BT=64, BS=32),),
    ("attention", "stream_queries", "tf32", 32, "any"): (C(4, 1, BT=64, BS=32),),
    ("attention", "stream_queries", "tf32", 64, "any"): (C(4, 1, BT=32, BS=32),),
    ("attention", "stream_queries", "tf32", 64, "sm_86"): (C(4, 1, 255, BT=32, BS=32),),
    ("attention", "stream_queries", "tf32", 64, "sm_90"): (C(4, 1, 255, BT=32, BS=32),),
    ("attention", "stream_queries", "tf32", 128, "any"): (C(4, 1, BT=16, BS=32),),
    ("attention", "stream_queries", "fp32", 16, "any"): (C(4, 1, BT=32, BS=32),),
    ("attention", "stream_queries", "fp32", 16, "sm_86"): (C(4, 1, 255, BT=32, BS=32),),
    ("attention", "stream_queries", "fp32", 16, "sm_90"): (C(4, 1, 255, BT=32, BS=32),),
    ("attention", "stream_queries", "fp32", 32, "any"): (C(4, 1, BT=32, BS=32),),
    ("attention", "stream_queries", "fp32", 64, "any"): (C(4, 1, 255, BT=32, BS=32),),
    ("attention", "stream_queries", "fp32", 64, "sm_75"): (C(4, 1, BT=16, BS=32),),
    ("attention", "stream_queries", "fp32", 128, "any"): (C(8, 1, BT=16, BS=16),),
    ("hmm_filter", "dot_backward", "fp32", 32, "any"): (C(8, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_backward", "fp32", 64, "any"): (C(8, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_backward", "fp32", 64, "sm_100"): (C(4, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_backward", "fp32", 128, "any"): (C(8, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_backward", "fp64", 32, "any"): (C(8, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_backward", "fp64", 32, "sm_90"): (C(4, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_backward", "fp64", 32, "sm_100"): (C(8, 1, 255, BB=16, BK=16),),
    ("hmm_filter", "dot_backward", "fp64", 64, "any"): (C(8, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_backward", "fp64", 64, "sm_120"): (C(8, 1, 255, BB=16, BK=16),),
    ("hmm_filter", "dot_backward", "fp64", 128, "any"): (C(8, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_backward", "fp64", 128, "sm_86"): (C(8, 1, BB=8, BK=16),),
    ("hmm_filter", "dot_backward", "fp64", 128, "sm_90"): (C(8, 1, 255, BB=16, BK=16),),
    ("hmm_filter", "dot_backward", "fp64", 128, "sm_100"): (C(8, 1, BB=8, BK=16),),
    ("hmm_filter", "dot_forward", "fp32", 32, "any"): (C(4, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_forward", "fp32", 64, "any"): (C(8, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_forward", "fp32", 64, "sm_100"): (C(4, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_forward", "fp32", 128, "any"): (C(8, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_forward", "fp64", 32, "any"): (C(8, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_forward", "fp64", 32, "sm_90"): (C(4, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_forward", "fp64", 64, "any"): (C(8, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_forward", "fp64", 128, "any"): (C(8, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_forward", "fp64", 128, "sm_120"): (C(8, 1, BB=8, BK=16),),
    ("hmm_filter", "dot_forward", "fp64", 128, "sm_100"): (C(8, 1, BB=8, BK=16),),
    ("hmm_filter", "ends", "fp32", 4, "any"): (C(1, 1),),
    ("hmm_filter", "ends", "fp32", 8, "any"): (C(1, 1),),
    ("hmm_filter", "ends", "fp32", 16, "any"): (C(1, 1),),
    ("hmm_filter", "ends", "fp64", 4, "any"): (C(1, 1),),
    ("hmm_filter", "ends", "fp64", 8, "any"): (C(1, 1),),
    ("hmm_filter", "ends", "fp64", 16, "any"): (C(1, 1),),
    ("hmm_filter", "rows_backward", "fp32", 4, "any"): (C(1, 1, BB=8),),
    ("hmm_filter", "rows_backward", "fp32", 8, "any"): (C(1, 1, BB=4),),
    ("hmm_filter", "rows_backward", "fp32", 16, "any"): (C(1, 1, BB=2),),
    ("hmm_filter", "rows_backward", "fp32", 32, "any"): (C(1, 1, BB=1, BK=16),),
    ("hmm_filter", "rows_backward", "fp32", 64, "any"): (C(4, 1, BB=1, BK=16),),
    ("hmm_filter", "rows_backward", "fp32", 128, "any"): (C(8, 1, BB=1, BK=16),),
    ("hmm_filter", "rows_backward", "fp64", 4, "any"): (C(1, 1, BB=8),),
    ("hmm_filter", "rows_backward", "fp64", 8, "any"): (C(1, 1, BB=4),),
    ("hmm_filter", "rows_backward", "fp64", 16, "any"): (C(1, 1, BB=2),),
    ("hmm_filter", "rows_backward", "fp64", 32, "any"): (C(2, 1, BB=1, BK=16),),
    ("hmm_filter", "rows_backward", "fp64", 64, "any"): (C(8, 1, BB=1, BK=16),),
    ("hmm_filter", "rows_backward", "fp64", 128, "any"): (C(16, 1, BB=1, BK=16),),
    ("hmm_filter", "rows_forward", "fp32", 4, "any"): (C(1, 1, BB=8),),
    ("hmm_filter", "rows_forward", "fp32", 8, "any"): (C(1, 1, BB=4),),
    ("hmm_filter", "rows_forward", "fp32", 16, "any"): (C(1, 1, BB=2),),
    ("hmm_filter", "rows_forward", "fp32", 32, "any"): (C(1, 1, BB=1, BK=16),),
    ("hmm_filter", "rows_forward", "fp32", 64, "any"): (C(4, 1, BB=1, BK=16),),
    ("hmm_filter", "rows_forward", "fp32", 128, "any"): (C(8, 1, BB=1, BK=16),),
    ("hmm_filter", "rows_forward", "fp64", 4, "any"): (C(1, 1, BB=8),),
    ("hmm_filter", "rows_forward", "fp64", 8, "any"): (C(1, 1, BB=4),),
    ("hmm_filter", "rows_forward", "fp64", 16, "any"): (C(1, 1, BB=2),),
    ("hmm_filter", "rows_forward", "fp64", 32, "any"): (C(2, 1, BB=1, BK=16),),
    ("hmm_filter", "rows_forward", "fp64", 64, "any"): (C(8, 1, BB=1, BK=16),),
    ("hmm_filter", "rows_forward", "fp64", 128, "any"): (C(16, 1, BB=1, BK=16),),
    ("hmm_filter", "starts", "fp32", 4, "any"): (C(1, 1),),
    ("hmm_filter", "starts", "fp32", 8, "any"): (C(1, 1),),
    ("hmm_filter", "starts", "fp32", 16, "any"): (C(1, 1),),
    ("hmm_filter", "starts", "fp64", 4, "any"): (C(1, 1),),
    ("hmm_filter", "starts", "fp64", 8, "any"): (C(1, 1),),
    ("hmm_filter", "starts", "fp64", 16, "any"): (C(1, 1),),
    ("selective_scan", "backward", "fp32", 4, "any"): (C(8, 1, CH=4, BE=128, NR=2),),
    ("selective_scan", "backward", "fp32", 16, "any"): (C(8, 1, CH=4, BE=64, NR=8),),
    ("selective_scan", "backward", "fp32", 64, "any"): (C(8, 1, CH=4, BE=16, NR=16),),
    ("selective_scan", "backward", "fp64", 4, "any"): (C(8, 1, CH=4, BE=64, NR=4),),
    ("selective_scan", "backward", "fp64", 16, "any"): (C(8, 1, CH=2, BE=32, NR=8),),
    ("selective_scan", "backward", "fp64", 64, "any"): (C(8, 1, CH=2, BE=8, NR=32),),
    ("selective_scan", "forward", "fp32", 4, "any"): (C(4, 1, CH=8, BE=128, NR=1),),
    ("selective_scan", "forward", "fp32", 16, "any"): (C(4, 1, CH=8, BE=64, NR=2),),
    ("selective_scan", "forward", "fp32", 64, "any"): (C(4, 1, CH=8, BE=16, NR=8),),
    ("selective_scan", "forward", "fp64", 4, "any"): (C(4, 1, CH=8, BE=64, NR=2),),
    ("selective_scan", "forward", "fp64", 4, "sm_75"): (C(4, 1, 255, CH=8, BE=64, NR=2),),
    ("selective_scan", "forward", "fp64", 16, "any"): (C(4, 1, CH=4, BE=32, NR=4),),
    ("selective_scan", "forward", "fp64", 64, "any"): (C(4, 1, CH=4, BE=8, NR=16),),
}


def for_amd(config: Config) -> Config:
    """A warp has 64 lanes there, each with 512 registers in blocks of up to 4 warps. A second stage
    is kept in registers, too, and they cannot be limited."""
    return config._replace(warps=min(config.warps, 4), stages=1, registers=None)


def lookup(op: str, kernel: str, dtype: str, size: int, arch: str) -> tuple[Config, ...]:
    """The configs of a kernel, smallest tile first. A KeyError names an entry that is missing."""
    arch, _, device = arch.partition(":")
    # Attention in fp64 is interpreted only.
    served = {"bf16": "fp16", "fp64": "fp32"}.get(dtype, dtype)
    places = (arch, SERVED_AS.get(arch), "any") if arch in ARCHITECTURES else ()
    plain = op == "attention" and arch in WITHOUT_TENSOR_CORES
    for name in (dtype, served):
        if device and (configs := tuned.table(device).get((op, kernel, name, size))) is not None:
            return tuple(Config(*config) for config in configs)
        for place in places:
            key = (op, kernel, "fp32" if plain else name, size, place)
            if key in TABLE:
                nvidia = arch.startswith("sm_")
                return TABLE[key] if nvidia else tuple(map(for_amd, TABLE[key]))
    raise KeyError(
        f"kernels/configs.py has no entry {(op, kernel, dtype, size, arch)}; add one to its TABLE"
    )


@tuned.or_device
def architecture(device) -> str:
    """Whose entries serve a device: its own, or those of the nearest architecture, with a warning.

    Raises:
        RuntimeError: there are none; the message says what is served and what to do.
    """
    if device.type != "cuda":
        return "sm_80"  # interpreted
    name = device_architecture(device)
    entries = _nearest(name)
    if entries is None:
        raise RuntimeError(
            f"{device} is {name}, and the Triton kernels serve sm_70 and later and gfx9; "
            "pass backend='torch' or set BWT_BACKEND=torch"
        )
    if entries != name and not tuned.of_device(device.index):
        _warn_once(name, entries)
    return entries


@cache
def _nearest(name: str) -> str | None:
    """The highest that is not above it, or else the lowest."""
    if name.startswith("gfx"):
        return "gfx942" if name.startswith("gfx9") else None
    known = [arch for arch in ARCHITECTURES if arch.startswith("sm_")]
    below = [arch for arch in known if _number(arch) <= _number(name)]
    return max(below or known[:1], key=_number) if _number(name) >= 70 else None


@cache
def _warn_once(name: str, entries: str) -> None:
    warnings.warn(
        f"no tiles are known for {name}, those of {entries} are taken; "
        "`bwt tune` makes a table for this device",
        RuntimeWarning,
        stacklevel=2,
    )


def device_architecture(device) -> str:
    """What a GPU is, as compilers call it."""
    # Which device is the current one may change; what the others are does not, and every call asks.
    return _ask(device) if device.index is None else _ask_once(device.index)


def _ask(device) -> str:
    import torch

    if torch.version.hip:
        return torch.cuda.get_device_properties(device).gcnArchName.partition(":")[0]
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


_ask_once = cache(_ask)


def forget() -> None:
    """What the devices are, where others are pretended."""
    _ask_once.cache_clear()
    _warn_once.cache_clear()
    tuned.forget()


def _number(arch: str) -> int:
    return int(arch.removeprefix("sm_"))
