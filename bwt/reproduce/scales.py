"""Scales: how much is run, and with which budgets."""

from dataclasses import dataclass, field
from typing import Any

from bwt.reproduce import studies
from bwt.reproduce.studies import Study


@dataclass(frozen=True)
class Scale:
    name: str
    preset: str
    seeds: int
    studies: tuple[Study, ...]
    about: str  # for the help
    # Of the preset's learning rates, in order. Of those that are tried, the one is used whose worst
    # of two seeds is best; should it be the least or the greatest, the range is extended.
    rates: tuple[float, ...] = (0.3, 1.0, 3.0)
    trial: float = 1.0  # share of the steps in which a rate is tried
    settings: dict[str, Any] = field(default_factory=dict)  # of every run
    sequences: int = 512  # of geometry and ablation


# The exact posterior as target for the HMM, as in the authors' code; draws for the others.
LAPTOP = Scale(
    "laptop",
    "quick",
    seeds=3,
    studies=(
        studies.architecture(
            bijection={"steps": 3000},
            hmm={"steps": 1200, "targets": "posterior"},
            recall={"steps": 1000},
        ),
    ),
    about="small models, two hours on 2 cores",
    settings={"evaluations": 6},
)

# Steps are the most a run may take: it ends when a doubling no longer helps. The greatest are from
# published recipes for recall, 12,500 steps and more, of which recurrent models need all.
PLATEAU = {"until": "plateau"}
WORKSTATION = Scale(
    "workstation",
    "quick",
    seeds=5,
    studies=(
        studies.paper_size(steps=2400, lookup_steps=5000, hmm_steps=2000, token_steps=1500),
        studies.architecture(
            bijection={**PLATEAU, "steps": 12_000},
            hmm={**PLATEAU, "steps": 8000, "targets": "posterior"},
            # So few pairs that rates can be tried; more of them are a study of their own.
            recall={"until": "solved", "steps": 12_500, "num_pairs": 4},
        ),
        studies.lookup(steps=5000),
        studies.freezing(steps=3000, at=(300, 1000)),
        studies.keys(steps=3000),
        studies.feed_forward(steps=3000, hmm_steps=2000),
        studies.transport(steps=3000),
        studies.shape(steps=2000),
        studies.filtering(steps=2000),
        studies.recall(steps=12_500),
        studies.variants_of_tasks(steps=3000),
    ),
    about="fair budgets and models of the paper's size, with --seeds 1 ten hours on 2 cores",
    trial=0.1,
)

PAPER = Scale(
    "paper",
    "paper",
    seeds=5,
    studies=(
        studies.architecture(
            bijection={},
            # A table of positions that reaches beyond the length of training, as the paper's does.
            hmm={"targets": "posterior", **studies.TOKENS, **studies.TOKEN_PLACES},
            recall={
                "num_pairs": 64,
                "num_keys": 256,
                "num_values": 256,
                "num_queries": 3,
                "filler": 32,
            },
        ),
    ),
    about="the paper's sizes and budgets, all models of equal size and depth, for GPUs",
)

# Their baselines are alike in depth and width, not in parameters; rates are theirs, not tried.
AUTHORS = Scale(
    "authors",
    "authors",
    seeds=5,
    studies=(studies.architecture(tuned=False, bijection={}, hmm={}, recall={}),),
    about="models, rates and budgets as in the authors' code, for GPUs",
)

SCALES = {scale.name: scale for scale in (LAPTOP, WORKSTATION, PAPER, AUTHORS)}
