"""The public ops: argument checks, choice of backend, autograd.

A process forked after a parallel call hangs in its own first one, as with plain torch: take spawn,
forkserver or a DataLoader.

>>> import torch, bwt
>>> q = k = v = torch.eye(2)[None, None]
>>> result = bwt.ops.attention(q, k, v, capture=("weights", "entropy"))
>>> result.weights[0, 0, 0], result.entropy[0, 0, 0]
(tensor([1., 0.]), tensor(0.))
"""

from bwt.ops.add_bias import add_bias
from bwt.ops.add_rms_norm import add_rms_norm
from bwt.ops.attention import attention
from bwt.ops.bijection_posterior import bijection_posterior
from bwt.ops.gelu import gelu
from bwt.ops.hmm_filter import hmm_filter
from bwt.ops.hmm_smooth import hmm_smooth
from bwt.ops.rms_norm import rms_norm
from bwt.ops.selective_scan import selective_scan, selective_scan_states
from bwt.reference.attention import AttentionOutput, CapturedAttention, TopK

__all__ = [
    "AttentionOutput",
    "CapturedAttention",
    "TopK",
    "add_bias",
    "add_rms_norm",
    "attention",
    "bijection_posterior",
    "gelu",
    "hmm_filter",
    "hmm_smooth",
    "rms_norm",
    "selective_scan",
    "selective_scan_states",
]
