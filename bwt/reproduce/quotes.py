"""Figures that a text quotes from results/, between markers that say where each comes from:

    <!-- results: laptop table architecture -->
    | model | ... |
    <!-- /results -->

    is <!-- results: laptop value architecture/hmm/transformer/kl -->0.0012<!-- /results -->

`python -m bwt.reproduce.quotes README.md` brings them up to date; a test fails if they are not.
"""

import re
import sys
from pathlib import Path

from bwt.records.results import Results
from bwt.reproduce.page import markdown_table
from bwt.reproduce.tables import build
from bwt.reproduce.tables.table import spread_of
from bwt.reproduce.tables.variants import find
from bwt.runs.files import read_record, write_atomically

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
    """`SCALE table NAME` or `SCALE value STUDY/SETTING/ROW/METRIC`."""
    scale, kind, rest = [*marker.split(maxsplit=2), "", ""][:3]
    if kind not in ("table", "value") or not rest:
        raise ValueError(
            f"the marker {marker!r} is not SCALE table NAME or SCALE value STUDY/SETTING/ROW/METRIC"
        )
    document = read_record(results / scale / "results.json", Results)
    found = _table(document, rest) if kind == "table" else _value(document, rest)
    if found is None:
        raise ValueError(f"results have no {kind} for the marker {marker!r}")
    return found


def _table(document: Results, name: str) -> str | None:
    table = next((x for x in build(document) if x.name == name and x.rows), None)
    return None if table is None else f"\n{markdown_table(table)}\n"


def _value(document: Results, place: str) -> str | None:
    *names, metric = (part.strip() for part in place.split("/"))
    seeds = find(document, *names) if len(names) == 3 else None
    if seeds is None or metric not in seeds.cells[0].metrics:
        return None
    return spread_of(seeds.cells, metric)


def folder_of(page: Path) -> Path:
    """The results that a page quotes: it lies beside them or among them."""
    folder = page.resolve().parent
    return folder if folder.name == "results" else folder / "results"


def main(paths: list[str]) -> int:
    for path in map(Path, paths):
        text = fill(path.read_text(), folder_of(path))
        write_atomically(path, lambda file, text=text: file.write_text(text))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
