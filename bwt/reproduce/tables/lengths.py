"""Error on sequences longer than those of training."""

from bwt import paper
from bwt.records.results import Cell, Results
from bwt.reproduce.tables.circumstances import circumstances
from bwt.reproduce.tables.table import Table, spread
from bwt.reproduce.tables.variants import Seeds, variants

PAPER = "token header, floor 0.05; learned positions"


def lengths(results: Results) -> Table:
    found = [x for study in results.studies for x in variants(results, study.name)]
    found = [x for x in found if any(cell.lengths for cell in x.cells)]
    sizes = sorted({size for x in found for cell in x.cells for size in _sizes(cell)})
    rows = [
        [x.study, x.setting, x.row, circumstances(x.cells[0].config), *(_at(x, n) for n in sizes)]
        for x in found
    ]
    for row, figures in paper.LENGTHS.items():
        if found and set(sizes) & set(figures):
            rows.append(["paper", "hmm", row, PAPER, *(figures.get(n, "-") for n in sizes)])
    header = ["study", "setting", "model", "circumstances", *(f"length {n}" for n in sizes)]
    notes = [
        "HMM, entropy error in bits over all positions, trained on the first length. An MLP has "
        "weights for the positions of training only; learned positions beyond the length of "
        "training are there, if at all, as they were drawn. The paper does not say how its "
        "transformer's errors were measured, and its code measures KL here."
    ]
    return Table("lengths", "Longer than in training", header, rows, notes if found else [])


def _sizes(cell: Cell) -> list[int]:
    return [_trained_length(cell), *map(int, cell.lengths)]


def _trained_length(cell: Cell) -> int:
    return cell.config["task_options"]["length"]


def _at(seeds: Seeds, size: int) -> str:
    scores = [
        x.metrics if size == _trained_length(x) else x.lengths.get(str(size)) for x in seeds.cells
    ]
    return spread([x["entropy_mae"].mean for x in scores if x])
