"""What the report knows of a diagnostic."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bwt.records.base import Record
from bwt.records.geometry import Skipped
from bwt.report.cards import Card


@dataclass(frozen=True)
class Shown:
    """The section of geometry.json that has this name, for people. Functions take its record."""

    name: str
    title: str
    record: type[Record]
    cards: Callable[[Any], list[Card]]
    command: str = "geometry"  # that fills the section
    # label -> sentence, for the terminal
    sentences: dict[str, Callable[[Any], str]] = field(default_factory=dict)
    # Rows of a reproduction's tables: name -> the number, None where there is none.
    numbers: dict[str, Callable[[Any], float | None]] = field(default_factory=dict)
    legend: str = ""  # what the numbers are
    # Rows of the tables by layer: name -> a value for each, None where there is none.
    by_layer: dict[str, Callable[[Any], list[float | None]]] = field(default_factory=dict)
    # One sentence each, at the head of its chapter: what was found, and against what it stands.
    finding: Callable[[Any], str] = lambda section: ""
    control: Callable[[Any], str] = lambda section: ""

    def lines(self, section: Record) -> dict[str, str]:
        """The sentences of a section; those that have nothing to say are left out."""
        if isinstance(section, Skipped):
            return dict.fromkeys(self.sentences, f"Not measured: {section.reason}.")
        told = {label: sentence(section) for label, sentence in self.sentences.items()}
        return {label: text for label, text in told.items() if text}
