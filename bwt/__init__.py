"""Bayesian wind tunnels: tasks with a known exact posterior, and kernels to compute it fast.

tasks, models    by name, and `register` for one's own
train, evaluate  a run directory, and how many bits it is from exact Bayes
load             the task, the model and the configuration of a run
capture, patch   values inside a model: read, and changed
geometry         diagnostics of a trained model
ops, reference   the fast ops, and the plain NumPy versions they are tested against
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bwt import evaluate, geometry, models, ops, reference, tasks, train
    from bwt.runs.loading import load
    from bwt.taps import capture, patch

__version__ = "0.1.0"

# Where the names live that are functions and not modules.
_FUNCTIONS = {"capture": "bwt.taps", "load": "bwt.runs.loading", "patch": "bwt.taps"}

__all__ = [
    "capture",
    "evaluate",
    "geometry",
    "load",
    "models",
    "ops",
    "patch",
    "reference",
    "tasks",
    "train",
]


def __getattr__(name: str) -> Any:
    # Everything loads on first use: bwt.reference must not pay for torch.
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(_FUNCTIONS[name]), name)
    if name in __all__:
        return importlib.import_module(f"bwt.{name}")
    raise AttributeError(f"module 'bwt' has no attribute {name!r}")
