"""Random streams of a run: each purpose draws from generators of its own.

The CPU's generator takes the lowest 32 bits of a seed. Each purpose has a part of these 2^32 seeds
to itself, so that no purpose can see another's data, whatever seeds a user chooses.
"""

import torch

# purpose -> (its first seed, the number of its seeds, what seed 0 is mapped to)
PURPOSES = {
    "evaluation": (0, 2**29, 1_000_003),
    "diagnostics": (2**29, 2**29, 0),
    "donors": (2**30, 2**29, 0),  # sequences whose activations are patched into others
    "entropy": (2**30 + 2**29, 2**29, 0),  # of the estimate that `excess` subtracts
    "training": (2**31, 2**31, 0),
}
# Odd, so that the ranks of a run differ in the lowest bits; large, so that the streams of seeds
# 0, 1, 2 ... do not meet.
RANK_STEP = 0x9E3779B97F4A7C15


def generator(
    purpose: str, seed: int, device: torch.device | str = "cpu", *, rank: int = 0
) -> torch.Generator:
    """Return the generator of a purpose; each rank of a distributed run draws from its own."""
    first, count, offset = PURPOSES[purpose]
    return torch.Generator(device).manual_seed(first + (offset + seed + rank * RANK_STEP) % count)
