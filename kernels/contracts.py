"""What every op takes on each backend, stated once: the checks and the choice of a backend in
bwt.ops ask here, the launchers of this package keep to it, and tests try every limit.

What the ops return is in results.py. As there, only torch is needed. The limits of the native
backend are constants of csrc too; a test compares them.
"""

from dataclasses import dataclass, field

import torch

HALVES = (torch.float16, torch.bfloat16)
WIDE = (torch.float32, torch.float64)
FLOATS = (*HALVES, *WIDE)
INTEGERS = (torch.int32, torch.int64)
SCAN_CHUNK = 16  # steps between the states that selective_scan saves for its gradients
ROW_SUM_TOLERANCE = 1e-4  # of probabilities that have to sum to 1


@dataclass(frozen=True)
class Serves:
    """What one backend takes of an op: dtypes, and the largest of each size that is limited."""

    dtypes: tuple[torch.dtype, ...]
    limits: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Contract:
    op: str
    backends: dict[str, Serves]

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Those that some backend takes."""
        every = (dtype for serves in self.backends.values() for dtype in serves.dtypes)
        return tuple(dict.fromkeys(every))

    def limit(self, size: str) -> int:
        """The largest that some backend takes."""
        return max(serves.limits[size] for serves in self.backends.values())


def _alike(*backends: str, dtypes: tuple[torch.dtype, ...], **limits: int) -> dict[str, Serves]:
    return {name: Serves(dtypes, limits) for name in backends}


ATTENTION = Contract(
    "attention",
    {
        "native": Serves(FLOATS, {"head_size": 256}),
        "triton": Serves((*HALVES, torch.float32), {"head_size": 128}),
        "torch": Serves(FLOATS, {"head_size": 256}),
        "reference": Serves(FLOATS, {"head_size": 256}),
    },
)
# The dtype is that of the parameters. Smoothing starts from what the filter returns. Halves come to
# all but the forward pass of Triton as float32; all compute them in it.
_HMM = _alike(
    "native",
    "triton",
    "torch",
    "reference",
    dtypes=FLOATS,
    num_states=128,
    num_symbols=4096,
)
HMM_FILTER, HMM_SMOOTH = Contract("hmm_filter", _HMM), Contract("hmm_smooth", _HMM)
# The dtype is that of the channel. With one, a thread has a table of subsets: 2^V doubles, 128 MB
# at 24 symbols.
BIJECTION_POSTERIOR = Contract(
    "bijection_posterior",
    _alike(
        "native",
        "cuda",
        "torch",
        "reference",
        dtypes=WIDE,
        num_symbols=4096,
        num_noisy_symbols=24,
    ),
)
# Halves come to all but Triton as float32; all compute them in it.
SELECTIVE_SCAN = Contract(
    "selective_scan",
    _alike("native", "triton", "torch", "reference", dtypes=FLOATS, num_states=64),
)
_POINTWISE = {
    "native": Serves(WIDE),
    "torch": Serves(FLOATS),
    "reference": Serves(WIDE),
}
ADD_BIAS, ADD_RMS_NORM = Contract("add_bias", _POINTWISE), Contract("add_rms_norm", _POINTWISE)
GELU, RMS_NORM = Contract("gelu", _POINTWISE), Contract("rms_norm", _POINTWISE)

CONTRACTS = {
    contract.op: contract
    for contract in (
        ADD_BIAS,
        ADD_RMS_NORM,
        ATTENTION,
        BIJECTION_POSTERIOR,
        GELU,
        HMM_FILTER,
        HMM_SMOOTH,
        RMS_NORM,
        SELECTIVE_SCAN,
    )
}
