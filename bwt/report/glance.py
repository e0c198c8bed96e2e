"""One sequence at a glance: exact Bayes, the model, and where the head looks that finds it."""

import math
from collections.abc import Sequence

from bwt.records.geometry import Attention, Example, Examples, Formation, Geometry
from bwt.report import charts, words
from bwt.report.cards import Card
from bwt.report.diagnostics.attention import best_head
from bwt.report.svg import Drawing, cells, short

Matrix = Sequence[Sequence[float]]
PANEL, GAP, LEFT, TOP = 266.0, 44.0, 44.0, 48.0


def cards(geometry: Geometry | None) -> list[Card]:
    """None, where the sequences were recorded without attention."""
    if geometry is None or not isinstance(geometry.examples, Examples):
        return []
    best = best_head(geometry.attention) if isinstance(geometry.attention, Attention) else None
    example = geometry.examples.sequences[0]
    if best is None or example.asked is None or example.attention is None:
        return []
    _, _, layer, head = best
    # Only where there are pairs to look up does a question have one answer.
    looked_up = isinstance(geometry.formation, Formation)
    answered = answered_before(example.labels, example.asked) if looked_up else {}
    shares = [[weight / 1000 for weight in row] for row in example.attention[layer][head]]
    picture = _draw(example, shares, f"head {head} of layer {layer}", answered)
    reading = (
        "Each column is a step, named by what is shown there. Stronger colour is more probable, or "
        "more attention (square root); a dot is what was really the case."
    )
    if answered:
        reading += " A ring is where the same question was answered before."
    return [Card("glance", "One sequence at a glance", picture, reading, wide=True)]


def answered_before(labels: Sequence[str], asked: Sequence[int]) -> dict[int, list[int]]:
    """For a step whose question was asked before: the positions of its answers."""
    answers: dict[str, list[int]] = {}
    found = {}
    for step, name in enumerate(labels):
        if name in answers:
            found[step] = list(answers[name])
        answers.setdefault(name, []).append(asked[step] + 1)
    return found


def _draw(example: Example, shares: Matrix, head: str, answered: dict[int, list[int]]) -> str:
    width, height = LEFT + 3 * PANEL + 2 * GAP + 14, TOP + PANEL + 48
    drawing = Drawing(width, height, "Exact posterior, model and attention in one sequence")
    drawing.add("rect", width=width, height=height, rx=8, class_="paper")
    bits = words.num(words.mean(list(map(_kl, example.exact, example.model))))
    panels = (
        ("Exact posterior", "of each outcome", "outcome", charts.transposed(example.exact)),
        ("What the model says", f"{bits} bits away", "outcome", charts.transposed(example.model)),
        ("Where it looks", head, "position", charts.transposed(_padded(shares))),
    )
    for i, (name, more, rows, matrix) in enumerate(panels):
        x = LEFT + i * (PANEL + GAP)
        drawing.text(x, TOP - 27, name, class_="name")
        drawing.text(x, TOP - 10, more, class_="tick")
        named = {"data_name": name, "data_row": f"{rows} 0", "data_column": "step 1"}
        cells(drawing, matrix, x, TOP, PANEL, PANEL, **named)
        charts.row_ticks(drawing, len(matrix), x, TOP, PANEL)
        _name_steps(drawing, example.labels, answered, x)
        _name_rows(drawing, rows, x - 32)
        if rows == "outcome":
            charts.point_out(drawing, example.targets, len(matrix), x, TOP, PANEL, PANEL)
        else:
            _rings(drawing, answered, len(example.labels), len(matrix), x)
    drawing.text(width / 2, height - 10, "shown, step by step", "middle", class_="tick")
    return drawing.render()


def _name_steps(
    drawing: Drawing, labels: Sequence[str], answered: dict[int, list[int]], x: float
) -> None:
    """What is shown at each step; what came before stands out."""
    wide = PANEL / len(labels)
    every = math.ceil(17 / wide) if wide < 12 else 1
    for step in range(0, len(labels), every):
        kind = "again" if step in answered else "tick"
        at = x + (step + 0.5) * wide
        drawing.text(at, TOP + PANEL + 14, labels[step], "middle", class_=f"small {kind}")


def _name_rows(drawing: Drawing, text: str, x: float) -> None:
    y = TOP + PANEL / 2
    turned = f"rotate(-90 {short(x)} {short(y)})"
    drawing.text(x, y, text, "middle", transform=turned, class_="tick")


def _rings(
    drawing: Drawing, answered: dict[int, list[int]], steps: int, rows: int, x: float
) -> None:
    for step, positions in answered.items():
        across = x + (step + 0.5) * PANEL / steps
        for position in positions:
            down = TOP + (position + 0.5) * PANEL / rows
            drawing.add("circle", r=6.0, class_="ring", cx=across, cy=down)


def _kl(exact: Sequence[float], model: Sequence[float]) -> float:
    return sum(
        p * math.log2(p / max(q, 1e-300)) for p, q in zip(exact, model, strict=True) if p > 0
    )


def _padded(rows: Matrix) -> list[list[float]]:
    longest = max(map(len, rows))
    return [[*row, *[0.0] * (longest - len(row))] for row in rows]
