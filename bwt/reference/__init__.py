"""NumPy float64 oracles, one per op: plain rather than fast. Kernels are tested against them."""

from bwt.reference.attention import attention, attention_backward
from bwt.reference.bijection_posterior import bijection_posterior

__all__ = ["attention", "attention_backward", "bijection_posterior"]
