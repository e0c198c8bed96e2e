"""What it means to beat a predictor that lacks an ability. Each rule stands here once."""

import math
from collections.abc import Mapping

from bwt.records.estimates import Estimate

MEMORY = "memory-"  # exact filters that see only the last k observations
BLIND = ("uniform", "constant", f"{MEMORY}0")  # look at nothing but the position, or the header
CLEARLY = 0.9  # of a floor's KL
NEAR = 0.05  # of a floor's KL: as good as that predictor

# What one who is as good as this floor can do, and what it cannot.
ABILITIES = {
    "lookup": "recalls the value of a repeated key; does not rule out the values of other keys",
    "unbound": "knows which keys and values were seen; does not bind a key to its value",
    "latest": "is exact from the last showing of each key; does not add up what was shown before",
    f"{MEMORY}1": "reads the current observation; does not carry the belief on from those before",
}


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


def untrained_floor(floors: Mapping[str, float]) -> str:
    """The best predictor that has learned nothing of what the task is about: one that is blind to
    what is observed. In recall also one that guesses among the stored values: without binding
    nothing is recalled. (In the bijection, which has `lookup` too, `unbound` eliminates.)"""
    names = [name for name in BLIND if name in floors]
    if "unbound" in floors and "lookup" not in floors:
        names.append("unbound")
    return best_floor({name: floors[name] for name in names})


def at_floor(kl: float, floors: Mapping[str, float]) -> bool:
    """Not clearly better than the best predictor that has learned nothing of the task."""
    return not kl <= CLEARLY * floors[untrained_floor(floors)]


def lacking(kl: float, floors: Mapping[str, float]) -> str | None:
    """The floor that a model which has learned something is as good as, if it is known what such
    a predictor lacks."""
    for name in ABILITIES:
        if name in floors and abs(kl - floors[name]) <= NEAR * floors[name]:
            return None if at_floor(kl, floors) else name
    return None


def state_of(kl: float, floors: Mapping[str, float]) -> str:
    """Of a result, for a table: "not trained", "at lookup" (or another floor that lacks one
    ability), "worse than lookup" (or another that is the best), or "trained". What is not trained
    says nothing about what the model could do."""
    if at_floor(kl, floors):
        return "not trained"
    floor = lacking(kl, floors)
    if floor is not None:
        return f"at {floor}"
    best = best_floor(floors)
    return "trained" if kl < floors[best] else f"worse than {best}"
