"""The parts of a report: a picture, and under it what it shows."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


class Html(str):
    """Text that is HTML already."""


@dataclass(frozen=True)
class Card:
    name: str  # of the file in figures/
    title: str
    picture: str  # an <svg>, or a table
    reading: str
    note: str = ""  # what the paper has, and how it differs
    wide: bool = False


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def cell(text: str, tag: str) -> str:
        if isinstance(text, Html):
            return f"<{tag}>{text}</{tag}>"
        # Long cells may break, or a table of numbers would not fit the page.
        wrap = ' class="wrap"' if len(text) > 22 else ""
        return f"<{tag}{wrap}>{escape(text)}</{tag}>"

    def line(cells: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(cell(text, tag) for text in cells)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    inner = f"<thead>{line(head, 'th')}</thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table>{inner}</table></div>'
