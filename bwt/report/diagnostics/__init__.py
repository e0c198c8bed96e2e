"""Each diagnostic for people: its cards, its sentences and its numbers, in a file of its own."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from bwt.records.geometry import Geometry, Skipped
from bwt.report.diagnostics import (
    ablation,
    attention,
    clusters,
    dissociation,
    examples,
    formation,
    keys,
    lengths,
    lens,
    manifold,
    probes,
    splice,
)
from bwt.report.diagnostics.shown import Shown
from bwt.report.words import known

# In the order of the story that the page tells; see bwt/report/story.py.
DIAGNOSTICS: tuple[Shown, ...] = (
    examples.SHOWN,
    lengths.SHOWN,
    attention.SHOWN,
    keys.SHOWN,
    manifold.SHOWN,
    probes.SHOWN,
    lens.SHOWN,
    clusters.SHOWN,
    ablation.SHOWN,
    splice.SHOWN,
    formation.SHOWN,
    dissociation.SHOWN,
)


def told(geometry: Geometry, names: Iterable[str]) -> list[tuple[Shown, Any]]:
    """Those of these diagnostics that were made, with what they found."""
    wanted = set(names)
    return [
        (shown, section)
        for shown, section in _told(geometry, DIAGNOSTICS)
        if shown.name in wanted and not isinstance(section, Skipped)
    ]


def skipped(geometry: Geometry) -> list[str]:
    """What could not be measured, and why."""
    told = _told(geometry, DIAGNOSTICS)
    return [f"{shown.title}: {x.reason}." for shown, x in told if isinstance(x, Skipped)]


def summary(geometry: Geometry) -> str:
    """All of it in a few lines, for the terminal."""
    lines: dict[str, str] = {}
    for shown, section in _told(geometry, in_order()):
        lines |= shown.lines(section)
    return "\n".join(f"{label + ':':<11}{text}" for label, text in lines.items())


def numbers(geometry: Geometry) -> dict[str, float]:
    """Those of a reproduction's tables that there are."""
    values = {
        name: number(section)
        for shown, section in _told(geometry, in_order())
        if not isinstance(section, Skipped)
        for name, number in shown.numbers.items()
    }
    return {name: value for name, value in values.items() if known(value)}


def by_layer(geometry: Geometry) -> dict[str, list[float | None]]:
    """What a reproduction's tables say of each layer; what no layer has is left out."""
    values = {
        name: [x if known(x) else None for x in each(section)]
        for shown, section in _told(geometry, in_order())
        if not isinstance(section, Skipped)
        for name, each in shown.by_layer.items()
    }
    return {name: value for name, value in values.items() if any(x is not None for x in value)}


def in_order() -> list[Shown]:
    """That of the record, in which diagnostics are told outside of the page."""
    by_name = {shown.name: shown for shown in DIAGNOSTICS}
    return [by_name[f.name] for f in dataclasses.fields(Geometry) if f.name in by_name]


def _told(geometry: Geometry, among: Iterable[Shown]) -> Iterator[tuple[Shown, Any]]:
    """Those of which the geometry has a section, with it."""
    for shown in among:
        section = getattr(geometry, shown.name)
        if section is not None:
            yield shown, section
