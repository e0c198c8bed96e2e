"""Results as Markdown and as one HTML page: a section for each study."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from bwt.records.results import Cell, Results
from bwt.report.page import standalone
from bwt.report.style import FIGURE_STYLE, PAGE_STYLE
from bwt.report.words import plural
from bwt.reproduce import figures
from bwt.reproduce.drawing import Figure
from bwt.reproduce.names import in_words
from bwt.reproduce.tables import READING, Table, build
from bwt.runs.files import write_json, write_text

STYLE = (
    "table{width:auto}th,td{text-align:left;vertical-align:top;white-space:normal;"
    "padding-right:1rem}td{min-width:4.5rem}"
    "p{max-width:60rem}p.question{font-size:1.05rem}"
    "details summary{cursor:pointer}"
    "#table-commands td:last-child{font-family:ui-monospace,monospace;font-size:.75rem}"
    "nav{columns:2;max-width:50rem}nav a{display:block}"
)
FOLDED = "commands"  # long, and seldom read
LONG = 40  # letters of a cell that gets a broader column


@dataclass(frozen=True)
class Section:
    name: str
    title: str
    question: str
    figures: list[Figure]
    tables: list[Table]


def sections(results: Results) -> Iterator[Section]:
    """One for each study, and one for each table that belongs to none. Empty tables are left
    out."""
    tables = [table for table in build(results) if table.rows]
    drawn = figures.build(results)
    for study in results.studies:
        own = [table for table in tables if table.study == study.name]
        pictures = [figure for figure in drawn if figure.study == study.name]
        yield Section(study.name, study.title, study.question, pictures, own)
    for table in tables:
        if not table.study:
            yield Section(table.name, table.title, "", [], [table])


def markdown_table(table: Table) -> str:
    """Rows and columns only, as it is quoted elsewhere."""

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    if not table.rows:
        return ""
    rule = "|" + "---|" * len(table.header)
    return "\n".join([line(table.header), rule, *map(line, table.rows)])


def introduction(results: Results) -> str:
    done = [cell for cell in results.cells if cell.finished]
    hours = sum(cell.seconds or 0 for cell in results.cells) / 3600
    machines = sorted({_machine(cell) for cell in done})
    commits = sorted({str(cell.environment.get("commit"))[:12] for cell in done})
    seeds = plural(len({cell.seed for cell in done}), "seed")
    return (
        f"{results.command}, {results.date}: {len(done)} of {len(results.cells)} cells finished, "
        f"{hours:.1f} hours of training in all, {seeds}. "
        f"Run on: {'; '.join(machines) or 'nothing yet'}. Commits: {', '.join(commits) or '-'}."
    )


def _machine(cell: Cell) -> str:
    machine, versions = cell.environment["machine"], cell.environment["versions"]
    return f"{machine['platform']}, {machine['cpu_count']} CPUs, torch {versions['torch']}"


def markdown(results: Results) -> str:
    parts = [f"# Results: {results.scale} scale", introduction(results), *READING]
    for section in sections(results):
        parts += [f"## {section.title}", section.question]
        if not section.tables:
            parts.append("Not run yet.")
        parts += [
            f"![{x.title}](figures/{x.name}.svg)\n\n{x.title}. {x.caption}" for x in section.figures
        ]
        for table in section.tables:
            if table.title != section.title:
                parts.append(f"### {table.title}")
            parts += [markdown_table(table), *table.notes]
    return "\n\n".join(part for part in parts if part) + "\n"


def html(results: Results) -> str:
    title = f"bwt: results at {results.scale} scale"
    found = list(sections(results))
    links = "".join(f'<a href="#{x.name}">{escape(x.title)}</a>' for x in found)
    texts = "".join(f"<p>{escape(text)}</p>" for text in (introduction(results), *READING))
    head = f"<h1>{escape(title)}</h1>{texts}<nav>{links}</nav>"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{PAGE_STYLE}{FIGURE_STYLE}{STYLE}</style></head>\n"
        f"<body><main>{head}\n" + "\n".join(map(_section, found)) + "\n</main></body></html>\n"
    )


def _section(section: Section) -> str:
    parts = [f'<section id="{section.name}"><h2>{escape(section.title)}</h2>']
    if section.question:
        parts.append(f'<p class="question">{escape(section.question)}</p>')
    if not section.tables:
        parts.append("<p>Not run yet.</p>")
    if section.figures:
        parts.append(f'<div class="grid">{"".join(map(_figure, section.figures))}</div>')
    for table in section.tables:
        if table.title != section.title:
            parts.append(f'<h2 class="sub">{escape(table.title)}</h2>')
        parts.append(_folded(table) if table.name == FOLDED else _table(table))
    return "".join(parts) + "</section>"


def _figure(figure: Figure) -> str:
    return (
        f"<figure><h3>{escape(figure.title)}</h3>{figure.svg}"
        f'<figcaption><p class="note">{escape(figure.caption)}</p></figcaption></figure>'
    )


def _folded(table: Table) -> str:
    return f"<details><summary>{len(table.rows)} rows</summary>{_table(table)}</details>"


def _table(table: Table) -> str:
    rows = [_row("th", map(_named, table.header))]
    rows += [_row("td", (_named(row[0]), *map(escape, row[1:]))) for row in table.rows]
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in table.notes)
    return (
        f'<div class="scroll"><table id="table-{table.name}">{"".join(rows)}</table></div>{notes}'
    )


def _named(name: str) -> str:
    """In words, with the name that it has in results.json under the pointer."""
    text = in_words(name)
    if text == name:
        return escape(name)
    return f'<span title="{escape(name)}">{escape(text)}</span>'


def _row(tag: str, cells: Iterable[str]) -> str:
    def shown(cell: str) -> str:
        wrap = ' class="wrap"' if tag == "td" and len(cell) > LONG else ""
        return f"<{tag}{wrap}>{cell}</{tag}>"

    return f"<tr>{''.join(map(shown, cells))}</tr>"


def write(out: Path, results: Results) -> None:
    """results.json and the pages made of it."""
    write_json(out / "results.json", results.to_json())
    pages = {"README.md": markdown(results), "index.html": html(results)}
    pages |= {f"figures/{x.name}.svg": standalone(x.svg) for x in figures.build(results)}
    for name, text in pages.items():
        write_text(out / name, text)
    for former in (out / "figures").glob("*.svg"):
        if f"figures/{former.name}" not in pages:
            former.unlink()
