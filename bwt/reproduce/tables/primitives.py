"""Which abilities a model has shown, on tasks where their lack is seen."""

from bwt import paper
from bwt.records.curves import per_doubling
from bwt.records.results import Cell, Results
from bwt.reproduce.tables.table import Table, together
from bwt.reproduce.tables.variants import find, variants

# (primitive, study, setting, predictor that lacks just that): `lookup` does not rule out the values
# of other keys, `latest` keeps the last showing of each key, `memory-10` is the exact filter of the
# last ten observations, `unbound` knows what was stored and not what belongs together.
NEEDED = (
    ("accumulation", "architecture", "bijection", "lookup"),
    ("accumulation", "generators", "bijection-noisy", "latest"),
    ("transport", "transport", "hmm-sticky", "memory-10"),
    ("transport", "transport", "hmm-missing", "memory-10"),
    ("binding", "architecture", "recall", "unbound"),
    ("binding", "architecture", "bijection", "unbound"),
)
NEAR, FAR, RIGHT = 0.05, 2.0, 0.95
FALLING = 0.1  # of the KL, with a doubling of the steps: more than that has not converged
RULE = (
    f"A seed passes if its KL is at most {NEAR:.0%} of the exact entropy (recall, where that is 0: "
    f"if it answers {RIGHT:.0%} of the questions correctly) and at most 1/{FAR:g} of the KL of the "
    "predictor that lacks just this ability: accumulation: recalls repeated keys and does not rule "
    "out the values of others, or, through a noisy channel, is exact but for keeping the last "
    "showing of each key only; transport: the exact filter of the last ten observations; binding: "
    "knows what was stored, not what belongs together. One that does not pass and whose KL still "
    f"falls by {FALLING:.0%} or more with a doubling of the steps has not converged. The paper's "
    "verdicts are its own, by no stated rule."
)


def verdict(cell: Cell, floor: str) -> str:
    """yes, no, not converged, not trained, or - where the task has no such predictor, or the
    entropy is not known; see RULE."""
    if floor not in cell.floors:
        return "-"
    if cell.at_floor():
        return "not trained"
    kl = cell.metrics["kl"].mean
    if cell.task == "recall":
        near = cell.metrics["accuracy"].mean >= RIGHT
    elif cell.exact_entropy is None:
        return "-"
    else:
        near = kl <= NEAR * cell.exact_entropy
    if near and kl <= cell.floors[floor].kl / FAR:
        return "yes"
    slope = cell.slope()
    falling = slope is None or per_doubling(slope.mean) >= FALLING
    return "not converged" if falling else "no"


def primitives(results: Results) -> Table:
    studies = dict.fromkeys(study for _, study, _, _ in NEEDED)
    models = dict.fromkeys(x.row for study in studies for x in variants(results, study))
    rows = [[row, *(_shown(results, row, *needed) for needed in NEEDED)] for row in models]
    header = ["model", *(f"{name} ({setting})" for name, _, setting, _ in NEEDED)]
    return Table("primitives", "Primitives", header, rows, [RULE] if rows else [])


def _shown(results: Results, row: str, name: str, study: str, setting: str, floor: str) -> str:
    seeds = find(results, study, setting, row)
    ours = "-" if seeds is None else together([verdict(x, floor) for x in seeds.cells])
    return f"{ours} (paper {paper.PRIMITIVES.get((name, row), '-')})"
