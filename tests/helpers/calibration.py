"""Do targets look like draws from the posterior? A chi-square test."""

import numpy as np
from scipy.special import chdtrc

EDGES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
LEAST_VARIANCE = 8.0  # of a bin's count, for it to be near a normal one


def p_value(posterior, targets) -> float:
    """The smallest p-value of the tests, one for each position and outcome, times their number
    (Bonferroni, as tests of one sequence depend on each other).

    For one position and outcome, sequences are binned by the probability of the outcome. In a bin,
    (hits - sum p)^2 / sum p (1 - p) is about chi-square with one degree of freedom, and sequences
    are independent. Outcomes of probability 0 must not occur, those of probability 1 must.
    """
    posterior, targets = posterior.double().numpy(), targets.numpy()
    hit = np.arange(posterior.shape[-1]) == targets[..., None]
    assert not hit[posterior == 0].any() and hit[posterior == 1].all()
    p_values = []
    for place in np.ndindex(posterior.shape[1:]):
        p, hits = posterior[(slice(None), *place)], hit[(slice(None), *place)]
        bins = np.digitize(p, EDGES)
        variance, difference = (
            np.bincount(bins, weights=w, minlength=len(EDGES) + 1) for w in (p * (1 - p), hits - p)
        )
        enough = variance > LEAST_VARIANCE
        if enough.any():
            statistic = (difference[enough] ** 2 / variance[enough]).sum()
            p_values.append(chdtrc(enough.sum(), statistic))
    return min(1.0, min(p_values) * len(p_values)) if p_values else 1.0
