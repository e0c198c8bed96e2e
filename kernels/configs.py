"""Tile sizes, warps and stages of every kernel: a plain table, and nothing is tuned at run time.

The same call therefore runs the same code on every machine of an architecture, and every entry
can be compiled ahead of time (`python -m bwt.kernels.aot`). `benchmarks/tune.py` times candidates
on a GPU and rewrites the table.
"""

from contextlib import nullcontext
from typing import Any, NamedTuple

# Fusing multiply and add is Triton's default today and not tomorrow; it decides the last bits.
FP_FUSION = True
Table = dict[tuple[str, str, str, int, str], tuple["Config", ...]]
ARCHITECTURES = ("sm_80", "sm_86", "sm_90", "sm_100", "gfx942")


class Config(NamedTuple):
    tiles: dict[str, int]  # constexprs of the kernel
    warps: int
    stages: int


class Launch(NamedTuple):
    kernel: Any
    grid: int
    arguments: dict[str, Any]  # tensors, numbers and flags by name; tiles are in the config
    config: Config

    @property
    def name(self) -> str:
        return self.kernel.__name__.removesuffix("_kernel")

    def run(self, device) -> None:
        import torch

        options = dict(num_warps=self.config.warps, num_stages=self.config.stages)
        # Triton launches on the current device, whatever the tensors say.
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            self.kernel[(self.grid,)](
                **self.arguments, **self.config.tiles, **options, enable_fp_fusion=FP_FUSION
            )


def C(warps: int, stages: int, **tiles: int) -> Config:
    return Config(tiles, warps, stages)


# (op, kernel, dtype, size, architecture or "any") -> configs, smallest tile first. The size is that
# of a head in attention, and of the padded states in hmm_filter and selective_scan.
# bf16 is served by the entries of fp16. tf32 is float32 on tensor cores, fp32 is exact float32.
TABLE: Table = {
    ("attention", "short_forward", "fp16", 16, "any"): (
        C(4, 1, BT=16, BS=16, PACK=4),
        C(4, 1, BT=32, BS=32, PACK=2),
        C(4, 1, BT=64, BS=64, PACK=1),
        C(4, 1, BT=64, BS=128, PACK=1),
        C(4, 1, BT=32, BS=256, PACK=1),
    ),
    ("attention", "short_forward", "fp16", 32, "any"): (
        C(4, 1, BT=16, BS=16, PACK=4),
        C(4, 1, BT=32, BS=32, PACK=2),
        C(4, 1, BT=64, BS=64, PACK=1),
        C(4, 1, BT=64, BS=128, PACK=1),
        C(4, 1, BT=32, BS=256, PACK=1),
    ),
    ("attention", "short_forward", "fp16", 64, "any"): (
        C(4, 1, BT=16, BS=16, PACK=4),
        C(4, 1, BT=32, BS=32, PACK=2),
        C(4, 1, BT=64, BS=64, PACK=1),
        C(4, 1, BT=64, BS=128, PACK=1),
        C(4, 1, BT=32, BS=256, PACK=1),
    ),
    ("attention", "short_forward", "fp16", 128, "any"): (
        C(4, 1, BT=16, BS=16, PACK=4),
        C(4, 1, BT=32, BS=32, PACK=1),
        C(4, 1, BT=64, BS=64, PACK=1),
        C(4, 1, BT=32, BS=128, PACK=1),
        C(8, 1, BT=32, BS=256, PACK=1),
    ),
    ("attention", "short_forward", "tf32", 16, "any"): (
        C(4, 1, BT=16, BS=16, PACK=4),
        C(4, 1, BT=32, BS=32, PACK=2),
        C(4, 1, BT=64, BS=64, PACK=1),
        C(4, 1, BT=32, BS=128, PACK=1),
        C(4, 1, BT=16, BS=256, PACK=1),
    ),
    ("attention", "short_forward", "tf32", 32, "any"): (
        C(4, 1, BT=16, BS=16, PACK=4),
        C(4, 1, BT=32, BS=32, PACK=2),
        C(4, 1, BT=64, BS=64, PACK=1),
        C(4, 1, BT=32, BS=128, PACK=1),
        C(4, 1, BT=16, BS=256, PACK=1),
    ),
    ("attention", "short_forward", "tf32", 64, "any"): (
        C(4, 1, BT=16, BS=16, PACK=4),
        C(4, 1, BT=32, BS=32, PACK=2),
        C(4, 1, BT=64, BS=64, PACK=1),
        C(4, 1, BT=32, BS=128, PACK=1),
        C(8, 1, BT=32, BS=256, PACK=1),
    ),
    ("attention", "short_forward", "tf32", 64, "sm_86"): (
        C(4, 1, BT=16, BS=16, PACK=2),
        C(4, 1, BT=32, BS=32, PACK=2),
        C(4, 1, BT=64, BS=64, PACK=1),
        C(4, 1, BT=32, BS=128, PACK=1),
        C(8, 1, BT=16, BS=256, PACK=1),
    ),
    ("attention", "short_forward", "tf32", 128, "any"): (
        C(4, 1, BT=16, BS=16, PACK=4),
        C(4, 1, BT=32, BS=32, PACK=2),
        C(4, 1, BT=32, BS=64, PACK=1),
        C(8, 1, BT=64, BS=128, PACK=1),
    ),
    ("attention", "short_forward", "tf32", 128, "sm_86"): (
        C(4, 1, BT=16, BS=16, PACK=4),
        C(4, 1, BT=32, BS=32, PACK=2),
        C(4, 1, BT=32, BS=64, PACK=1),
    ),
    ("attention", "short_forward", "fp32", 16, "any"): (
        C(1, 1, BT=16, BS=16, PACK=1),
        C(2, 1, BT=32, BS=32, PACK=1),
        C(4, 1, BT=16, BS=64, PACK=1),
        C(8, 1, BT=32, BS=128, PACK=1),
        C(8, 1, BT=16, BS=256, PACK=1),
    ),
    ("attention", "short_forward", "fp32", 32, "any"): (
        C(1, 1, BT=16, BS=16, PACK=1),
        C(2, 1, BT=32, BS=32, PACK=1),
        C(4, 1, BT=32, BS=64, PACK=1),
        C(8, 1, BT=16, BS=128, PACK=1),
        C(8, 1, BT=16, BS=256, PACK=1),
    ),
    ("attention", "short_forward", "fp32", 64, "any"): (
        C(1, 1, BT=16, BS=16, PACK=1),
        C(4, 1, BT=32, BS=32, PACK=1),
        C(4, 1, BT=16, BS=64, PACK=1),
    ),
    ("attention", "short_forward", "fp32", 128, "any"): (
        C(4, 1, BT=16, BS=16, PACK=1),
        C(4, 1, BT=16, BS=32, PACK=1),
        C(8, 1, BT=16, BS=64, PACK=1),
    ),
    ("attention", "short_backward", "fp16", 16, "any"): (
        C(4, 1, BT=16, BS=16, PACK=2),
        C(4, 1, BT=32, BS=32, PACK=1),
        C(4, 1, BT=32, BS=64, PACK=1),
        C(8, 1, BT=32, BS=128, PACK=1),
        C(8, 1, BT=16, BS=256, PACK=1),
    ),
    ("attention", "short_backward", "fp16", 16, "sm_90"): (
        C(4, 1, BT=16, BS=16, PACK=2),
        C(4, 1, BT=16, BS=32, PACK=1),
        C(4, 1, BT=32, BS=64, PACK=1),
        C(8, 1, BT=32, BS=128, PACK=1),
        C(8, 1, BT=16, BS=256, PACK=1),
    ),
    ("attention", "short_backward", "fp16", 32, "any"): (
        C(4, 1, BT=16, BS=16, PACK=2),
        C(4, 1, BT=32, BS=32, PACK=1),
        C(4, 1, BT=32, BS=64, PACK=1),
        C(8, 1, BT=32, BS=128, PACK=1),
        C(8, 1, BT=16, BS=256, PACK=1),
    ),
    ("attention", "short_backward", "fp16", 64, "any"): (
        C(4, 1, BT=16, BS=16, PACK=2),
        C(4, 1, BT=32, BS=32, PACK=1),
        C(4, 1, BT=32, BS=64, PACK=1),
        C(8, 1, BT=32, BS=128, PACK=1),
    ),
    ("attention", "short_backward", "fp16", 64, "sm_90"): (
        C(4, 1, BT=16, BS=16, PACK=2),
        C(4, 1, BT=16, BS=32, PACK=1),
        C(4, 1, BT=32, BS=64, PACK=1),
        C(8, 1, BT=32, BS=128, PACK=1),
    ),
    ("attention", "short_backward", "fp16", 128, "any"): (
        C(4, 1, BT=16, BS=16, PACK=1),
        C(4, 1, BT=16, BS=32, PACK=1),
        C(8, 1, BT=32, BS=64, PACK=1),
    ),
    ("attention", "short_backward", "fp16", 128, "sm_90"): (
        C(4, 1, BT=16, BS=16, PACK=1),
        C(4, 1, BT=16, BS=32, PACK=1),
        C(8, 1, BT=16, BS=64, PACK=1),
    ),
    ("attention", "short_backward", "tf32", 16, "any"): (
        C(4, 1, BT=16, BS=16, PACK=2),
        C(4, 1, BT=32, BS=32, PACK=1),
        C(4, 1, BT=32, BS=64, PACK=1),
        C(8, 1, BT=16, BS=128, PACK=1),
    ),
    ("attention", "short_backward", "tf32", 16, "sm_100"): (
        C(4, 1, BT=16, BS=16, PACK=2),
        C(4, 1, BT=32, BS=32, PACK=1),
        C(4, 1, BT=32, BS=64, PACK=1),
        C(4, 1, BT=32, BS=128, PACK=1),
    ),
    ("attention", "short_backward", "tf32", 32, "any"): (
        C(4, 1, BT=16, BS=16, PACK=2),
        C(4, 1, BT=32, BS=32, PACK=1),
        C(4, 1, BT=32, BS=64, PACK=1),
        C(8, 1, BT=32, BS=128, PACK=1),
    ),
    ("attention", "short_backward", "tf32", 64, "any"): (
        C(4, 1, BT=16, BS=16, PACK=2),
        C(4, 1, BT=32, BS=32, PACK=1),
        C(4, 1, BT=16, BS=64, PACK=1),
        C(8, 1, BT=16, BS=128, PACK=1),
    ),
    ("attention", "short_backward", "tf32", 64, "sm_86"): (
        C(4, 1, BT=16, BS=16, PACK=2),
        C(4, 1, BT=32, BS=32, PACK=1),
        C(4, 1, BT=16, BS=64, PACK=1),
    ),
    ("attention", "short_backward", "tf32", 64, "sm_90"): (
        C(4, 1, BT=16, BS=16, PACK=1),
        C(4, 1, BT=32, BS=32, PACK=1),
        C(4, 1, BT=16, BS=64, PACK=1),
        C(8, 1, BT=16, BS=128, PACK=1),
    ),
    ("attention", "short_backward", "tf32", 128, "any"): (
        C(4, 1, BT=16, BS=16, PACK=1),
        C(4, 1, BT=16, BS=32, PACK=1),
        C(8, 1, BT=16, BS=64, PACK=1),
    ),
    ("attention", "short_backward", "tf32", 128, "sm_86"): (
        C(4, 1, BT=16, BS=16, PACK=1),
        C(4, 1, BT=16, BS=32, PACK=1),
    ),
    ("attention", "short_backward", "fp32", 16, "any"): (
        C(2, 1, BT=16, BS=16, PACK=1),
        C(4, 1, BT=32, BS=32, PACK=1),
        C(8, 1, BT=32, BS=64, PACK=1),
    ),
    ("attention", "short_backward", "fp32", 32, "any"): (
        C(2, 1, BT=16, BS=16, PACK=1),
        C(8, 1, BT=32, BS=32, PACK=1),
        C(16, 1, BT=16, BS=64, PACK=1),
    ),
    ("attention", "short_backward", "fp32", 64, "any"): (
        C(8, 1, BT=16, BS=32, PACK=1),
        C(16, 1, BT=16, BS=64, PACK=1),
    ),
    ("attention", "short_backward", "fp32", 64, "sm_100"): (C(8, 1, BT=16, BS=32, PACK=1),),
    ("attention", "short_backward", "fp32", 128, "any"): (),
    ("attention", "stream_forward", "fp16", 16, "any"): (C(4, 2, BT=64, BS=64),),
    ("attention", "stream_forward", "fp16", 32, "any"): (C(4, 2, BT=64, BS=64),),
    ("attention", "stream_forward", "fp16", 64, "any"): (C(4, 2, BT=64, BS=64),),
    ("attention", "stream_forward", "fp16", 128, "any"): (C(4, 2, BT=64, BS=32),),
    ("attention", "stream_forward", "tf32", 16, "any"): (C(4, 2, BT=64, BS=64),),
    ("attention", "stream_forward", "tf32", 32, "any"): (C(4, 2, BT=64, BS=64),),
    ("attention", "stream_forward", "tf32", 64, "any"): (C(4, 2, BT=64, BS=64),),
    ("attention", "stream_forward", "tf32", 128, "any"): (C(4, 2, BT=32, BS=32),),
    ("attention", "stream_forward", "fp32", 16, "any"): (C(4, 2, BT=32, BS=32),),
    ("attention", "stream_forward", "fp32", 32, "any"): (C(4, 2, BT=32, BS=32),),
    ("attention", "stream_forward", "fp32", 64, "any"): (C(4, 2, BT=32, BS=32),),
    ("attention", "stream_forward", "fp32", 128, "any"): (C(4, 1, BT=16, BS=16),),
    ("attention", "stream_weights", "fp16", 16, "any"): (C(4, 1, BT=64, BS=64),),
    ("attention", "stream_weights", "fp16", 32, "any"): (C(4, 1, BT=64, BS=64),),
    ("attention", "stream_weights", "fp16", 64, "any"): (C(4, 1, BT=64, BS=64),),
    ("attention", "stream_weights", "fp16", 128, "any"): (C(4, 1, BT=64, BS=64),),
    ("attention", "stream_weights", "tf32", 16, "any"): (C(4, 1, BT=64, BS=64),),
    ("attention", "stream_weights", "tf32", 32, "any"): (C(4, 1, BT=64, BS=64),),
    ("attention", "stream_weights", "tf32", 64, "any"): (C(4, 1, BT=64, BS=64),),
    ("attention", "stream_weights", "tf32", 128, "any"): (C(4, 1, BT=32, BS=32),),
    ("attention", "stream_weights", "fp32", 16, "any"): (C(4, 1, BT=32, BS=32),),
    ("attention", "stream_weights", "fp32", 32, "any"): (C(4, 1, BT=32, BS=32),),
    ("attention", "stream_weights", "fp32", 64, "any"): (C(4, 1, BT=32, BS=32),),
    ("attention", "stream_weights", "fp32", 128, "any"): (C(8, 1, BT=32, BS=32),),
    ("attention", "stream_offset", "fp16", 16, "any"): (C(4, 2, BT=64, BS=32),),
    ("attention", "stream_offset", "fp16", 32, "any"): (C(4, 2, BT=64, BS=32),),
    ("attention", "stream_offset", "fp16", 64, "any"): (C(4, 2, BT=64, BS=64),),
    ("attention", "stream_offset", "fp16", 128, "any"): (C(4, 2, BT=64, BS=32),),
    ("attention", "stream_offset", "tf32", 16, "any"): (C(4, 2, BT=64, BS=32),),
    ("attention", "stream_offset", "tf32", 32, "any"): (C(4, 2, BT=64, BS=32),),
    ("attention", "stream_offset", "tf32", 64, "any"): (C(4, 2, BT=64, BS=64),),
    ("attention", "stream_offset", "tf32", 128, "any"): (C(4, 2, BT=32, BS=32),),
    ("attention", "stream_offset", "fp32", 16, "any"): (C(4, 2, BT=32, BS=32),),
    ("attention", "stream_offset", "fp32", 32, "any"): (C(4, 2, BT=32, BS=32),),
    ("attention", "stream_offset", "fp32", 64, "any"): (C(4, 2, BT=32, BS=32),),
    ("attention", "stream_offset", "fp32", 128, "any"): (C(4, 1, BT=16, BS=32),),
    ("attention", "stream_keys", "fp16", 16, "any"): (C(4, 2, BT=32, BS=64),),
    ("attention", "stream_keys", "fp16", 32, "any"): (C(4, 2, BT=32, BS=64),),
    ("attention", "stream_keys", "fp16", 64, "any"): (C(4, 2, BT=32, BS=32),),
    ("attention", "stream_keys", "fp16", 128, "any"): (C(8, 2, BT=32, BS=32),),
    ("attention", "stream_keys", "tf32", 16, "any"): (C(4, 1, BT=32, BS=64),),
    ("attention", "stream_keys", "tf32", 32, "any"): (C(4, 1, BT=32, BS=64),),
    ("attention", "stream_keys", "tf32", 64, "any"): (C(4, 1, BT=32, BS=32),),
    ("attention", "stream_keys", "tf32", 128, "any"): (C(8, 1, BT=32, BS=32),),
    ("attention", "stream_keys", "fp32", 16, "any"): (C(4, 1, BT=32, BS=32),),
    ("attention", "stream_keys", "fp32", 32, "any"): (C(4, 1, BT=32, BS=32),),
    ("attention", "stream_keys", "fp32", 64, "any"): (C(8, 1, BT=32, BS=32),),
    ("attention", "stream_keys", "fp32", 128, "any"): (C(8, 1, BT=16, BS=16),),
    ("attention", "stream_queries", "fp16", 16, "any"): (C(4, 2, BT=64, BS=32),),
    ("attention", "stream_queries", "fp16", 32, "any"): (C(4, 2, BT=64, BS=32),),
    ("attention", "stream_queries", "fp16", 64, "any"): (C(4, 2, BT=64, BS=32),),
    ("attention", "stream_queries", "fp16", 128, "any"): (C(4, 2, BT=32, BS=32),),
    ("attention", "stream_queries", "tf32", 16, "any"): (C(4, 1, BT=64, BS=32),),
    ("attention", "stream_queries", "tf32", 32, "any"): (C(4, 1, BT=64, BS=32),),
    ("attention", "stream_queries", "tf32", 64, "any"): (C(4, 1, BT=32, BS=32),),
    ("attention", "stream_queries", "tf32", 128, "any"): (C(4, 1, BT=16, BS=32),),
    ("attention", "stream_queries", "fp32", 16, "any"): (C(4, 1, BT=32, BS=32),),
    ("attention", "stream_queries", "fp32", 32, "any"): (C(4, 1, BT=32, BS=32),),
    ("attention", "stream_queries", "fp32", 64, "any"): (C(4, 1, BT=32, BS=32),),
    ("attention", "stream_queries", "fp32", 128, "any"): (C(8, 1, BT=16, BS=16),),
    ("hmm_filter", "dot_backward", "fp32", 32, "any"): (C(4, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_backward", "fp32", 64, "any"): (C(8, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_backward", "fp32", 64, "sm_100"): (C(4, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_backward", "fp32", 128, "any"): (C(8, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_backward", "fp64", 32, "any"): (C(8, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_backward", "fp64", 32, "sm_90"): (C(4, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_backward", "fp64", 64, "any"): (C(8, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_backward", "fp64", 128, "any"): (C(8, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_backward", "fp64", 128, "sm_100"): (C(8, 1, BB=8, BK=16),),
    ("hmm_filter", "dot_forward", "fp32", 32, "any"): (C(4, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_forward", "fp32", 64, "any"): (C(8, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_forward", "fp32", 64, "sm_100"): (C(4, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_forward", "fp32", 128, "any"): (C(8, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_forward", "fp64", 32, "any"): (C(8, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_forward", "fp64", 32, "sm_90"): (C(4, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_forward", "fp64", 64, "any"): (C(8, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_forward", "fp64", 128, "any"): (C(8, 1, BB=16, BK=16),),
    ("hmm_filter", "dot_forward", "fp64", 128, "sm_100"): (C(8, 1, BB=8, BK=16),),
    ("hmm_filter", "ends", "fp32", 4, "any"): (C(1, 1),),
    ("hmm_filter", "ends", "fp32", 8, "any"): (C(1, 1),),
    ("hmm_filter", "ends", "fp32", 16, "any"): (C(1, 1),),
    ("hmm_filter", "ends", "fp64", 4, "any"): (C(1, 1),),
    ("hmm_filter", "ends", "fp64", 8, "any"): (C(1, 1),),
    ("hmm_filter", "ends", "fp64", 16, "any"): (C(1, 1),),
    ("hmm_filter", "rows_backward", "fp32", 4, "any"): (C(1, 1, BB=8, BK=16),),
    ("hmm_filter", "rows_backward", "fp32", 8, "any"): (C(1, 1, BB=4, BK=16),),
    ("hmm_filter", "rows_backward", "fp32", 16, "any"): (C(1, 1, BB=2, BK=16),),
    ("hmm_filter", "rows_backward", "fp32", 32, "any"): (C(1, 1, BB=1, BK=16),),
    ("hmm_filter", "rows_backward", "fp32", 64, "any"): (C(4, 1, BB=1, BK=16),),
    ("hmm_filter", "rows_backward", "fp32", 128, "any"): (C(8, 1, BB=1, BK=16),),
    ("hmm_filter", "rows_backward", "fp64", 4, "any"): (C(1, 1, BB=8, BK=16),),
    ("hmm_filter", "rows_backward", "fp64", 8, "any"): (C(1, 1, BB=4, BK=16),),
    ("hmm_filter", "rows_backward", "fp64", 16, "any"): (C(1, 1, BB=2, BK=16),),
    ("hmm_filter", "rows_backward", "fp64", 32, "any"): (C(2, 1, BB=1, BK=16),),
    ("hmm_filter", "rows_backward", "fp64", 64, "any"): (C(8, 1, BB=1, BK=16),),
    ("hmm_filter", "rows_backward", "fp64", 128, "any"): (C(16, 1, BB=1, BK=16),),
    ("hmm_filter", "rows_forward", "fp32", 4, "any"): (C(1, 1, BB=8, BK=16),),
    ("hmm_filter", "rows_forward", "fp32", 8, "any"): (C(1, 1, BB=4, BK=16),),
    ("hmm_filter", "rows_forward", "fp32", 16, "any"): (C(1, 1, BB=2, BK=16),),
    ("hmm_filter", "rows_forward", "fp32", 32, "any"): (C(1, 1, BB=1, BK=16),),
    ("hmm_filter", "rows_forward", "fp32", 64, "any"): (C(4, 1, BB=1, BK=16),),
    ("hmm_filter", "rows_forward", "fp32", 128, "any"): (C(8, 1, BB=1, BK=16),),
    ("hmm_filter", "rows_forward", "fp64", 4, "any"): (C(1, 1, BB=8, BK=16),),
    ("hmm_filter", "rows_forward", "fp64", 8, "any"): (C(1, 1, BB=4, BK=16),),
    ("hmm_filter", "rows_forward", "fp64", 16, "any"): (C(1, 1, BB=2, BK=16),),
    ("hmm_filter", "rows_forward", "fp64", 32, "any"): (C(2, 1, BB=1, BK=16),),
    ("hmm_filter", "rows_forward", "fp64", 64, "any"): (C(8, 1, BB=1, BK=16),),
    ("hmm_filter", "rows_forward", "fp64", 128, "any"): (C(16, 1, BB=1, BK=16),),
    ("hmm_filter", "starts", "fp32", 4, "any"): (C(1, 1),),
    ("hmm_filter", "starts", "fp32", 8, "any"): (C(1, 1),),
    ("hmm_filter", "starts", "fp32", 16, "any"): (C(1, 1),),
    ("hmm_filter", "starts", "fp64", 4, "any"): (C(1, 1),),
    ("hmm_filter", "starts", "fp64", 8, "any"): (C(1, 1),),
    ("hmm_filter", "starts", "fp64", 16, "any"): (C(1, 1),),
    ("selective_scan", "backward", "fp32", 4, "any"): (C(2, 1, CH=16, BE=8),),
    ("selective_scan", "backward", "fp32", 16, "any"): (C(4, 1, CH=16, BE=8),),
    ("selective_scan", "backward", "fp32", 64, "any"): (C(8, 1, CH=16, BE=2),),
    ("selective_scan", "backward", "fp64", 4, "any"): (C(4, 1, CH=16, BE=8),),
    ("selective_scan", "backward", "fp64", 16, "any"): (C(4, 1, CH=16, BE=2),),
    ("selective_scan", "backward", "fp64", 64, "any"): (C(8, 1, CH=16, BE=1),),
    ("selective_scan", "forward", "fp32", 4, "any"): (C(4, 1, CH=16, BE=16),),
    ("selective_scan", "forward", "fp32", 16, "any"): (C(4, 1, CH=16, BE=8),),
    ("selective_scan", "forward", "fp32", 64, "any"): (C(4, 1, CH=16, BE=2),),
    ("selective_scan", "forward", "fp64", 4, "any"): (C(4, 1, CH=16, BE=16),),
    ("selective_scan", "forward", "fp64", 16, "any"): (C(4, 1, CH=16, BE=8),),
    ("selective_scan", "forward", "fp64", 64, "any"): (C(8, 1, CH=16, BE=2),),
}


def lookup(op: str, kernel: str, dtype: str, size: int, arch: str) -> tuple[Config, ...]:
    """The configs of a kernel, smallest tile first. A KeyError names an entry that is missing."""
    # Attention in fp64 is interpreted only.
    served = {"bf16": "fp16", "fp64": "fp32"}.get(dtype, dtype)
    for name in (dtype, served):
        for key in ((op, kernel, name, size, arch), (op, kernel, name, size, "any")):
            if arch in ARCHITECTURES and key in TABLE:
                return TABLE[key]
    raise KeyError(
        f"kernels/configs.py has no entry {(op, kernel, dtype, size, arch)}; "
        "add it there or run benchmarks/tune.py on that GPU"
    )


def architecture(device) -> str:
    """Whose entries serve a device."""
    import torch

    if device.type != "cuda":
        return "sm_80"  # interpreted
    if torch.version.hip:
        return torch.cuda.get_device_properties(device).gcnArchName.partition(":")[0]
    major, minor = torch.cuda.get_device_capability(device)
    if (major == 8 and minor > 0) or major == 12:
        return "sm_86"  # tensor cores of Ampere, but only 99 KB of shared memory
    return {8: "sm_80", 9: "sm_90", 10: "sm_100"}.get(major, f"sm_{major}{minor}")
