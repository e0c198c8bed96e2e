"""Figures that a text quotes from results/, between markers that say where each comes from:

    <!-- results: laptop table architecture -->
    | model | ... |
    <!-- /results -->

    is <!-- results: laptop value architecture/hmm/mlp/kl -->0.12 ± 0.01<!-- /results -->

    of <!-- results: laptop number shape/hmm/2 heads/pc1 -->0.35<!-- /results --> of the variance

    a guess costs <!-- results: laptop floor shape/hmm/2 heads/uniform -->0.5<!-- /results -->

    after <!-- results: laptop steps shape/hmm/2 heads -->6,000<!-- /results --> steps

A value says how many seeds there are, a number does not; it may be of a metric or of what geometry
found. A floor is the KL of a predictor that lacks something.
`python -m bwt.reproduce.quotes README.md` brings them up to date; a test fails if they are not.
"""

import re
import sys
from pathlib import Path

from bwt.records.results import Results
from bwt.report.words import mean, num
from bwt.reproduce.page import markdown_table
from bwt.reproduce.tables import build
from bwt.reproduce.tables.opened import over_seeds
from bwt.reproduce.tables.table import spread, spread_of, states_of
from bwt.reproduce.tables.variants import Seeds, find
from bwt.runs.files import read_record, write_text

MARKED = re.compile(r"(<!-- results: ([^>]*?) -->)(.*?)(<!-- /results -->)", re.S)


def fill(text: str, results: Path) -> str:
    """The text with every quote as results/ has it.

    Raises:
        ValueError: a marker asks for something that is not there, or is not closed.
    """
    if text.count("<!-- results:") != len(MARKED.findall(text)):
        raise ValueError("a marker <!-- results: ... --> has no <!-- /results -->")
    return MARKED.sub(lambda m: m[1] + quote(m[2], results) + m[4], text)


def quote(marker: str, results: Path) -> str:
    """`SCALE table NAME`, `SCALE value|number|floor STUDY/SETTING/ROW/NAME`, or
    `SCALE steps STUDY/SETTING/ROW`."""
    scale, kind, rest = [*marker.split(maxsplit=2), "", ""][:3]
    if kind not in KINDS or not rest:
        raise ValueError(
            f"the marker {marker!r} is not SCALE table NAME, SCALE value|number|floor "
            "STUDY/SETTING/ROW/NAME, or SCALE steps STUDY/SETTING/ROW"
        )
    found = KINDS[kind](read_record(results / scale / "results.json", Results), rest)
    if found is None:
        raise ValueError(f"results have no {kind} for the marker {marker!r}")
    return found


def _table(document: Results, name: str) -> str | None:
    table = next((x for x in build(document) if x.name == name and x.rows), None)
    return None if table is None else f"\n{markdown_table(table)}\n"


def _value(document: Results, place: str) -> str | None:
    seeds, metric = _seeds(document, place)
    if seeds is None or metric not in seeds.cells[0].metrics:
        return None
    return spread_of(seeds.cells, metric)


def _number(document: Results, place: str) -> str | None:
    seeds, name = _seeds(document, place)
    if seeds is None:
        return None
    if name in seeds.cells[0].metrics:
        found = [x.metrics[name].mean for x in seeds.cells]
        return spread(found, states=states_of(seeds.cells), one="")
    found = [x.geometry[name] for x in seeds.opened() if name in x.geometry]
    return over_seeds(name, found) if found else None


def _floor(document: Results, place: str) -> str | None:
    seeds, name = _seeds(document, place)
    found = [x.floors[name].kl for x in seeds.cells if name in x.floors] if seeds else []
    return num(mean(found)) if found else None


def _steps(document: Results, place: str) -> str | None:
    names = [part.strip() for part in place.split("/")]
    seeds = find(document, *names) if len(names) == 3 else None
    return None if seeds is None else seeds.steps()


def _seeds(document: Results, place: str) -> tuple[Seeds | None, str]:
    *names, name = (part.strip() for part in place.split("/"))
    return find(document, *names) if len(names) == 3 else None, name


KINDS = {"table": _table, "value": _value, "number": _number, "floor": _floor, "steps": _steps}


def folder_of(page: Path) -> Path:
    """The results that a page quotes: it lies beside them or among them."""
    folder = page.resolve().parent
    return folder if folder.name == "results" else folder / "results"


def main(paths: list[str]) -> int:
    for path in map(Path, paths):
        write_text(path, fill(path.read_text(encoding="utf-8"), folder_of(path)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
