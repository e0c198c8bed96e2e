"""Figures that a text quotes from results/, between markers that say where each comes from:

    <!-- results: laptop table architecture -->
    | model | ... |
    <!-- /results -->

    is <!-- results: laptop value architecture/hmm/mlp/kl -->0.12 ± 0.01<!-- /results -->

    of <!-- results: laptop number shape/hmm/2 heads/pc1 -->0.35<!-- /results --> of the variance

    a guess costs <!-- results: laptop floor shape/hmm/2 heads/uniform -->0.5<!-- /results -->

    after <!-- results: laptop steps shape/hmm/2 heads -->6,000<!-- /results --> steps

    from <!-- results: laptop layer shape/hmm/2 heads/lens_kl/0 -->0.2<!-- /results --> bits

    at length 50 <!-- results: laptop length shape/hmm/2 heads/kl/50 -->0.1<!-- /results -->

    at step 300 <!-- results: laptop curve shape/hmm/2 heads/300 -->0.4<!-- /results -->

    it is <!-- results: laptop record shape-hmm-2_heads-seed=0 keys/share/1 -->0.9<!-- /results -->

A value says how many seeds there are, a number does not; it may be of a metric or of what geometry
found. A floor is the KL of a predictor that lacks something, a curve the KL while training. A
record is what was found inside one model, by its place in the file of that name in geometry/.
`python -m bwt.reproduce.quotes README.md` brings them up to date; a test fails if they are not.
"""

import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from bwt.records.results import Results
from bwt.report.words import known, mean, num
from bwt.reproduce.page import markdown_table
from bwt.reproduce.tables import build
from bwt.reproduce.tables.opened import over_seeds
from bwt.reproduce.tables.table import spread, spread_of, states_of
from bwt.reproduce.tables.variants import Seeds, find
from bwt.runs.files import read_object, read_record, write_text

MARKED = re.compile(r"(<!-- results: ([^>]*?) -->)(.*?)(<!-- /results -->)", re.S)


def fill(text: str, results: Path) -> str:
    """Return the text with every quote as results/ has it. Each file is read once.

    Raises:
        ValueError: a marker asks for something that is not there, or is not closed.
    """
    if text.count("<!-- results:") != len(MARKED.findall(text)):
        raise ValueError("a marker <!-- results: ... --> has no <!-- /results -->")
    read = cache(read_record)
    return MARKED.sub(lambda m: m[1] + quote(m[2], results, read) + m[4], text)


def quote(marker: str, results: Path, read: Callable[..., Results] = read_record) -> str:
    """Return what a marker asks for; `read` may remember the files that it has read."""
    scale, kind, rest = [*marker.split(maxsplit=2), "", ""][:3]
    if kind not in KINDS or not rest:
        raise ValueError(f"the marker {marker!r} is none of: " + ", ".join(FORMS))
    if kind == "record":
        found = _record(results / scale / "geometry", rest)
    else:
        found = KINDS[kind](read(results / scale / "results.json", Results), rest)
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
    seeds, _ = _placed(document, place)
    return None if seeds is None else seeds.steps()


def _layer(document: Results, place: str) -> str | None:
    seeds, (name, layer) = _placed(document, place, 2)
    each = [x.layers.get(name, []) for x in seeds.opened()] if seeds else []
    return _mean([x for layers in each for i, x in enumerate(layers) if str(i) == layer])


def _length(document: Results, place: str) -> str | None:
    seeds, (metric, length) = _placed(document, place, 2)
    each = [x.lengths.get(length, {}) for x in seeds.cells] if seeds else []
    return _mean([x[metric].mean for x in each if metric in x])


def _curve(document: Results, place: str) -> str | None:
    seeds, (step,) = _placed(document, place, 1)
    curves = [x.curve for x in seeds.cells] if seeds else []
    points = [point for x in curves for point in zip(x.steps, x.kl, strict=True)]
    return _mean([kl for at, kl in points if str(at) == step])


def _mean(values: list[float | None]) -> str | None:
    found = [x for x in values if known(x)]
    return spread(found, outcomes=False, one="") if found else None


def _record(folder: Path, place: str) -> str | None:
    """`CELL PLACE`, where the place is names and numbers with slashes between them; of a list, the
    mean."""
    cell, _, rest = place.partition(" ")
    value: Any = read_object(folder / f"{cell}.json")
    try:
        for part in rest.split("/"):
            value = value[int(part)] if isinstance(value, list) else value[part]
    except (LookupError, TypeError, ValueError):
        return None
    numbers = value if isinstance(value, list) else [value]
    whole = numbers and all(isinstance(x, (int, float)) for x in numbers)
    return num(mean(numbers)) if whole else None


def _seeds(document: Results, place: str) -> tuple[Seeds | None, str]:
    seeds, (name,) = _placed(document, place, 1)
    return seeds, name


def _placed(document: Results, place: str, more: int = 0) -> tuple[Seeds | None, list[str]]:
    """The seeds at STUDY/SETTING/ROW, and the names that follow it."""
    names = [part.strip() for part in place.split("/")]
    if len(names) != 3 + more:
        return None, [""] * more
    return find(document, *names[:3]), names[3:]


ROW = "STUDY/SETTING/ROW"
FORMS = (
    "SCALE table NAME",
    f"SCALE value|number|floor {ROW}/NAME",
    f"SCALE steps {ROW}",
    f"SCALE layer {ROW}/NAME/LAYER",
    f"SCALE length {ROW}/METRIC/LENGTH",
    f"SCALE curve {ROW}/STEP",
    "SCALE record CELL PLACE",
)
KINDS: dict[str, Any] = {
    "table": _table,
    "value": _value,
    "number": _number,
    "floor": _floor,
    "steps": _steps,
    "layer": _layer,
    "length": _length,
    "curve": _curve,
    "record": _record,
}


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
