"""Test tiers of parametrised tests: which cases `make test` runs and `make test-all` adds."""

from collections.abc import Sequence

import pytest


def mark(tier: str, cases: Sequence, default: Sequence[int] = (), unpack: bool = False) -> list:
    """Return the cases with the marker `tier` on all but those at the positions `default`.

    unpack: a case is a tuple of values, one for each argument.
    """
    marker = getattr(pytest.mark, tier)
    return [
        case if i in default else pytest.param(*(case if unpack else (case,)), marks=marker)
        for i, case in enumerate(cases)
    ]
