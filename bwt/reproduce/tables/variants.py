"""The seeds of a variant together, and what is said of them in every table."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from bwt.records.curves import per_doubling
from bwt.records.floors import best_floor
from bwt.records.results import Cell, Results
from bwt.report.words import mean
from bwt.reproduce.tables.table import deviation, number, together

BLIND = "not trained, as it must be: it sees its own position only"


@dataclass(frozen=True)
class Seeds:
    """The cells of one row: those that count, and those of the same rate that came to nothing."""

    study: str
    setting: str
    row: str
    cells: list[Cell]  # finished
    lost: list[Cell]
    tried: list[float]  # rates
    undecided: bool = False  # between them: all trials have learned nothing

    @property
    def task(self) -> str:
        return (self.cells or self.lost)[0].task

    @property
    def x(self) -> float | None:
        return (self.cells or self.lost)[0].x

    def rate(self) -> str:
        """The chosen factor on the preset's learning rates."""
        chosen = self.cells[0].rate
        if self.undecided:
            return f"{chosen:.2g} (undecided)"
        at_edge = len(self.tried) > 1 and chosen in (min(self.tried), max(self.tried))
        return f"{chosen:.2g}" + (" (edge)" if at_edge else "")

    def steps(self) -> str:
        """That were trained."""
        low, *_, high = sorted([x.steps for x in self.cells] * 2)
        return f"{low:,}" if low == high else f"{low:,} to {high:,}"

    def slope(self) -> str:
        """What a doubling of the steps changes the KL by at the end: mean and deviation over
        seeds, of one seed with the error of the fit."""
        slopes = [x for x in (cell.slope() for cell in self.cells) if x is not None]
        if not slopes:
            return "-"
        middle = mean([x.mean for x in slopes])
        left = 1 - per_doubling(middle)
        error = slopes[0].se if len(slopes) == 1 else deviation([x.mean for x in slopes])
        about = "" if error is None else f" ± {left * math.log(2) * error:.0%}"
        return f"{left - 1:+.0%}{about}"

    def floor(self) -> str:
        """The best predictor that lacks something, and its KL."""
        return f"{self.best_floor()} {number(self.floor_kl(self.best_floor()))}"

    def best_floor(self) -> str:
        return best_floor(self.cells[0].floor_kl())

    def floor_kl(self, name: str) -> float:
        return mean([x.floors[name].kl for x in self.cells])

    def opened(self) -> list[Cell]:
        """Those that were looked into. Inside a model at a floor is what it began with: it is no
        seed of the others, and stands for itself only where there are no others."""
        looked = [x for x in self.cells if x.geometry or x.layers]
        return [x for x in looked if not x.at_floor()] or looked

    def learned(self) -> str:
        """Whether anything was, and which seeds are not among the numbers."""
        lost = [f"seed {x.seed} {x.status}" for x in self.lost]
        return "; ".join([together([_state(x) for x in self.cells]), *lost])


def _state(cell: Cell) -> str:
    if cell.at_floor():
        return BLIND if cell.row == "mlp-position" else "not trained"
    state = cell.state()
    return "yes" if state == "trained" else state.replace("at ", "no better than ", 1)


def variants(results: Results, study: str) -> list[Seeds]:
    """Rows of a study of which a seed has finished, in its order."""
    return [x for x in _grouped(results, study) if x.cells]


def _grouped(results: Results, study: str) -> Iterator[Seeds]:
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in results.cells:
        if cell.study == study:
            found.setdefault((cell.setting, cell.row), []).append(cell)
    for (setting, row), cells in found.items():
        chosen = [x for x in cells if x.chosen]
        rates = {x.rate for x in chosen}
        lost = [x for x in cells if not x.finished and not x.trial and x.rate in rates]
        trials = [x for x in cells if x.trial and x.finished]
        undecided = bool(trials) and all(x.at_floor() for x in trials)
        yield Seeds(study, setting, row, chosen, lost, sorted({x.rate for x in cells}), undecided)


def find(results: Results, study: str, setting: str, row: str) -> Seeds | None:
    found = variants(results, study)
    return next((x for x in found if (x.setting, x.row) == (setting, row)), None)
