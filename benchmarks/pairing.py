"""Times two sides of a comparison in pairs, so that what else the machine does hits both alike."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

import noise
from common import Bench
from progress import Progress
from serving import Lost

SAME = "same"


class Place(NamedTuple):
    """A group of measurements."""

    case: str
    mode: str
    device: str
    threads: int


@dataclass
class Outcome:
    rows: list[dict] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)  # on the present side
    notes: list[str] = field(default_factory=list)  # what could not be compared
    broken: list[str] = field(default_factory=list)  # what the present side cannot do

    def note_before(self, wrong: list[str]) -> None:
        """The first of each provider: what was not there yet fails in every case."""
        for text in (f"before: {text}" for text in wrong):
            provider = text.split(": ")[1]
            if not any(note.startswith(f"before: {provider}: ") for note in self.notes):
                self.notes.append(text)


class Sides(NamedTuple):
    before: Any  # serving.Worker, or a Server
    now: Any


def places(options: argparse.Namespace) -> Iterator[Place]:
    for device in options.device:
        for case in (case for case in options.cases if device in case.devices):
            for mode in case.modes:
                for threads in options.threads if device == "cpu" else [1]:
                    yield Place(case.name, mode, device, threads)


def compare(
    bench: Bench,
    options: argparse.Namespace,
    start: Callable[[], Sides],
    progress: Progress,
    show: Callable[[dict], None] = lambda row: None,
) -> Outcome:
    """Rows of all places and providers. What is not the same is timed once more in new processes,
    as the layout of memory stays with a process, and only what shows in both is kept."""
    outcome = Outcome()
    names = [provider.name for provider in options.providers]
    wanted = {place: list(names) for place in places(options)}
    try:
        for row in _round(bench, wanted, start, outcome, progress):
            outcome.rows.append(row)
            show(row)
        suspects: dict[Place, list[str]] = {}
        for row in (row for row in outcome.rows if row["verdict"] != SAME):
            suspects.setdefault(_place(row), []).append(row["provider"])
        if suspects:
            progress.tell("once more, in new processes:")
            again = Outcome()
            second = list(_round(bench, suspects, start, again, progress))
            _confirm(outcome, second, show)
            outcome.wrong += again.wrong
    except Lost as reason:
        if reason.present:
            outcome.broken.append(f"{bench.op} does not run any more: {reason}")
        else:
            outcome.notes.append(f"{bench.op} cannot be compared: before: {reason}")
    return outcome


def _place(row: dict) -> Place:
    return Place(row["case"], row["mode"], row["device"], row["threads"])


def _confirm(outcome: Outcome, second: list[dict], show: Callable[[dict], None]) -> None:
    found = {(_place(row), row["provider"]): row for row in second}
    for row in outcome.rows:
        if row["verdict"] == SAME:
            continue
        again = found.get((_place(row), row["provider"]))
        if again is None or again["verdict"] != row["verdict"]:
            row["verdict"] = SAME
        if again is not None:
            show({**again, "verdict": row["verdict"] if row["verdict"] != SAME else "not again"})


def _round(
    bench: Bench,
    wanted: dict[Place, list[str]],
    start: Callable[[], Sides],
    outcome: Outcome,
    progress: Progress,
) -> Iterator[dict]:
    progress.at(bench.op)
    with progress.busy("starting a process for each side"):
        sides = start()
    with _ended(sides):
        for number, (place, names) in enumerate(wanted.items(), 1):
            where = f"{place.case} {place.mode}, {place.device}, {place.threads} thread(s)"
            progress.at(f"{bench.op} {number} of {len(wanted)}, {where}")
            yield from _group(bench, place, names, sides, outcome, progress)


@contextmanager
def _ended(sides: Sides) -> Iterator[None]:
    try:
        yield
    finally:
        for side in sides:
            side.end()


def _group(
    bench: Bench,
    place: Place,
    names: list[str],
    sides: Sides,
    outcome: Outcome,
    progress: Progress,
) -> Iterator[dict]:
    opened = []
    for side in sides:
        with progress.busy("checking results"):
            opened.append(side.open(**place._asdict(), providers=names))
    before, now = opened
    outcome.wrong += now["wrong"]
    outcome.note_before(before["wrong"])
    for text in {*before["unavailable"], *now["unavailable"]}:
        if text not in outcome.notes:
            outcome.notes.append(text)
    both = [name for name in names if name in before["plans"] and name in now["plans"]]
    found = [
        (name, *_pairs(sides, name, before["plans"][name], now["plans"][name], progress))
        for name in both
    ]
    right = set(both)
    for side in sides:
        with progress.busy("checking results again"):
            closed = side.close()
        right &= set(closed["right"])
        if side is sides.now:
            outcome.wrong += closed["wrong"]
        else:
            outcome.note_before(closed["wrong"])
    for name, old, new in (row for row in found if row[0] in right):
        ratio = noise.of_pairs(old, new)
        yield {
            **{"op": bench.op, **place._asdict(), "provider": name, "pairs": len(old)},
            **{"before_ms": median(old) * 1e3, "now_ms": median(new) * 1e3},
            **{"ratio": ratio.value, "low": ratio.low, "high": ratio.high},
            "verdict": noise.verdict(ratio),
        }


def _pairs(
    sides: Sides, name: str, before: dict, now: dict, progress: Progress
) -> tuple[list[float], list[float]]:
    """Samples of both sides; who comes first changes from pair to pair."""
    loops = max(before["loops"], now["loops"])
    count = min(before["samples"], now["samples"])
    request = {"provider": name, "loops": loops, "warm": before["warm"] or now["warm"]}
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(count):
        progress.say(f"timing {name}, pair {turn + 1} of {count}")
        for index in (0, 1) if turn % 2 == 0 else (1, 0):
            times[index].append(sides[index].sample(**request)["seconds"])
    return times
