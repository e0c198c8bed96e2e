"""What calls of one signature lead to, kept for those that follow: checks that were passed and the
backend that was chosen (bwt.ops), compiled kernels with all but their addresses (launching.py)."""

from collections.abc import Hashable
from typing import Any

MOST = 4096  # of programs whose shapes never end

_plans: dict[Hashable, Any] = {}
find = _plans.get


def keep(signature: Hashable, plan: Any) -> Any:
    if len(_plans) >= MOST:
        _plans.clear()
    _plans[signature] = plan
    return plan


def forget() -> None:
    """After something has changed that signatures do not tell."""
    _plans.clear()
