"""One self-contained HTML page from one or several runs."""

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from bwt.report import diagnostics
from bwt.report.cards import Card
from bwt.report.compare import comparison, describe, overlays
from bwt.report.overview import headline, overview
from bwt.report.reading import Run, read
from bwt.report.style import FIGURE_STYLE, PAGE_STYLE
from bwt.runs.files import RunError, write_atomically


def report(paths: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Writes report.html (by default into the run, or for several runs into the working directory)
    and, for each run, its figures as figures/*.svg; returns the path of the page."""
    runs = [read(path) for path in paths]
    if out is None:
        out = runs[0].path / "report.html" if len(runs) == 1 else Path("report.html")
    cards = [(overview(run), inside(run)) for run in runs]
    text = _page(runs, cards)
    for run, groups in zip(runs, cards, strict=True):
        _write_figures(run, [card for group in groups for card in group])
    write_atomically(Path(out), lambda path: path.write_text(text, encoding="utf-8"))
    return Path(out)


def inside(run: Run) -> list[Card]:
    return [] if run.geometry is None else diagnostics.cards(run.geometry)


def _write_figures(run: Run, cards: Sequence[Card]) -> None:
    folder = run.path / "figures"
    if not folder.resolve().is_relative_to(run.path.resolve()):
        raise RunError(f"{folder} leads out of the run; remove the link and report again")
    for card in cards:
        if card.picture.startswith("<svg"):
            text = standalone(card.picture)
            path = folder / f"{file_name(card.name)}.svg"
            write_atomically(path, lambda file, text=text: file.write_text(text, encoding="utf-8"))


def standalone(svg: str) -> str:
    """A figure with its style, to live outside of a page."""
    head, tail = svg.split(">", 1)
    return f"{head}><style>{FIGURE_STYLE}</style>{tail}\n"


def file_name(name: str) -> str:
    """Names hold labels, which come from a file: nothing of them may lead elsewhere."""
    return re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip(".-")[:100] or "figure"


def _page(runs: Sequence[Run], cards) -> str:
    title = "bwt: " + (runs[0].name if len(runs) == 1 else f"{len(runs)} runs")
    body = [
        "<header><h1>How far from exact Bayes?</h1>"
        "<p>Small models, trained on tasks whose exact posterior is known at every step; distances "
        "in bits. Errors (±) are one standard error over sequences.</p></header>",
        f"<section>{comparison(runs)}{_grid(overlays(runs))}</section>",
    ]
    for i, (run, (first, second)) in enumerate(zip(runs, cards, strict=True)):
        body.append(_run(f"run{i}", run, first, second))
    body.append(_definitions())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{PAGE_STYLE}{FIGURE_STYLE}</style></head>\n"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _run(anchor: str, run: Run, first: Sequence[Card], second: Sequence[Card]) -> str:
    geometry = run.geometry
    commands = []
    if geometry is None or not geometry.examined:
        commands.append(f"bwt geometry {run.path}")
    if geometry is None or geometry.ablation is None:
        commands.append(f"bwt ablate {run.path}")
    missing = ""
    if commands:
        shown = " and ".join(f"<code>{escape(c)}</code>" for c in commands)
        missing = f"<p class='note'>More is shown after {shown}.</p>"
    skipped = [] if geometry is None else diagnostics.skipped(geometry)
    if skipped:
        missing += f"<p class='note'>Not measured. {escape(' '.join(skipped))}</p>"
    return (
        f'<section id="{anchor}"><h2>{escape(run.name)}</h2>'
        f"<p class='lead'>{escape(headline(run.evaluation))}</p>"
        + (f"<p class='lead'>This run {escape(run.diverged)}.</p>" if run.diverged else "")
        + f"<p class='what'>{escape(_facts(run))}</p>{_grid(first)}"
        + (f"<h2 class='sub'>Inside {escape(run.name)}</h2>{_grid(second)}" if second else "")
        + f"{missing}</section>"
    )


def _facts(run: Run) -> str:
    config = run.config
    return (
        f"{run.what}, {run.num_parameters:,} parameters ({describe(config.model_options)}). "
        f"Task: {describe(config.task_options)}. {config.steps:,} steps of "
        f"{config.batch_size} fresh sequences, learning from "
        f"{'draws' if config.targets == 'sampled' else 'the exact posterior'}, seed "
        f"{config.seed}; evaluated on {run.evaluation.num_sequences:,} others."
    )


def _grid(cards: Sequence[Card]) -> str:
    return f'<div class="grid">{"".join(map(_card, cards))}</div>'


def _card(card: Card) -> str:
    note = f'<p class="note">{escape(card.note)}</p>' if card.note else ""
    wide = ' class="wide"' if card.wide else ""
    return (
        f"<figure{wide}><h3>{escape(card.title)}</h3>{card.picture}"
        f"<figcaption><p>{escape(card.reading)}</p>{note}</figcaption></figure>"
    )


def _definitions() -> str:
    rows = [
        ("KL", "Σ p log₂(p/q) of exact posterior p and prediction q, in the mean"),
        ("entropy error", "|H(q) − H(p)| of each sequence and step, then the mean"),
        (
            "floor",
            "a predictor that lacks an ability: uniform; constant (knows the position only); "
            "lookup (recalls, does not eliminate); unbound (knows the sets, not the pairs); "
            "memory-k (an exact filter that sees only the last k observations)",
        ),
        ("given position", "the mean of each position is taken away first, from both quantities"),
        ("probe", "ridge regression, fitted on half of the sequences, scored on the others"),
        ("untrained", "the same model with the random weights it began with"),
        ("Jensen-Shannon", "between attention maps, each head and step on its own, then the mean"),
        ("CKA", "likeness of two clouds of states up to rotation and scale; distance is 1 − CKA"),
    ]
    items = "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in rows)
    return f"<section><h2>Words used</h2><dl>{items}</dl></section>"
