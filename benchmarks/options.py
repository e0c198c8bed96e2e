"""The options that all benchmarks have."""

import argparse
import fnmatch
import importlib.util
from collections.abc import Iterable
from pathlib import Path

import arguments
import records
import timing
import torch
from common import INSTALL_HINT, Bench, Case

DEVICES = ("cpu", "cuda")
REPEATS, SECONDS = 20, 2.0
QUICK_REPEATS, QUICK_SECONDS = 7, 0.3


def add_common(
    parser: argparse.ArgumentParser, repeats: tuple[int, int] = (REPEATS, QUICK_REPEATS)
) -> None:
    """What a run and a comparison take alike; `repeats` without and with --quick, if not given."""
    add = parser.add_argument
    add(
        "--quick",
        action="store_true",
        help="in half a minute: smaller cases, fewer samples, without providers that compile",
    )
    present = [d for d in DEVICES if d == "cpu" or torch.cuda.is_available()]
    add("--device", nargs="+", choices=DEVICES, default=present, help="(all there are)")
    add("--without", nargs="+", default=[], metavar="NAME", help="leave out these providers")
    text = f"CPU threads ({' and '.join(map(str, _threads()))}; 1 with --quick)"
    add("--threads", nargs="+", type=arguments.positive, help=text)
    text = f"samples of each provider ({repeats[0]}; {repeats[1]} with --quick)"
    add("--repeats", type=arguments.positive, help=text)
    add(
        "--seconds",
        type=arguments.seconds,
        help="for each provider and case, beyond which there are only the fewest samples "
        f"({SECONDS:g}; {QUICK_SECONDS:g} with --quick)",
    )
    add(
        "--pages",
        choices=("warm", "fresh"),
        default="warm",
        help="large CPU outputs go to memory used before (default) or to pages never touched, "
        "as in a first call",
    )
    add(
        "--cold",
        action="store_true",
        help="empty the caches before each call, by writing twice as much as the last one holds",
    )


def _threads() -> list[int]:
    return sorted({min(n, timing.cpu_count()) for n in (1, 2)})


def names_of(items: list) -> list[str]:
    return [item.name for item in items]


def all_cases(bench: Bench) -> list[Case]:
    """Those of a whole run, and those that only --quick has."""
    return [*bench.cases, *(case for case in bench.quick if case not in bench.cases)]


def choose(
    bench: Bench,
    options: argparse.Namespace,
    repeats: tuple[int, int] = (REPEATS, QUICK_REPEATS),
) -> None:
    """Turns names into cases and providers, and fills in what depends on --quick.

    Raises:
        ValueError: a name is nobody's, or there is no such device.
    """
    quick = options.quick
    if options.cases is None:
        options.cases = list(bench.quick) if quick and bench.quick else bench.cases
    else:
        options.cases = _select("case", all_cases(bench), options.cases)
    left_out = [*options.without, *(bench.slow if quick and options.providers is None else ())]
    options.providers = [
        provider
        for provider in _select("provider", bench.providers, options.providers)
        if not matches(provider.name, left_out)
    ]
    options.threads = options.threads or ([1] if quick else _threads())
    options.repeats = options.repeats or repeats[quick]
    options.seconds = options.seconds or (QUICK_SECONDS if quick else SECONDS)
    if "cuda" in options.device and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch sees no CUDA device on this machine")


def matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def _select(kind: str, items: list, wanted: list[str] | None) -> list:
    if wanted is None:
        return items
    names = names_of(items)
    for pattern in wanted:
        if not fnmatch.filter(names, pattern):
            raise ValueError(f"no {kind} {pattern!r}; choose from {', '.join(names)}")
    return [item for item in items if matches(item.name, wanted)]


def check_plot(path: str | None) -> None:
    # Before the measurement, not after minutes of it.
    if path is None:
        return
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError(f"--plot needs matplotlib: {INSTALL_HINT}")
    if not Path(path).resolve().parent.is_dir():
        raise ValueError(f"--plot: no folder {Path(path).resolve().parent}")


def results(bench: Bench) -> Path:
    path = records.RESULTS / f"{bench.op}.csv"
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
