"""What is inside the models of a study, layer by layer."""

from collections.abc import Iterator
from dataclasses import dataclass

from bwt.records.floors import MEMORY
from bwt.records.results import StudyText
from bwt.report import charts
from bwt.report.charts import Series
from bwt.report.page import file_name
from bwt.report.words import known, mean
from bwt.reproduce.drawing import COLORS, WIDTH, Figure, level, series
from bwt.reproduce.tables.variants import Seeds

FEWEST = 3  # layers: two numbers are read in the table
NEAR = 0.1  # of the least KL of a layer: filters below it are not worth the room
MEMORIES = tuple(f"{MEMORY}{k}" for k in (1, 2, 5, 10))


@dataclass(frozen=True)
class Quantity:
    """That each layer has; `name` is that of results.json."""

    name: str
    title: str
    label: str
    caption: str


LENS = Quantity(
    "lens_kl",
    "How far the answer has come by layer",
    "KL (bits)",
    "KL of what an affine map reads off the output of each layer; dashed, predictors that lack an "
    "ability, such as exact filters of the last k observations. Mean over seeds.",
)
OTHERS = (
    Quantity(
        "attention_entropy",
        "Attention entropy by layer",
        "bits",
        "Entropy of the attention weights, mean over heads, queries and seeds.",
    ),
    Quantity(
        "values_entropy",
        "Entropy in the values by layer",
        "R²",
        "R² of the exact entropy, within a position, from the best direction of the values that "
        "attention reads. Mean over seeds.",
    ),
)


def by_layer(found: list[Seeds], text: StudyText) -> Iterator[Figure]:
    """Of models that have learned something. Floors are those of a setting, so that the lens has a
    figure for each."""
    trained = [x for x in found if not all(cell.at_floor() for cell in x.cells)]
    for setting in dict.fromkeys(x.setting for x in trained):
        own = [x for x in trained if x.setting == setting]
        rows = [(x.row, curve) for x in own if (curve := _curve(x, LENS))]
        if rows:
            least = min(v for _, curve in rows for v in curve if known(v))
            yield _figure(text, LENS, rows, f", {setting}", _floors(own[0], NEAR * least))
    for quantity in OTHERS:
        rows = [(f"{x.setting}: {x.row}", curve) for x in trained if (curve := _curve(x, quantity))]
        if rows:
            yield _figure(text, quantity, rows)


Curve = list[float | None]


def _curve(x: Seeds, quantity: Quantity) -> Curve:
    """Mean over seeds; nothing of models that were not looked into, or have few layers."""
    each = [cell.layers[quantity.name] for cell in x.opened() if quantity.name in cell.layers]
    if not each or len(each[0]) < FEWEST:
        return []
    return [mean([v for v in layer if known(v)]) for layer in zip(*each, strict=True)]


def _floors(x: Seeds, least: float) -> dict[str, float]:
    """A scale of filters where there is one, as far as it reaches down to the models; else the best
    floor."""
    names = [name for name in MEMORIES if name in x.cells[0].floors] or [x.best_floor()]
    return {name: kl for name in names if (kl := x.floor_kl(name)) > least}


def _figure(
    text: StudyText,
    quantity: Quantity,
    rows: list[tuple[str, Curve]],
    place: str = "",
    floors: dict[str, float] | None = None,
) -> Figure:
    layers = range(max(len(curve) for _, curve in rows))
    drawn: list[Series] = []
    for number, (name, curve) in enumerate(rows):
        drawn.append(series(number, name, range(len(curve)), curve))
        drawn[-1].dots = True
    for number, (name, kl) in enumerate((floors or {}).items()):
        drawn.append(level(name, layers, kl, COLORS[number]))
    title = f"{quantity.title}{place}"
    svg = charts.lines(
        drawn,
        f"{text.title}: {title}",
        "layer",
        quantity.label,
        names=[str(i) for i in layers],
        log_y=quantity is LENS,
        zero=quantity is not LENS,
        width=WIDTH,
    )
    name = file_name(f"{text.name}-{quantity.name.replace('_', '-')}{place}")
    return Figure(name, text.name, title, quantity.caption, svg)
