"""The search: from the architecture's config to its neighbours, as long as one is faster.

A candidate is compared with the reference before it is timed; one that does not compile, is wrong
or spills is reported and skipped. Times are those of the single kernel, with the L2 cache emptied
before.
"""

import math
import time
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch

from bwt.tuning import subjects as every
from bwt.tuning.subjects import Key, Subject

ROUNDS = 3  # steps of the search
GAIN = 0.98  # what is not faster by so much is noise
GUESSED_SECONDS = 2.5  # of a candidate: mostly its compilation
GUESSED_CANDIDATES = 9  # of a subject


class Skipped(Exception):
    """Why a candidate is not timed."""


class Found(NamedTuple):
    subject: Subject
    config: Any
    gain: float  # the time before over the time now


@contextmanager
def trying(subject: Subject, arch: str, config):
    """The architecture's table with another config in one place, and no table of the device."""
    from bwt.kernels import tuned
    from bwt.kernels.configs import TABLE, lookup

    place = (*subject.key, arch)
    before, present = TABLE.get(place), lookup(*subject.key, arch)
    TABLE[place] = (*present[: subject.index], config, *present[subject.index + 1 :])
    tuned.used = False
    tuned.forget()
    try:
        yield
    finally:
        tuned.used = True
        tuned.forget()
        if before is None:
            del TABLE[place]
        else:
            TABLE[place] = before


def seconds(subject: Subject, config, machine: "Machine") -> list[float]:
    """Of each work, after its results have been checked.

    Raises:
        Skipped: with the reason.
    """
    times = []
    with trying(subject, machine.arch, config):
        for work in subject.works:
            try:
                work.check(partial(machine.call, subject.module))
                launch = every.with_memory(work.example(machine.arch), machine.device)
                compiled = launch.run(torch.device(machine.device))
            except AssertionError as fault:
                raise Skipped(f"wrong at {work.name}: {_first_line(fault)}") from fault
            except Exception as fault:  # too much shared memory, no such tile: many kinds
                reason = f"{type(fault).__name__}: {_first_line(fault)}"
                raise Skipped(f"fails at {work.name}: {reason}") from fault
            if getattr(compiled, "n_spills", 0):
                raise Skipped(f"spills {compiled.n_spills} registers at {work.name}")
            times.append(machine.timer(partial(launch.run, torch.device(machine.device))))
    return times


def _first_line(fault: Exception) -> str:
    return next((line.strip() for line in str(fault).splitlines() if line.strip()), "")[:100]


class Machine(NamedTuple):
    arch: str
    device: str
    call: Callable  # (module, launcher, *CPU tensors, **options) -> CPU tensors
    timer: Callable[[Callable], float]  # seconds of a call


def search(subject: Subject, start, machine: Machine, say) -> Found | None:
    """The fastest config in reach; None if the one to start from cannot be timed itself."""
    try:
        first = seconds(subject, start, machine)
    except Skipped as reason:
        say(f"  {short(start)}, the present one: {reason}; left as it is")
        return None
    best, best_score, seen = start, 1.0, [start]
    for _ in range(ROUNDS):
        better = None
        for candidate in every.neighbours(subject, best):
            if candidate in seen:
                continue
            seen.append(candidate)
            try:
                times = seconds(subject, candidate, machine)
            except Skipped as reason:
                say(f"  {short(candidate)}: skipped: {reason}")
                continue
            score = math.exp(sum(math.log(t / f) for t, f in zip(times, first, strict=True)))
            score **= 1 / len(times)
            say(f"  {short(candidate)}: {1 / score:.2f} of the speed before")
            if score < best_score * GAIN:
                better, best_score = candidate, score
        if better is None:
            break
        best = better
    return Found(subject, best, 1 / best_score)


def short(config) -> str:
    tiles = " ".join(f"{name}{size}" for name, size in config.tiles.items())
    return f"[{tiles}{' ' * bool(tiles)}warps{config.warps} stages{config.stages}]"


def estimate(subjects: list[Subject], per_candidate: float = GUESSED_SECONDS) -> float:
    works = sum(len(subject.works) for subject in subjects)
    return works * GUESSED_CANDIDATES * per_candidate


def tune(
    subjects: list[Subject],
    machine: Machine,
    *,
    limit: float,
    say: Callable[[str], None],
    keep: Callable[[dict[Key, tuple]], None],
    now: Callable[[], float] = time.monotonic,
) -> dict[Key, tuple]:
    """Entries with their configs; `keep` gets all of them after each. Stops after `limit` seconds,
    at the end of an entry."""
    from bwt.kernels.configs import lookup

    start = now()
    entries: dict[Any, Any] = {}
    for number, subject in enumerate(subjects):
        if subject.index == 0 and now() - start > limit:
            left = len(subjects) - number
            say(f"out of time: {left} of {len(subjects)} configs keep the architecture's values")
            break
        spent = now() - start
        rate = spent / number if number else estimate(subjects) / len(subjects)
        seconds = min(rate * (len(subjects) - number), max(limit - spent, 0.0))
        say(f"{number + 1}/{len(subjects)} {subject.name}, about {seconds / 60:.0f} min left")
        present = lookup(*subject.key, machine.arch)
        found = search(subject, present[subject.index], machine, say)
        chosen = present[subject.index] if found is None else found.config
        entries.setdefault(subject.key, []).append(chosen)
        if found is not None and found.gain > 1:
            say(f"  chosen: {short(chosen)}, {found.gain:.2f} times as fast")
        if len(entries[subject.key]) == len(present):
            keep({key: tuple(configs) for key, configs in entries.items()})
    return {key: tuple(configs) for key, configs in entries.items()}
