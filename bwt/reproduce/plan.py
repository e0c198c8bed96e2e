"""What is run: the cells of a scale, how learning rates are chosen, what follows on a run."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bwt.records.evaluation import Evaluations
from bwt.records.geometry import Geometry
from bwt.records.results import Results
from bwt.reproduce import page, results
from bwt.runs import environment
from bwt.runs.config import TrainConfig
from bwt.runs.files import read_former, write_atomically, write_json
from bwt.runs.presets import preset
from bwt.sweep.cells import Cell, Command, make_cell, scores
from bwt.sweep.sweep import Outcome, Sweep

TASKS = ("bijection", "hmm", "recall")
# Row of the tables -> (model, options). It matters what an MLP may see, so there are two.
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "transformer": ("transformer", {}),
    "mamba": ("mamba", {}),
    "lstm": ("lstm", {}),
    "mlp": ("mlp", {"context": "prefix"}),
    "mlp-position": ("mlp", {"context": "position"}),
}
LOOKED_INTO = (("bijection", "transformer"), ("hmm", "transformer"), ("recall", "transformer"))
LOOKED_INTO += (("hmm", "mamba"),)
READ_LONGER = ("transformer", "mamba", "lstm")  # an MLP has weights for its own positions only
STRETCHES = (1.5, 2.5)  # the paper: trained on 20, tested on 30 and 50
TABLES = ("architecture", "primitives", "lengths", "geometry", "ablation")


@dataclass(frozen=True)
class Scale:
    name: str
    preset: str
    seeds: int
    # Of the preset's learning rates. All are tried with the first seed, on the full budget; the
    # one of least KL is used for the other seeds.
    rates: tuple[float, ...] = (1.0, 0.3, 3.0)
    settings: dict[str, Any] = field(default_factory=dict)
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)  # options of task and run
    sequences: int = 512  # of geometry and ablation


# The exact posterior as target for the HMM, as in the authors' code; draws for the others.
SCALES = {
    "laptop": Scale(
        "laptop",
        "quick",
        seeds=3,
        settings={"evaluations": 6},
        tasks={
            "bijection": {"steps": 2500},
            "hmm": {"steps": 1200, "targets": "posterior"},
            "recall": {"steps": 1000},
        },
    ),
    "paper": Scale(
        "paper",
        "paper",
        seeds=5,
        tasks={
            "bijection": {},
            # Learned positions, as the paper has, cannot be read beyond the length of training.
            "hmm": {"targets": "posterior", "floor": 0.05, "positions": "rotary"},
            "recall": {
                "num_pairs": 64,
                "num_keys": 256,
                "num_values": 256,
                "num_queries": 3,
                "filler": 32,
            },
        },
    ),
}


@dataclass(frozen=True)
class Planned:
    task: str
    row: str
    seed: int
    rate: float
    cell: Cell


def plan_cell(scale: Scale, runs: Path, task: str, row: str, seed: int, rate: float) -> Planned:
    model, options = ROWS[row]
    base = preset(scale.preset, task)
    fields = {**scale.settings, **scale.tasks[task], **options, "seed": seed}
    for name in ("lr", "muon_lr"):
        default = TrainConfig.__dataclass_fields__[name].default
        fields[name] = float(f"{base.get(name, default) * rate:.3g}")
    if base.get("optimizer") != "muon":
        del fields["muon_lr"]
    cell = make_cell(runs, scale.preset, task, model, **fields)
    name = f"{task}-{row}-rate={rate:g}-seed={seed}"
    return Planned(task, row, seed, rate, Cell(name, cell.words, cell.config, runs / name))


def wanted(only: str | None) -> list[tuple[str, str]]:
    """(task, row) of the cells a table needs; all of them for None."""
    pairs = [(task, row) for task in TASKS for row in ROWS]
    if only == "lengths":
        pairs = [(task, row) for task, row in pairs if task == "hmm"]
    if only in ("geometry", "ablation"):
        pairs = list(LOOKED_INTO)
    return pairs


def choose(planned: list[Planned], outcomes: list[Outcome]) -> dict[tuple[str, str], float]:
    """The rate of least KL for each (task, row) of which a cell has finished."""
    best: dict[tuple[str, str], tuple[float, float]] = {}
    for x, outcome in zip(planned, outcomes, strict=True):
        if outcome.status == "finished":
            kl = scores(x.cell.path)["kl"].mean
            # One that gives no mass to what happens has no KL that is a number.
            candidate = (kl if math.isfinite(kl) else math.inf, x.rate)
            best[x.task, x.row] = min(best.get((x.task, x.row), candidate), candidate)
    return {key: rate for key, (_, rate) in best.items()}


def lengths_of(cell: Cell) -> list[int]:
    own = cell.config.task_options["length"]
    return [round(own * stretch) for stretch in STRETCHES]


def followups(scale: Scale, chosen: list[Planned], only: str | None) -> list[list[Command]]:
    """Commands on finished runs, in stages: two of one run must not write the same file at once."""
    lengths = [_lengths(x) for x in chosen if x.task == "hmm" and x.row in READ_LONGER]
    looked = [x for x in chosen if (x.task, x.row) in LOOKED_INTO and x.seed == 0]
    stages = [lengths if only in (None, "lengths") else []]
    for table, command, done in (
        ("geometry", "geometry", lambda geometry: geometry.examined),
        ("ablation", "ablate", lambda geometry: geometry.ablation is not None),
    ):
        if only in (None, table):
            stages.append([_look(x, command, done, scale.sequences) for x in looked])
    return [stage for stage in stages if stage]


def _lengths(x: Planned) -> Command:
    wanted = [str(n) for n in lengths_of(x.cell)]
    path = x.cell.path / "evaluation.json"
    sequences = str(x.cell.config.eval_sequences)
    words = ("eval", str(x.cell.path), "--length", *wanted, "--sequences", sequences)

    def done() -> bool:
        former = read_former(path, Evaluations)
        return former is not None and set(wanted) <= set(former.lengths)

    return Command(f"{x.cell.name}-lengths", words, done)


def _look(x: Planned, command: str, done: Callable[[Geometry], bool], sequences: int) -> Command:
    path = x.cell.path / "geometry.json"
    words = (command, str(x.cell.path), "--sequences", str(sequences))

    def finished() -> bool:
        former = read_former(path, Geometry)
        return former is not None and done(former)

    return Command(f"{x.cell.name}-{command}", words, finished)


@dataclass
class Reproduction:
    """Runs what is left of a scale; writes results and pages to `out` after each stage."""

    scale: Scale
    runs: Path
    out: Path
    workers: Any
    command: str
    only: str | None = None
    seeds: int | None = None  # None: the scale's
    show: Callable[[Sweep], None] = lambda sweep: None
    say: Callable[[str], None] = lambda text: None
    planned: list[Planned] = field(default_factory=list)
    chosen: dict[tuple[str, str], float] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False

    def __post_init__(self) -> None:
        self.seeds = self.scale.seeds if self.seeds is None else self.seeds
        if self.seeds < 1:
            raise ValueError(f"--seeds must be at least 1, got {self.seeds}")

    def run(self) -> Results:
        rates = self.scale.rates
        first = [self._plan(*pair, 0, rate) for pair in wanted(self.only) for rate in rates]
        outcomes = self._train(first, "rates")
        if not self.interrupted:
            self.chosen = choose(first, outcomes)
            self._note_hopeless(first, outcomes)
            seeds, rates = range(1, self.seeds), self.chosen.items()
            rest = [self._plan(*key, seed, rate) for seed in seeds for key, rate in rates]
            self._train(rest, "seeds")
        for number, stage in enumerate(followups(self.scale, self._final(), self.only)):
            if not self.interrupted:
                self.write()
                self._sweep(stage, f"after-{number}")
        return self.write()

    def _plan(self, task: str, row: str, seed: int, rate: float) -> Planned:
        return plan_cell(self.scale, self.runs, task, row, seed, rate)

    def _final(self) -> list[Planned]:
        """Cells of the tables that have finished."""
        kept = [x for x in self.planned if self.chosen.get((x.task, x.row)) == x.rate]
        return [x for x in kept if x.cell.name not in self.faults and not x.cell.divergence()]

    def _train(self, planned: list[Planned], title: str) -> list[Outcome]:
        self.planned += planned
        return self._sweep([x.cell for x in planned], title)

    def _sweep(self, cells: list, title: str) -> list[Outcome]:
        self.say(f"{title}: {len(cells)} cells")
        sweep = Sweep(
            self.runs, cells, self.workers, show=self.show, say=self.say, record=f"{title}.json"
        )
        outcomes = sweep.run()
        self.interrupted = bool(sweep.stopping)
        for x in outcomes:
            # To diverge at some learning rate is a result.
            if x.status not in ("finished", "diverged"):
                self.faults[x.cell.name] = x.error or "not finished"
        return outcomes

    def _note_hopeless(self, planned: list[Planned], outcomes: list[Outcome]) -> None:
        """A row of the tables for which no learning rate is left."""
        for x, outcome in zip(planned, outcomes, strict=True):
            if outcome.status == "diverged" and (x.task, x.row) not in self.chosen:
                self.faults[x.cell.name] = outcome.error

    def write(self) -> Results:
        document = Results(
            scale=self.scale.name,
            command=self.command,
            commit=environment.commit(),
            date=time.strftime("%Y-%m-%d"),
            seeds=self.seeds,
            rates=list(self.scale.rates),
            faults=dict(self.faults),
            cells=[
                results.cell(x, self.chosen.get((x.task, x.row)) == x.rate) for x in self.planned
            ],
        )
        _write(self.out, document)
        return document


def _write(out: Path, document: Results) -> None:
    write_json(out / "results.json", document.to_json())
    pages = {"README.md": page.markdown(document), "index.html": page.html(document)}
    for name, text in pages.items():
        write_atomically(out / name, lambda file, text=text: file.write_text(text))
