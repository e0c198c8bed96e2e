"""Bayesian wind tunnels: tasks with a known exact posterior, and kernels to compute it fast."""

import importlib

__version__ = "0.1.0"

__all__ = ["capture", "evaluate", "models", "ops", "reference", "tasks", "train"]


def __getattr__(name: str):
    # Subpackages load on first use: bwt.reference must not pay for torch.
    if name == "capture":
        return importlib.import_module("bwt.taps").capture
    if name in __all__:
        return importlib.import_module(f"bwt.{name}")
    raise AttributeError(f"module 'bwt' has no attribute {name!r}")
