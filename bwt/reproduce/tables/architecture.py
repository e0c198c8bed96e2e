"""Architectures and tasks: ours beside the paper's."""

from bwt.records.results import Cell, Results
from bwt.reproduce.tables import beside
from bwt.reproduce.tables.circumstances import circumstances
from bwt.reproduce.tables.table import Table, spread_of
from bwt.reproduce.tables.variants import Seeds, variants
from bwt.runs import authors

STUDY = "architecture"
MATCHED = 1.01 / 0.99  # the largest over the smallest, all within 1% of the transformer


def architecture(results: Results) -> Table:
    """One line for each model, one column for each task."""
    found = variants(results, STUDY)
    settings = list(dict.fromkeys(x.setting for x in found))
    by_place = {(x.setting, x.row): x for x in found}
    rows = [
        [row, *(_headline(by_place.get((setting, row))) for setting in settings)]
        for row in dict.fromkeys(x.row for x in found)
    ]
    units = ["accuracy" if _is_recall(found, setting) else "bits" for setting in settings]
    header = ["model", *(f"{s} ({unit})" for s, unit in zip(settings, units, strict=True))]
    notes = [
        "Entropy error in bits (recall: accuracy). Two figures of the paper are those of its "
        "versions 1 and 3; the table of all metrics says whether they can be compared.",
        _sizes(found),
    ]
    if results.scale == "authors":
        notes.append(authors.DEPARTURES)
    return Table("architecture", "Architectures and tasks", header, rows, notes, STUDY)


def _sizes(found: list[Seeds]) -> str:
    """Whether models differ in what they are and not in how large they are, setting by setting."""
    by_setting: dict[str, list[Cell]] = {}
    for x in found:
        by_setting.setdefault(x.setting, []).append(x.cells[0])
    parameters = [[cell.parameters for cell in cells] for cells in by_setting.values()]
    batches = [{cell.config["batch_size"] for cell in cells} for cells in by_setting.values()]
    matched = all(max(each) <= MATCHED * min(each) for each in parameters)
    if matched and all(len(sizes) == 1 for sizes in batches):
        return "All models have batches of one size and, within 1%, equally many parameters."
    return "Models differ in parameters or in the size of their batches, too: see the commands."


def _is_recall(found: list[Seeds], setting: str) -> bool:
    return any(x.task == "recall" for x in found if x.setting == setting)


def headline(seeds: Seeds) -> str:
    return spread_of(seeds.cells, "accuracy" if seeds.task == "recall" else "entropy_mae")


def _headline(seeds: Seeds | None) -> str:
    if seeds is None:
        return "-"
    lost = f"; {len(seeds.lost)} more without a result" if seeds.lost else ""
    other = ", another generator" if beside.other_generator(seeds) else ""
    return f"{headline(seeds)}{lost} (paper {beside.papers(seeds)}{other})"


SHOWN = ("entropy_mae", "kl", "tvd", "excess", "accuracy")


def metrics(results: Results) -> Table:
    """One line for each model and task, with all that has to be known of it."""
    rows = [
        [
            x.setting,
            x.row,
            circumstances(x.cells[0].config),
            f"{x.cells[0].parameters:,}",
            x.rate(),
            x.steps(),
            *(spread_of(x.cells, name) for name in SHOWN),
            x.floor(),
            x.learned(),
            x.slope(),
            beside.beside(x),
        ]
        for x in variants(results, STUDY)
    ]
    header = ["setting", "model", "circumstances", "parameters", "rate", "steps", *SHOWN]
    header += ["best floor (kl)", "learned", "per doubling", "beside the paper"]
    tuned = any(text.name == STUDY and text.tuned for text in results.studies)
    notes = [*([rates(results)] if tuned else []), beside.RULE]
    return Table("metrics", "All metrics", header, rows, notes, STUDY)


def rates(results: Results) -> str:
    tried = ", ".join(f"{x:g}" for x in results.rates)
    budget = "the whole budget" if results.trial >= 1 else f"{results.trial:.0%} of the steps"
    return (
        f"Rate: factor on the preset's learning rates. {tried} were tried on {budget}; the one "
        "whose worse of two seeds is better is used for all seeds. (The second seed of a rate is "
        "run only if the first leaves it a chance.) Should it be the least or the greatest, the "
        "range is extended; if it still is after that, it is marked as an edge, and a better one "
        "may lie beyond it. Undecided: no trial has learned anything, and the preset's are taken."
    )
