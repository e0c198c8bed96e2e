"""An executor of sm_80 PTX on NumPy; the README of the folder above has an example.

`launch` returns a `Stats` with the instructions, memory sectors and shared-memory wavefronts.
Module-level `.global` variables start anew with each launch.
"""

from .errors import PTXError
from .launching import launch
from .memory import Memory
from .parser import parse
from .stats import Stats

__all__ = ["Memory", "PTXError", "Stats", "launch", "parse"]
