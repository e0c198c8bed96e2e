"""The parts of a report: a picture, and under it what it shows."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    name: str  # of the file in figures/
    title: str
    picture: str  # an <svg>, or a table
    reading: str
    note: str = ""  # what the paper has, and how it differs
    wide: bool = False


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are plain text of ours: numbers and names, already safe."""

    def line(cells: Sequence[str], tag: str) -> str:
        # Long cells may break, or a table of numbers would not fit the page.
        wrap = [' class="wrap"' if len(cell) > 22 and "<" not in cell else "" for cell in cells]
        inner = "".join(f"<{tag}{w}>{cell}</{tag}>" for cell, w in zip(cells, wrap, strict=True))
        return f"<tr>{inner}</tr>"

    body = "".join(line(row, "td") for row in rows)
    inner = f"<thead>{line(head, 'th')}</thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table>{inner}</table></div>'
