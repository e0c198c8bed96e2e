"""Tables as Markdown and as one HTML page."""

from html import escape
from pathlib import Path
from typing import Any

from bwt.records.results import Results
from bwt.reproduce.tables import Table, build
from bwt.runs.files import write_atomically, write_json

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem;
  color: #1a1a1a; background: #fff }
table { border-collapse: collapse; display: block; overflow-x: auto; margin: .5rem 0 }
th, td { padding: .25rem .8rem .25rem 0; text-align: left; border-bottom: 1px solid #ddd;
  font-variant-numeric: tabular-nums; vertical-align: top }
p { color: #555; max-width: 60rem }
#commands td:last-child { font-family: ui-monospace, monospace; font-size: 12px }
@media (prefers-color-scheme: dark) {
  body { color: #ddd; background: #16181c } th, td { border-color: #333 } p { color: #999 }
}
"""


def markdown_table(table: Table) -> str:
    """Rows and columns only, as it is quoted elsewhere."""

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    if not table.rows:
        return ""
    rule = "|" + "---|" * len(table.header)
    return "\n".join([line(table.header), rule, *map(line, table.rows)])


def introduction(results: Results) -> str:
    machines = {_machine(cell.environment) for cell in results.cells if cell.environment}
    done = sum(cell.finished for cell in results.cells)
    seconds = sum(cell.seconds or 0 for cell in results.cells)
    return (
        f"{results.command}, {results.date}: {done} of {len(results.cells)} cells "
        f"finished, {seconds / 60:.0f} minutes of training in all, {results.seeds} seeds. "
        f"Run on: {'; '.join(sorted(machines)) or 'nothing yet'}."
    )


def _machine(environment: dict[str, Any]) -> str:
    machine = environment["machine"]
    return (
        f"{machine['platform']}, {machine['cpu_count']} CPUs, "
        f"torch {environment['versions']['torch']}, commit {environment['commit']}"
    )


def markdown(results: Results) -> str:
    parts = [f"# Results: {results.scale} scale", introduction(results)]
    for table in build(results):
        parts += [f"## {table.title}", markdown_table(table), *table.notes]
    return "\n\n".join(part for part in parts if part) + "\n"


def html(results: Results) -> str:
    title = f"bwt: results at {results.scale} scale"
    parts = [f"<h1>{escape(title)}</h1><p>{escape(introduction(results))}</p>"]
    for table in build(results):
        parts.append(f'<h2>{escape(table.title)}</h2><table id="{table.name}">')
        parts.append(_row("th", table.header) if table.rows else "")
        parts += [_row("td", row) for row in table.rows]
        parts.append("</table>")
        parts += [f"<p>{escape(note)}</p>" for note in table.notes]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style>\n" + "\n".join(parts) + "\n</html>\n"
    )


def _row(tag: str, cells: list[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def write(out: Path, results: Results) -> None:
    """results.json and the pages made of it."""
    write_json(out / "results.json", results.to_json())
    pages = {"README.md": markdown(results), "index.html": html(results)}
    for name, text in pages.items():
        write_atomically(out / name, lambda file, text=text: file.write_text(text))
