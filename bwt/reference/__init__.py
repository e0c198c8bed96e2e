"""NumPy float64 oracles, one per op: plain rather than fast. Kernels are tested against them.

>>> import bwt
>>> seen = bwt.reference.bijection_posterior([[0, 1, 0]], [[2, 0, 2]], 3)
>>> seen.posterior[0].tolist()  # nothing is known of 0, then 2 is taken, then 0 is known to be 2
[[0.3333333333333333, 0.3333333333333333, 0.3333333333333333], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]
"""

from bwt.reference.add_bias import add_bias, add_bias_backward
from bwt.reference.add_rms_norm import add_rms_norm, add_rms_norm_backward
from bwt.reference.attention import attention, attention_backward
from bwt.reference.bijection_posterior import bijection_posterior
from bwt.reference.gelu import gelu, gelu_backward
from bwt.reference.hmm_filter import hmm_filter, hmm_filter_log, hmm_smooth
from bwt.reference.rms_norm import rms_norm, rms_norm_backward
from bwt.reference.selective_scan import (
    selective_scan,
    selective_scan_backward,
    selective_scan_states,
)

__all__ = [
    "add_bias",
    "add_bias_backward",
    "add_rms_norm",
    "add_rms_norm_backward",
    "attention",
    "attention_backward",
    "bijection_posterior",
    "gelu",
    "gelu_backward",
    "hmm_filter",
    "hmm_filter_log",
    "hmm_smooth",
    "rms_norm",
    "rms_norm_backward",
    "selective_scan",
    "selective_scan_backward",
    "selective_scan_states",
]
