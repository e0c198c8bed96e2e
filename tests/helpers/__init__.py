"""Shared helpers of the tests: inputs, oracles, tolerances, planted effects, compilers."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
