"""What it means to beat a predictor that lacks an ability. Each rule stands here once."""

import math
from collections.abc import Mapping

from bwt.records.estimates import Estimate

MEMORY = "memory-"  # exact filters that see only the last k observations
BLIND = ("uniform", "constant", f"{MEMORY}0")  # look at nothing but the position, or the header
CLEARLY = 0.9  # of a floor's KL


def is_scale(name: str) -> bool:
    """Filters with a memory are a scale to read off, not floors to be beaten."""
    return name.startswith(MEMORY) and name != f"{MEMORY}0"


def best_floor(kl: Mapping[str, float]) -> str:
    """The name of least KL; one that is not finite is the worst."""
    rivals = [name for name in kl if not is_scale(name)]
    return min(rivals, key=lambda name: kl[name] if math.isfinite(kl[name]) else math.inf)


def beats(model: Estimate, floor: Estimate) -> bool:
    """By more than two standard errors. A KL that is not finite beats nothing."""
    error = math.hypot(model.se or 0.0, floor.se or 0.0)
    return model.mean + 2 * error < floor.mean


def at_floor(kl: float, floors: Mapping[str, float]) -> bool:
    """Not clearly better than the best predictor that is blind to what is observed."""
    return not kl <= CLEARLY * min(floors[name] for name in BLIND if name in floors)
