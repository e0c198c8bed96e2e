"""The public ops: argument checks, choice of backend, autograd."""

from bwt.ops.attention import attention
from bwt.ops.bijection_posterior import bijection_posterior

__all__ = ["attention", "bijection_posterior"]
