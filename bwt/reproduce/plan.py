"""From a scale to cells: which runs there are, and which learning rate is best."""

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from bwt.records.evaluation import Evaluations
from bwt.records.geometry import Geometry
from bwt.reproduce.scales import Scale
from bwt.reproduce.studies import Study, Variant
from bwt.runs.config import TrainConfig
from bwt.runs.files import read_former
from bwt.runs.presets import preset
from bwt.sweep.cells import Cell, Command, make_cell

READ_LONGER = ("transformer", "mamba", "lstm")  # an MLP has weights for its own positions only
LONGER = ("architecture", "paper-size", "filtering")  # studies with a length test
STRETCHES = (1.5, 2.5)  # the paper: trained on 20, tested on 30 and 50
TABLES = ("lengths", "geometry", "ablation")  # that need a part of the cells only
TRIED = 2  # seeds with which a learning rate is tried
EXTENSIONS = 2  # of the range of rates, to either side
FACTOR = 10**0.5
NOTHING = 1e9  # stands for the KL of a trial that has learned nothing: near a floor ranks are noise


@dataclass(frozen=True)
class Planned:
    study: Study
    variant: Variant
    seed: int
    rate: float
    trial: bool
    cell: Cell

    @property
    def key(self) -> tuple[str, str, str]:
        return key_of(self.study, self.variant)


def key_of(study: Study, variant: Variant) -> tuple[str, str, str]:
    return study.name, variant.setting, variant.row


def plan_cell(
    scale: Scale,
    runs: Path,
    study: Study,
    variant: Variant,
    seed: int,
    rate: float = 1.0,
    *,
    trial: bool = False,
) -> Planned:
    """trial: to try a rate, on the scale's share of the budget."""
    chosen = study.preset or scale.preset
    base = preset(chosen, variant.task, variant.model)
    fields = {**scale.settings, **variant.fields, "seed": seed}
    for name in ("lr", "muon_lr"):
        default = TrainConfig.__dataclass_fields__[name].default
        value = fields.get(name, base.get(name, default))
        fields[name] = float(f"{value * rate:.3g}")
    if fields.get("optimizer", base.get("optimizer")) != "muon":
        del fields["muon_lr"]
    trial = trial and scale.trial < 1
    if trial:
        steps = {**base, **fields}["steps"]
        fields["steps"] = max(1, round(scale.trial * steps))
    made = make_cell(runs, chosen, variant.task, variant.model, **fields)
    name = name_of(study, variant, seed, rate, trial)
    cell = Cell(name, made.words, made.config, runs / name)
    return Planned(study, variant, seed, rate, trial, cell)


def name_of(study: Study, variant: Variant, seed: int, rate: float, trial: bool) -> str:
    parts = [study.name, variant.setting, variant.row]
    if study.tuned:
        parts.append(f"rate={rate:.2g}")
    if trial:
        parts.append("trial")
    parts.append(f"seed={seed}")
    return "-".join(part.replace(",", "").replace(" ", "_") for part in parts)


def wanted(scale: Scale, only: Iterable[str]) -> list[tuple[Study, Variant]]:
    """What the named studies and tables need; all of it if none is named."""
    pairs = [(study, variant) for study in scale.studies for variant in study.variants]
    only = set(only)

    def needed(study: Study, variant: Variant) -> bool:
        opened = (variant.setting, variant.row) in study.opened
        return (
            not only
            or bool(only & set(_paths(study, variant)))
            or ("lengths" in only and read_longer(study, variant))
            or (bool(only & {"geometry", "ablation"}) and opened)
        )

    return [pair for pair in pairs if needed(*pair)]


def read_longer(study: Study, variant: Variant) -> bool:
    """Whether a variant is tested on longer sequences than those of training."""
    readable = variant.row in READ_LONGER or variant.fields.get("position_table", 0) > 0
    readable = readable or variant.fields.get("positions") in ("rotary", "none")
    return variant.task == "hmm" and study.name in LONGER and readable


def names(scale: Scale) -> list[str]:
    """What `--only` may name: studies, tables, and parts of studies as STUDY/SETTING[/ROW]."""
    paths = [_paths(study, variant) for study in scale.studies for variant in study.variants]
    return list(dict.fromkeys([*(path for path, *_ in paths), *TABLES, *itertools.chain(*paths)]))


def _paths(study: Study, variant: Variant) -> tuple[str, ...]:
    """From the whole to the part."""
    setting = f"{study.name}/{variant.setting}"
    return study.name, setting, f"{setting}/{variant.row}"


# What the trials of a variant have come to: rate -> seed -> KL.
Trials = dict[float, dict[int, float]]


def choose(kl: Trials) -> float | None:
    """The rate whose worst seed is best, of equals that nearest to the preset's; None if with each
    of them a seed came to nothing."""
    worst = {rate: _worst(tried) for rate, tried in kl.items()}
    best = min(worst, key=lambda rate: (worst[rate], abs(math.log(rate))), default=None)
    return best if best is not None and worst[best] < math.inf else None


def _worst(tried: dict[int, float]) -> float:
    """One that gives no mass to what happens has no KL that is a number."""
    return max((x if math.isfinite(x) else math.inf for x in tried.values()), default=math.inf)


def next_trials(kl: Trials, started: tuple[float, ...]) -> list[tuple[float, int]]:
    """The (rate, seed) to try next, none if the choice is settled. A second seed can only make a
    rate worse, so it is tried for the best rate alone, until that has all its seeds."""
    if not kl:
        return [(rate, 0) for rate in started]
    best = choose(kl)
    if best is None or _worst(kl[best]) == NOTHING:
        return []
    if len(kl[best]) < TRIED:
        return [(best, len(kl[best]))]
    further = beyond(kl, started)
    return [] if further is None else [(further, 0)]


def beyond(kl: Trials, started: tuple[float, ...]) -> float | None:
    """The next rate to try: beyond the best one, if that is the least or the greatest."""
    best = choose(kl)
    if best is None or min(kl) < best < max(kl):
        return None
    up = best == max(kl)
    factor = FACTOR if up else 1 / FACTOR
    limit = (max(started) if up else min(started)) * factor**EXTENSIONS
    further = float(f"{best * factor:.2g}")
    inside = further <= 1.01 * limit if up else further >= 0.99 * limit
    return further if inside else None


def lengths_of(cell: Cell) -> list[int]:
    own = cell.config.task_options["length"]
    return [round(own * stretch) for stretch in STRETCHES]


def followups(scale: Scale, finished: list[Planned], only: Iterable[str]) -> list[list[Command]]:
    """Commands on finished runs, in stages: two of one run must not write the same file at once."""
    only = set(only)
    looked = [x for x in finished if (x.variant.setting, x.variant.row) in x.study.opened]
    stages = []
    if not only or only - {"geometry", "ablation"}:
        stages.append([_lengths(x) for x in finished if read_longer(x.study, x.variant)])
    for table, command, done in (
        ("geometry", "geometry", lambda geometry: geometry.examined),
        ("ablation", "ablate", lambda geometry: geometry.ablation is not None),
    ):
        if not only or table in only or only - set(TABLES):
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
