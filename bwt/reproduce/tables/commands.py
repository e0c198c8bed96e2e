"""Each cell by its name."""

from bwt.records.results import Cell, Results
from bwt.reproduce.tables.table import Table


def unfinished(results: Results) -> Table:
    """What the tables lack. To diverge while a learning rate is tried is a result."""
    missing = [x for x in results.cells if x.status in ("not finished", "failed")]
    rows = [[x.name, _progress(x), results.faults.get(x.name, "-")] for x in missing]
    names = {x.name for x in missing}
    rows += [[name, "-", why] for name, why in results.faults.items() if name not in names]
    return Table("unfinished", "Not finished", ["what", "steps", "why"], rows, [])


def _progress(cell: Cell) -> str:
    done = cell.curve.steps[-1] if cell.curve.steps else 0
    return f"{done:,} of {cell.config['steps']:,}"


def commands(results: Results) -> Table:
    rows = [[x.name, x.status, x.command] for x in results.cells]
    return Table("commands", "The command of each cell", ["cell", "status", "command"], rows, [])
