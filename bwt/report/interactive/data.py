"""The data of the script: what geometry.json holds of a run, in as few letters as will do."""

import json
import math
from collections.abc import Sequence
from typing import Any

from bwt.records.geometry import Attention, Example, Examples, Geometry, Manifold, Points
from bwt.report.diagnostics.attention import best_head
from bwt.report.words import known


def script_data(index: int, geometry: Geometry) -> str:
    """A script tag with the data of a run."""
    found: dict[str, Any] = {}
    if geometry.examples is not None and geometry.examples.sequences[0].tokens is not None:
        found |= _examples(geometry.examples)
        found["start"] = _start(geometry.examples, geometry.attention)
    if isinstance(geometry.manifold, Manifold):
        found["clouds"] = _clouds(geometry.manifold)
    # Nothing in it may end the tag.
    text = json.dumps(found, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="data-run{index}">{text}</script>'


def _examples(section: Examples) -> dict[str, Any]:
    rows = section.checkpoints or []
    return {
        "sequences": [_example(x) for x in section.sequences],
        "checkpoints": [{"step": row.step, "model": row.model} for row in rows],
    }


def _start(examples: Examples, attention: Attention | None) -> dict[str, int]:
    """What is shown at first: the step at which the exact posterior becomes sharper most, and the
    head that gives most to what is useful."""
    bits = [entropy(p) for p in examples.sequences[0].exact]
    falls = [before - after for before, after in zip([bits[0], *bits], bits, strict=False)]
    step = max(range(len(falls)), key=falls.__getitem__)
    best = None if attention is None else best_head(attention)
    layer, head = (0, 0) if best is None else best[2:]
    return {"step": step, "layer": layer, "head": head}


def _example(x: Example) -> dict[str, Any]:
    return {
        "tokens": x.tokens,
        "asked": x.asked,
        "labels": x.labels,
        "targets": x.targets,
        "exact": _thousandths(x.exact),
        "model": _thousandths(x.model),
        # From the numbers as they were: of rounded ones they would be something else.
        "exactEntropy": [_digits(entropy(p)) for p in x.exact],
        "modelEntropy": [_digits(entropy(q)) for q in x.model],
        "kl": [_digits(divergence(p, q)) for p, q in zip(x.exact, x.model, strict=True)],
        "attention": x.attention,
    }


def _clouds(section: Manifold) -> dict[str, Any]:
    return {label: _points(x, x.z) for label, x in section.points.items() if x.z is not None}


def _points(points: Points, z: list[float]) -> dict[str, Any]:
    columns = (points.x, points.y, z, points.entropy, points.step)
    rows = [row for row in zip(*columns, strict=True) if all(map(known, row))]
    names = ("x", "y", "z", "entropy", "step")
    kept = zip(*rows, strict=True) if rows else [()] * len(names)
    return {name: [_digits(v) for v in column] for name, column in zip(names, kept, strict=True)}


def _thousandths(matrix: Sequence[Sequence[float]]) -> list[list[int]]:
    return [[round(1000 * x) if known(x) else 0 for x in row] for row in matrix]


def _digits(x: float) -> float | None:
    return float(f"{x:.3g}") if known(x) else None


def entropy(p: Sequence[float]) -> float:
    return -sum(x * math.log2(x) for x in p if known(x) and x > 0)


def divergence(p: Sequence[float], q: Sequence[float]) -> float:
    """Bits; infinite where q rules out what p does not."""
    pairs = [(a, b) for a, b in zip(p, q, strict=True) if known(a) and a > 0]
    if any(not known(b) or b <= 0 for _, b in pairs):
        return math.inf
    return sum(a * math.log2(a / b) for a, b in pairs)
