"""The table of any study: a line for each variant."""

from bwt.records.results import Results, StudyText
from bwt.reproduce.tables import beside
from bwt.reproduce.tables.architecture import rates
from bwt.reproduce.tables.circumstances import circumstances
from bwt.reproduce.tables.freezing import columns as freezing
from bwt.reproduce.tables.table import Table, spread_of
from bwt.reproduce.tables.variants import Seeds, variants

Columns = dict[str, list[str]]
BESIDE_THE_PAPER = ("paper-size", "generators")  # studies near enough to it


def study(results: Results, text: StudyText) -> Table:
    found = variants(results, text.name)
    columns = _columns(found, text) if found else {}
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    notes = []
    shared = {circumstances(x.cells[0].config) for x in found}
    if len(shared) == 1:
        notes.append(f"All: {shared.pop()}.")
    if text.tuned:
        notes.append(rates(results))
    if text.name in BESIDE_THE_PAPER:
        notes.append(beside.RULE)
    if text.name == "freezing":
        notes.append(
            "Up to its step a run that is frozen then is the run of the same seed in which nothing "
            "is. Gained: the KL at that step over the KL at the end."
        )
    return Table(text.name, text.title, list(columns), rows, notes if found else [], text.name)


def _columns(found: list[Seeds], text: StudyText) -> Columns:
    columns: Columns = {}
    if len({x.setting for x in found}) > 1:
        columns["setting"] = [x.setting for x in found]
    columns["variant"] = [x.row for x in found]
    told = [circumstances(x.cells[0].config) for x in found]
    if len(set(told)) > 1:
        columns["circumstances"] = told
    columns["parameters"] = [f"{x.cells[0].parameters:,}" for x in found]
    if text.tuned:
        columns["rate"] = [x.rate() for x in found]
    columns["steps"] = [x.steps() for x in found]
    for metric in ("entropy_mae", "kl"):
        columns[metric] = [spread_of(x.cells, metric) for x in found]
    if any(x.task == "recall" for x in found):
        columns["accuracy"] = [spread_of(x.cells, "accuracy") for x in found]
    if text.name == "freezing":
        columns |= freezing(found)
    columns["best floor (kl)"] = [x.floor() for x in found]
    columns["learned"] = [x.learned() for x in found]
    columns["per doubling"] = [x.slope() for x in found]
    if text.name in BESIDE_THE_PAPER:
        columns["paper"] = [beside.papers(x) for x in found]
        columns["beside the paper"] = [beside.beside(x) for x in found]
    return columns
