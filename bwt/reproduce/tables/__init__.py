"""results.json -> tables."""

from collections.abc import Iterator

from bwt.records.results import Results
from bwt.reproduce.tables.architecture import STUDY, architecture, metrics
from bwt.reproduce.tables.commands import commands, unfinished
from bwt.reproduce.tables.lengths import lengths
from bwt.reproduce.tables.opened import opened
from bwt.reproduce.tables.primitives import primitives
from bwt.reproduce.tables.study import study
from bwt.reproduce.tables.table import SPREAD, Table

__all__ = ["READING", "Table", "build"]

READING = (  # what is true of every table
    SPREAD,
    "Best floor: the predictor of least KL that lacks something, with its KL. Learned: not trained "
    "is what does not clearly beat a predictor that has learned nothing of the task: a failure to "
    "train until shown otherwise, which says nothing of what the model could do.",
    "Per doubling: by how much the KL changes with each doubling of the steps at the end of "
    "training, mean over seeds. Near 0 it has converged; a learning rate that falls to 0 makes the "
    "end steeper than more training would be.",
)


def build(results: Results) -> list[Table]:
    """In the order of the page: those of the studies, then those that draw on several."""
    return [*_of_studies(results), primitives(results), lengths(results), *_of_cells(results)]


def _of_studies(results: Results) -> Iterator[Table]:
    for text in results.studies:
        if text.name == STUDY:
            yield architecture(results)
            yield metrics(results)
        else:
            yield study(results, text)
        yield from opened(results, text)


def _of_cells(results: Results) -> list[Table]:
    return [unfinished(results), commands(results)]
