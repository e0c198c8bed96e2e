"""Numbers of the diagnostics of models that were looked into, over all their seeds."""

from bwt import paper
from bwt.records.results import Results, StudyText
from bwt.report import diagnostics
from bwt.reproduce.tables.table import Table, spread, together
from bwt.reproduce.tables.variants import Seeds, variants

# Layers, of which there is no mean.
PLACES = (
    "lookup_layer",
    "head_most_layer",
    "head_most_mean_layer",
    *(f"lens_beats_memory_{k}" for k in (1, 2, 5)),
)

BY_LAYER = (
    "Attention entropy in bits, mean over heads; KL in bits of what an affine map reads off the "
    "output of the layer; R2 of the exact entropy, within a position, from the best direction of "
    "the values that attention reads; KL added in bits with the attention or the MLP of the layer "
    "replaced by its mean over sequences. Mean over seeds."
)


def opened(results: Results, text: StudyText) -> list[Table]:
    tables = [
        _looked(results, text, "geometry", "Geometry", "geometry"),
        _looked(results, text, "ablation", "Ablation", "ablate"),
        _by_layer(results, text),
    ]
    return [table for table in tables if table.rows]


def _looked(results: Results, text: StudyText, name: str, title: str, command: str) -> Table:
    """The numbers of the diagnostics that a command makes."""
    shown = [x for x in diagnostics.in_order() if x.command == command and x.numbers]
    names = [number for x in shown for number in x.numbers]
    found = [x for x in variants(results, text.name) if any(_has(x, key) for key in names)]
    names = [key for key in names if any(_has(x, key) for x in found)]
    rows = [
        [key, *(_over_seeds(x, key) for x in found), paper.GEOMETRY.get(key, "-")] for key in names
    ]
    legend = "; ".join(x.legend for x in shown if set(x.numbers) & set(names))
    notes = [f"`bwt {command}`. {legend[:1].upper()}{legend[1:]}."]
    header = ["", *(_model(x) for x in found), "paper"]
    table = f"{name}-{text.name}"
    return Table(table, f"{title}: {text.title}", header, rows, notes, text.name)


def _by_layer(results: Results, text: StudyText) -> Table:
    names = [name for x in diagnostics.in_order() for name in x.by_layer]
    found = variants(results, text.name)
    told = [(x, name, _layers(x, name)) for x in found for name in names]
    told = [(x, name, layers) for x, name, layers in told if layers]
    most = max((len(layers) for *_, layers in told), default=0)
    rows = [[name, _model(x), *layers, *["-"] * (most - len(layers))] for x, name, layers in told]
    header = ["", "model", *(f"layer {i}" for i in range(most))]
    title, place = f"By layer: {text.title}", f"layers-{text.name}"
    return Table(place, title, header, rows, [BY_LAYER] if rows else [], text.name)


def _model(seeds: Seeds) -> str:
    """Its name, and which of its seeds are meant if some are at a floor."""
    name, opened = f"{seeds.setting}: {seeds.row}", seeds.opened()
    if all(x.at_floor() for x in opened):
        return f"{name}, not trained"
    trained = sum(not x.at_floor() for x in seeds.cells)
    return name if trained == len(seeds.cells) else f"{name}, {trained} of {len(seeds.cells)} seeds"


def _layers(seeds: Seeds, name: str) -> list[str]:
    """Over the seeds, for each layer."""
    found = [x.layers[name] for x in seeds.opened() if name in x.layers]
    columns = zip(*found, strict=True) if found else ()
    return [
        spread([x for x in column if x is not None], outcomes=False, one="") for column in columns
    ]


def _has(seeds: Seeds, key: str) -> bool:
    return any(key in x.geometry for x in seeds.opened())


def _over_seeds(seeds: Seeds, key: str) -> str:
    opened = seeds.opened()
    found = [x.geometry[key] for x in opened if key in x.geometry]
    looked = sum(bool(x.geometry) for x in opened)  # into so many seeds
    if not found or looked == 1:
        return spread(found)
    missing = f" ({len(found)} of {looked} seeds)" if len(found) < looked else ""
    return over_seeds(key, found) + missing


def over_seeds(key: str, values: list[float]) -> str:
    if key in PLACES:
        return together([f"{x:g}" for x in values])
    return spread(values, outcomes=False, one="")
