"""Times candidate tiles on this machine's GPU and writes a table for that device.

    python benchmarks/tune.py --quick --minutes 8 --write
    python benchmarks/tune.py --op attention --kernel short_forward --dtype fp16 --size 64

From the architecture's config a search goes to its neighbours as long as one is faster. A candidate
is compared with the NumPy reference before it is timed, within the bounds of the tests; one that
does not compile, is wrong or spills is reported and skipped. Times are those of the single kernel,
with the L2 cache emptied before. Without --write nothing is kept.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial
from typing import Any, NamedTuple

import records
import torch
import tune_subjects
from tune_subjects import Key, Subject

DEVICE = "cuda"
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
                launch = tune_subjects.with_memory(work.example(machine.arch), machine.device)
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
        for candidate in tune_subjects.neighbours(subject, best):
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

    start, entries = now(), {}
    for number, subject in enumerate(subjects):
        if subject.index == 0 and now() - start > limit:
            left = len(subjects) - number
            say(f"out of time: {left} of {len(subjects)} configs keep the architecture's values")
            break
        spent = now() - start
        rate = spent / number if number else estimate(subjects) / len(subjects)
        left = min(rate * (len(subjects) - number), max(limit - spent, 0.0))
        say(f"{number + 1}/{len(subjects)} {subject.name}, about {left / 60:.0f} min left")
        present = lookup(*subject.key, machine.arch)
        found = search(subject, present[subject.index], machine, say)
        chosen = present[subject.index] if found is None else found.config
        entries.setdefault(subject.key, []).append(chosen)
        if found is not None and found.gain > 1:
            say(f"  chosen: {short(chosen)}, {found.gain:.2f} times as fast")
        if len(entries[subject.key]) == len(present):
            keep({key: tuple(configs) for key, configs in entries.items()})
    return {key: tuple(configs) for key, configs in entries.items()}


def document(device_name: str, arch: str, entries: dict[Key, tuple]) -> dict:
    from bwt.kernels import tuned

    return {
        "device": device_name,
        "architecture": arch,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {name: records.versions(())[name] for name in ("torch", "triton")},
        "entries": [
            dict(zip(tuned.FIELDS, key, strict=True)) | {"configs": [c._asdict() for c in configs]}
            for key, configs in entries.items()
        ],
    }


def write(device_name: str, arch: str, entries: dict[Key, tuple]):
    """Puts entries into the device's table beside those it has; all or nothing."""
    from bwt.kernels import tuned

    path = tuned.path(tuned.slug(device_name))
    new = document(device_name, arch, entries)
    if path.exists():
        replaced = {tuple(key) for key in entries}
        kept = json.loads(path.read_text())["entries"]
        new["entries"] = [
            entry for entry in kept if tuple(entry[f] for f in tuned.FIELDS) not in replaced
        ] + new["entries"]
    records.replace(path, json.dumps(new, indent=1) + "\n")
    tuned.forget()
    return path


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    found.add_argument("--op", nargs="+", choices=list(tune_subjects.WORKS))
    found.add_argument("--kernel", nargs="+", help="as in the table; all if not given")
    found.add_argument("--dtype", nargs="+", choices=["fp16", "tf32", "fp32", "fp64"])
    found.add_argument("--size", nargs="+", type=int, help="of a head, or padded states")
    found.add_argument("--quick", action="store_true", help="only what the presets train with")
    found.add_argument("--minutes", type=float, default=math.inf, help="stop after that")
    found.add_argument("--write", action="store_true", help="write kernels/devices/DEVICE.json")
    return found


def wanted(options: argparse.Namespace) -> list[Key]:
    given = (options.op, options.kernel, options.dtype, options.size)
    return [
        key
        for key in tune_subjects.keys(options.quick)
        if all(some is None or part in some for part, some in zip(key, given, strict=True))
    ]


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if not torch.cuda.is_available():
        print("tune.py needs a GPU: it times kernels, and torch sees no CUDA device here")
        return 2
    import clocks
    from bwt.kernels.configs import architecture
    from triton_aot import call_on_gpu

    # Not the device's own table: that is what is being made.
    arch = architecture(torch.device("cuda")).partition(":")[0]
    subjects = tune_subjects.subjects(wanted(options), arch, tune_subjects.FULL)
    name = torch.cuda.get_device_name()
    guess = min(estimate(subjects), options.minutes * 60)
    print(f"{name}: {len(subjects)} configs to tune, about {guess / 60:.0f} minutes", flush=True)

    def keep(entries):
        if options.write:
            write(name, arch, entries)

    machine = Machine(arch, DEVICE, call_on_gpu, partial(clocks.kernel_seconds, clocks.Gpu()))
    entries = tune(
        subjects, machine, limit=options.minutes * 60, say=partial(print, flush=True), keep=keep
    )
    print(json.dumps(document(name, arch, entries)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
