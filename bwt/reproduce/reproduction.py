"""Running what is left of a scale."""

import dataclasses
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bwt.records.results import Cell, Results, StudyText
from bwt.reproduce import page, plan, results
from bwt.reproduce.plan import Planned
from bwt.reproduce.scales import Scale
from bwt.reproduce.studies import Study, Variant
from bwt.runs import environment
from bwt.runs.files import RunError, read_former
from bwt.sweep.cells import CIRCUMSTANCES, completed
from bwt.sweep.sweep import Sweep


@dataclass
class Reproduction:
    """Runs the cells of a scale and writes results and pages to `out` after each stage.

    A cell that `out` has finished already, with the same configuration, is not run again, be its
    run directory here or not: results grow over several sittings and machines.
    """

    scale: Scale
    runs: Path
    out: Path
    workers: Any
    command: str
    only: tuple[str, ...] = ()
    seeds: int | None = None  # None: the scale's
    gather: bool = False  # run nothing: write what there is
    show: Callable[[Sweep], None] = lambda sweep: None
    say: Callable[[str], None] = lambda text: None
    planned: list[Planned] = field(default_factory=list)
    rates: dict[tuple[str, str, str], float] = field(default_factory=dict)  # that were chosen
    faults: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False

    def __post_init__(self) -> None:
        if self.seeds is not None and self.seeds < 1:
            raise ValueError(f"--seeds must be at least 1, got {self.seeds}")
        self.order = {
            plan.key_of(study, variant): (study, variant)
            for study in self.scale.studies
            for variant in study.variants
        }
        former = read_former(self.out / "results.json", Results)
        cells = former.cells if former is not None else []
        self.former = {x.name: x for x in cells if self._still_planned(x)}

    def _still_planned(self, x: Cell) -> bool:
        """Whether a cell of former results would be run in the same way today."""
        key = (x.study, x.setting, x.row)
        if key not in self.order:
            return False
        today = self._plan(*self.order[key], x.seed, x.rate, trial=x.trial)
        return x.name == today.cell.name and same_run(x.config, today.cell.config.to_json())

    def run(self) -> Results:
        pairs = plan.wanted(self.scale, self.only)
        self._try_rates([pair for pair in pairs if pair[0].tuned])
        if self.gather or not self.interrupted:
            self._train(self._seeds(pairs), "seeds")
        stages = plan.followups(self.scale, self._final(), self.only)
        for number, stage in enumerate(stages):
            if not self.interrupted:
                self.write()
                self._sweep(stage, f"after-{number}")
        return self.write()

    def _seeds_of(self, study: Study) -> int:
        return self.seeds or study.seeds or self.scale.seeds

    def _seeds(self, pairs: Iterable[tuple[Study, Variant]]) -> list[Planned]:
        """The first seed of everything before the second of anything: results that are cut short
        leave no study out."""
        most = max((self._seeds_of(study) for study, _ in pairs), default=0)
        return [
            self._plan(study, variant, seed, self.rates.get(plan.key_of(study, variant), 1.0))
            for seed in range(most)
            for study, variant in pairs
            if seed < self._seeds_of(study)
            and (not study.tuned or plan.key_of(study, variant) in self.rates)
        ]

    def _try_rates(self, pairs: list[tuple[Study, Variant]]) -> None:
        trials: dict[tuple[str, str, str], plan.Trials] = {plan.key_of(*x): {} for x in pairs}
        rounds = 0
        while cells := [x for pair in pairs for x in self._next_trials(pair, trials)]:
            self._train(cells, f"rates-{rounds}")
            for x in cells:
                if self._cell(x).status == "not finished":
                    trials.pop(x.key, None)  # interrupted: the best of all may still come
                elif x.key in trials:
                    trials[x.key].setdefault(x.rate, {})[x.seed] = self._kl(x)
            rounds += 1
        for key, tried in trials.items():
            best = plan.choose(tried)
            if best is not None:
                self.rates[key] = best
            else:
                self._note_hopeless(key)

    def _next_trials(self, pair: tuple[Study, Variant], trials: dict) -> list[Planned]:
        tried = trials.get(plan.key_of(*pair))
        if tried is None:
            return []
        following = plan.next_trials(tried, self.scale.rates)
        return [self._plan(*pair, seed, rate, trial=True) for rate, seed in following]

    def _kl(self, x: Planned) -> float:
        cell = self._cell(x)
        if not cell.finished:
            return float("inf")
        return plan.NOTHING if cell.at_floor() else cell.metrics["kl"].mean

    def _note_hopeless(self, key: tuple[str, str, str]) -> None:
        """A row of the tables for which no learning rate is left."""
        for x in self.planned:
            if x.key == key:
                self.faults.setdefault(x.cell.name, x.cell.divergence() or "not finished")

    def _plan(self, study: Study, variant: Variant, seed: int, rate: float, **how: bool) -> Planned:
        return plan.plan_cell(self.scale, self.runs, study, variant, seed, rate, **how)

    def _final(self) -> list[Planned]:
        """Cells of the tables whose runs are here and have finished."""
        return [x for x in self.planned if self._counts(x) and x.cell.finished()]

    def _counts(self, x: Planned) -> bool:
        """Whether it is one of the tables, and not a trial of a learning rate only."""
        return not x.trial and (not x.study.tuned or self.rates.get(x.key) == x.rate)

    def _train(self, planned: list[Planned], title: str) -> None:
        known = {x.cell.name for x in self.planned}
        self.planned += [x for x in planned if x.cell.name not in known]
        left = [x.cell for x in planned if self._remembered(x) is None]
        if len(left) < len(planned):
            self.say(f"{len(planned) - len(left)} cells are in {self.out} already")
        self._sweep(left, title)

    def _remembered(self, x: Planned) -> Cell | None:
        """What former results say of a cell whose run is not here."""
        former = self.former.get(x.cell.name)
        if former is None or not former.finished or x.cell.path.exists():
            return None
        return former

    def _sweep(self, cells: list, title: str) -> None:
        if self.gather or self.interrupted:
            self.interrupted = True  # before its first cell
            return
        self.say(f"{title}: {len(cells)} cells")
        sweep = Sweep(
            self.runs,
            cells,
            self.workers,
            show=self.show,
            say=self.say,
            record=f"{title}.json",
        )
        outcomes = sweep.run()
        self.interrupted = self.interrupted or bool(sweep.stopping)
        for x in outcomes:
            # To diverge at some learning rate is a result, and to be stopped is no fault.
            if x.status == "failed":
                error = (x.error or "not finished").replace(f"{self.runs}/", "")
                self.faults[x.cell.name] = error

    def _cell(self, x: Planned) -> Cell:
        cell = self._remembered(x) or results.cell(x)
        failed = cell.status == "not finished" and x.cell.name in self.faults
        status = "failed" if failed else cell.status
        return dataclasses.replace(
            cell, status=status, chosen=cell.finished and self._counts(x), trial=x.trial
        )

    def _of_former(self, x: Cell) -> Cell:
        """With the rates that were chosen now."""
        rate = self.rates.get((x.study, x.setting, x.row), x.rate)
        return dataclasses.replace(x, chosen=x.chosen and x.rate == rate)

    def write(self) -> Results:
        here = {x.cell.name: self._cell(x) for x in self.planned}
        # What other sittings have found stays.
        there = [self._of_former(x) for name, x in self.former.items() if name not in here]
        order = {key: place for place, key in enumerate(self.order)}
        document = Results(
            scale=self.scale.name,
            command=self.command,
            commit=environment.commit(),
            date=time.strftime("%Y-%m-%d"),
            seeds=self.seeds or self.scale.seeds,
            rates=list(self.scale.rates),
            trial=self.scale.trial,
            studies=[
                StudyText(x.name, x.title, x.question, x.axis, x.tuned) for x in self.scale.studies
            ],
            faults=dict(self.faults),
            cells=sorted([*there, *here.values()], key=lambda x: order[x.study, x.setting, x.row]),
        )
        page.write(self.out, document)
        results.keep_geometry(self.out, self._final())
        return document


def same_run(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two configurations are of one run."""
    try:
        one, other = completed(one), completed(other)
    except RunError:
        return False
    return all(one[name] == other[name] for name in one.keys() - CIRCUMSTANCES)
