"""An evaluation in which every number is distinct, and tells where it comes from."""

from bwt.records.estimates import Estimate, Estimates
from bwt.records.evaluation import METRICS, OF_MEAN, EffectiveMemory, Evaluation, Score

PREDICTORS = ("model", "exact", "uniform", "constant", "memory-1")
OFFSETS = (0.002, 0.004, 0.003, 0.001)  # of the positions: the second is the largest


def planted_evaluation(shift: float = 0.0, position_entropy_mae: float = 0.0915) -> Evaluation:
    """Return an evaluation of 4 positions. The mean of metric m (from 1, in the order of METRICS)
    of predictor p is 0.pm, and its standard error m * 10^-(p + 2). A position adds p times its
    offset to the mean and divides the error by 10, 100, ... `shift` is added to all means."""
    scores = {name: _score(p, shift) for p, name in enumerate(PREDICTORS, 1)}
    return Evaluation(
        task="hmm",
        options={},
        num_sequences=4321,
        seed=987,
        positions=[15, 16, 18, 20],
        model=scores.pop("model"),
        exact=scores.pop("exact"),
        floors=scores,
        position_entropy_mae=position_entropy_mae,
        effective_memory=EffectiveMemory(6.4, at_least=False),
    )


def _score(p: int, shift: float) -> Score:
    overall, per_position = {}, {}
    for m, name in enumerate((*METRICS, OF_MEAN), 1):
        mean, error = p / 10 + m / 100 + shift, m * 10.0 ** -(p + 2)
        overall[name] = Estimate(mean, error)
        errors = [error / 10**i for i in range(1, 1 + len(OFFSETS))]
        per_position[name] = Estimates([mean + p * x for x in OFFSETS], errors)
    return Score(overall, per_position)
