"""results.json -> tables."""

from collections.abc import Iterator

from bwt.records.results import Results
from bwt.reproduce.tables.architecture import STUDY, architecture, metrics
from bwt.reproduce.tables.commands import commands, unfinished
from bwt.reproduce.tables.lengths import lengths
from bwt.reproduce.tables.opened import opened
from bwt.reproduce.tables.primitives import primitives
from bwt.reproduce.tables.study import study
from bwt.reproduce.tables.table import Table

__all__ = ["Table", "build"]


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
