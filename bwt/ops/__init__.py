"""The public ops: argument checks, choice of backend, autograd."""

from bwt.ops.bijection_posterior import bijection_posterior

__all__ = ["bijection_posterior"]
