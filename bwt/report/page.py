"""One self-contained HTML page from one or several runs."""

import re
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from bwt.report import diagnostics, words
from bwt.report.cards import Card
from bwt.report.compare import comparison, describe, overlays
from bwt.report.contents import contents
from bwt.report.interactive import script, script_data, view
from bwt.report.overview import floors, headline
from bwt.report.reading import Run, read
from bwt.report.story import Chapter, chapters
from bwt.report.style import FIGURE_STYLE, PAGE_STYLE
from bwt.runs.files import RunError, write_text

OPENED = 3  # runs that are all unfolded at first; of more only the first is
MOST_BYTES = 2_000_000  # of a page
LARGEST = (12_000, 6_000, 0)  # letters of a picture, tried in turn until a page of many runs fits


def report(paths: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Writes report.html (by default into the run, or for several runs into the working directory)
    and, for each run, its figures as figures/*.svg; returns the path of the page."""
    runs = [read(path) for path in paths]
    if out is None:
        out = runs[0].path / "report.html" if len(runs) == 1 else Path("report.html")
    told = [chapters(run) for run in runs]
    text = _fitting(runs, told)
    for run, parts in zip(runs, told, strict=True):
        _write_figures(run, [floors(run), *(card for part in parts for card in part.cards)])
    write_text(Path(out), text)
    return Path(out)


def _fitting(runs: Sequence[Run], told: Sequence[Sequence[Chapter]]) -> str:
    """The page with as much as fits; if nothing does, the least of all."""
    for parts, moving in _ever_less(told):
        text = _page(runs, parts, moving)
        if len(text.encode()) <= MOST_BYTES:
            break
    return text


def _ever_less(told: Sequence[Sequence[Chapter]]) -> Iterator[tuple[list[Sequence[Chapter]], int]]:
    """What moves goes first, from the last run on, then the largest pictures, of the first run last
    of all: they are in the folders of their runs."""
    for moving in range(len(told), 0, -1):
        yield list(told), moving
    for largest in LARGEST:
        others = [[part.lighter(largest) for part in parts] for parts in told[1:]]
        yield [told[0], *others], 1
    yield [told[0], *others], 0
    yield [[part.lighter(LARGEST[-1]) for part in parts] for parts in told], 0


def _write_figures(run: Run, cards: Sequence[Card]) -> None:
    folder = run.path / "figures"
    if not folder.resolve().is_relative_to(run.path.resolve()):
        raise RunError(f"{folder} leads out of the run; remove the link and report again")
    for card in cards:
        if card.picture.startswith("<svg"):
            write_text(folder / f"{file_name(card.name)}.svg", standalone(card.picture))


def standalone(svg: str) -> str:
    """A figure with its style, to live outside of a page."""
    head, tail = svg.split(">", 1)
    return f"{head}><style>{FIGURE_STYLE}</style>{tail}\n"


def file_name(name: str) -> str:
    """Names hold labels, which come from a file: nothing of them may lead elsewhere."""
    return re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip(".-")[:100] or "figure"


def _page(runs: Sequence[Run], told: Sequence[Sequence[Chapter]], moving: int) -> str:
    """moving: as many of the runs can be stepped through and turned."""
    title = "bwt: " + (runs[0].name if len(runs) == 1 else f"{len(runs)} runs")
    body = [_first_screen(runs), f'<section id="numbers">{comparison(runs)}</section>']
    for i, (run, parts) in enumerate(zip(runs, told, strict=True)):
        opened = i == 0 or len(runs) <= OPENED
        body.append(_run(i, run, parts, opened=opened, moves=i < moving))
    body.append(_definitions())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{PAGE_STYLE}{FIGURE_STYLE}</style></head>\n"
        f'<body><div class="page">{contents(runs, told)}<main>{"".join(body)}</main></div>'
        f"{_data(runs[:moving])}{script()}</body></html>\n"
    )


def _data(runs: Sequence[Run]) -> str:
    geometries = [(i, run.geometry) for i, run in enumerate(runs) if run.geometry is not None]
    return "".join(script_data(i, geometry) for i, geometry in geometries)


def _first_screen(runs: Sequence[Run]) -> str:
    """How far from Bayes, and compared with what, in one figure."""
    if len(runs) == 1:
        answer, cards = f"<p class='answer'>{_answer(runs[0])}</p>", [floors(runs[0])]
    else:
        answer, cards = "", overlays(runs)
    return (
        '<header id="top"><h1>How far from exact Bayes?</h1>'
        "<p>Small models, trained on tasks whose exact posterior is known at every step; distances "
        f"in bits. Errors (±) are one standard error over sequences.</p>{answer}{_grid(cards)}"
        "</header>"
    )


def _answer(run: Run) -> str:
    """In large letters."""
    evaluation = run.evaluation
    kl, floor = evaluation.model.overall["kl"], evaluation.floor_kl()
    text = f"<b>{words.num(kl.mean)} bits</b> on average. "
    if not evaluation.beats_floor():
        return text + f"That is NOT better than {escape(evaluation.best_floor())}."
    ratio = words.num(floor.mean / max(kl.mean, 1e-12))
    name = escape(evaluation.best_floor())
    return text + f"The best predictor that lacks an ability, {name}, is {ratio} times as far."


def _run(index: int, run: Run, parts: Sequence[Chapter], *, opened: bool, moves: bool) -> str:
    geometry = run.geometry if moves else None
    views = [view(part.name, index, geometry) for part in parts]
    advice = run.evaluation.advice(run.config.to_json())
    return (
        f'<details class="run" id="run{index}"{" open" if opened else ""}>'
        f"<summary><h2>{escape(run.name)}</h2></summary>"
        f"<p class='lead'>{escape(headline(run.evaluation))}</p>"
        + (f"<p class='lead'>{escape(advice)}</p>" if advice else "")
        + (f"<p class='lead'>This run {escape(run.diverged)}.</p>" if run.diverged else "")
        + f"<p class='what'>{escape(_facts(run))}</p>"
        + "".join(
            _chapter(index, number, part, live)
            for number, (part, live) in enumerate(zip(parts, views, strict=True), 1)
        )
        + f"{_missing(run)}</details>"
    )


def _chapter(run: int, number: int, part: Chapter, live: Card | None) -> str:
    control = f"<p class='control'>{escape(part.control)}</p>" if part.control else ""
    finding = f"<p class='finding'>{escape(part.finding)}</p>" if part.finding else ""
    return (
        f'<section class="chapter" id="run{run}-{part.name}"><h2 class="sub">{number}. '
        f"{escape(part.title)}</h2>{finding}{control}{_live(live)}{_grid(part.cards)}</section>"
    )


def _missing(run: Run) -> str:
    """What more could be shown, and what could not be measured."""
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
    return missing


def _facts(run: Run) -> str:
    config = run.config
    size = "" if run.num_parameters is None else f"{run.num_parameters:,} parameters "
    extended = ""
    if config.extended:
        extended = f" (extended at {' and '.join(f'{step:,}' for step in config.extended)})"
    return (
        f"{run.what}, {size}({describe(config.model_options)}). "
        f"Task: {describe(config.task_options)}. {config.steps:,} steps{extended} of "
        f"{config.batch_size} fresh sequences, learning from "
        f"{'draws' if config.targets == 'sampled' else 'the exact posterior'}, seed "
        f"{config.seed}; evaluated on {run.evaluation.num_sequences:,} others."
    )


def _grid(cards: Sequence[Card]) -> str:
    return f'<div class="grid">{"".join(map(_card, cards))}</div>' if cards else ""


def _live(card: Card | None) -> str:
    """Only the script makes it seen."""
    return f'<div class="live">{_card(card)}</div>' if card else ""


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
            "latest (keeps the last showing of a key, adds nothing up); "
            "memory-k (an exact filter that sees only the last k observations)",
        ),
        ("given position", "the mean of each position is taken away first, from both quantities"),
        ("probe", "ridge regression, fitted on half of the sequences, scored on the others"),
        ("untrained", "the same model with the random weights it began with"),
        ("Jensen-Shannon", "between attention maps, each head and step on its own, then the mean"),
        ("CKA", "likeness of two clouds of states up to rotation and scale; distance is 1 − CKA"),
    ]
    items = "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in rows)
    return f"<section id='words'><h2>Words used</h2><dl>{items}</dl></section>"
