"""Figures that a text quotes from results/, between markers that say where each comes from:

    <!-- results: laptop table architecture -->
    | model | ... |
    <!-- /results -->

    about <!-- results: laptop hmm transformer kl -->0.0012 ± 0.0001<!-- /results --> bits

`python -m bwt.reproduce.quotes README.md` brings them up to date; a test fails if they are not.
"""

import re
import sys
from pathlib import Path

from bwt.records.results import Results
from bwt.reproduce.page import markdown_table
from bwt.reproduce.tables import build, chosen, percent, spread, values
from bwt.runs.files import read_record, write_atomically

MARKED = re.compile(r"(<!-- results: ([^>]*?) -->)(.*?)(<!-- /results -->)", re.S)


def fill(text: str, results: Path) -> str:
    """The text with every quote as results/ has it.

    Raises:
        ValueError: a marker asks for something that is not there, or is not closed.
    """
    if text.count("<!-- results:") != len(MARKED.findall(text)):
        raise ValueError("a marker <!-- results: ... --> has no <!-- /results -->")
    return MARKED.sub(lambda m: m[1] + quote(m[2].split(), results) + m[4], text)


def quote(words: list[str], results: Path) -> str:
    """`SCALE table NAME` or `SCALE TASK MODEL METRIC`."""
    document = read_record(results / words[0] / "results.json", Results)
    where = " ".join(words)
    if words[1:2] == ["table"]:
        table = next((x for x in build(document) if [x.name] == words[2:]), None)
        if table is None or not table.rows:
            raise ValueError(f"results have no table for the marker {where!r}")
        return f"\n{markdown_table(table)}\n"
    if len(words) != 4:
        raise ValueError(f"the marker {where!r} is not SCALE table NAME or SCALE TASK MODEL METRIC")
    _, task, row, metric = words
    cells = chosen(document, task, row)
    if not cells or metric not in cells[0].metrics:
        raise ValueError(f"results have nothing for the marker {where!r}")
    numbers = values(document, task, row, metric)
    return spread(numbers, percent) if metric == "accuracy" else spread(numbers)


def main(paths: list[str]) -> int:
    for path in map(Path, paths):
        text = fill(path.read_text(), path.parent / "results")
        write_atomically(path, lambda file, text=text: file.write_text(text))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
