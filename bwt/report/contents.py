"""Where everything is: a list that stays in sight."""

from collections.abc import Sequence
from html import escape

from bwt.report.reading import Run
from bwt.report.story import Chapter


def contents(runs: Sequence[Run], told: Sequence[Sequence[Chapter]]) -> str:
    items = [_link("top", "How far from Bayes?"), _link("numbers", "All numbers")]
    for i, (run, parts) in enumerate(zip(runs, told, strict=True)):
        inner = "".join(_link(f"run{i}-{part.name}", part.title) for part in parts)
        # Of many runs the chapters are folded away.
        opened = " open" if i == 0 else ""
        items.append(
            f'<li><details{opened}><summary><a href="#run{i}">{escape(run.name)}</a></summary>'
            f"<ol>{inner}</ol></details></li>"
        )
    items.append(_link("words", "Words used"))
    return (
        '<nav class="contents" aria-label="Contents"><details open><summary>Contents</summary>'
        f"<ul>{''.join(items)}</ul></details></nav>"
    )


def _link(anchor: str, text: str) -> str:
    return f'<li><a href="#{anchor}">{escape(text)}</a></li>'
