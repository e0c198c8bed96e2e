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


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, stacks: bool = False) -> str:
    """stacks: on a narrow screen each row becomes a list of names and values."""

    def cell(text: str, tag: str, name: str) -> str:
        # Long cells may break, or a table of numbers would not fit the page.
        wrap = ' class="wrap"' if len(text) > 22 and not isinstance(text, Html) else ""
        named = f' data-label="{escape(name)}"' if stacks and name else ""
        return f"<{tag}{wrap}{named}>{text if isinstance(text, Html) else escape(text)}</{tag}>"

    def line(cells: Sequence[str], tag: str, names: Sequence[str]) -> str:
        pairs = zip(cells, names, strict=True)
        return f"<tr>{''.join(cell(text, tag, name) for text, name in pairs)}</tr>"

    body = "".join(line(row, "td", head) for row in rows)
    inner = f"<thead>{line(head, 'th', [''] * len(head))}</thead><tbody>{body}</tbody>"
    kind = ' class="stacks"' if stacks else ""
    return f'<div class="scroll"><table{kind}>{inner}</table></div>'
