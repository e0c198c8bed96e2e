"""`bwt bench`"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path

import bwt

PREFIX = "bench_"
# Of the benchmarks, the gravest first; any other is that of a crash.
CODES = {
    2: "it could not run",
    1: "a result is WRONG",
    4: "something became slower beyond noise",
    3: "a target is missed beyond noise",
}


def folder() -> Path:
    """Where the benchmarks are. They belong to a checkout, not to the installed package."""
    for root in (Path.cwd(), *Path.cwd().parents, Path(bwt.__file__).parents[1]):
        if (root / "bwt").is_dir() and list((root / "benchmarks").glob(f"{PREFIX}*.py")):
            return root / "benchmarks"
    raise ValueError("bench: the benchmarks are not installed; run it in a checkout of bwt")


def add_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    parser.usage = (
        "bwt bench [--json] [--quick] [--cold] [--compare FILE|COMMIT] "
        "[OP ... [options of the benchmark]]"
    )
    parser.add_argument("--quick", action="store_true", help="half a minute for each op")
    text = "empty the caches before each call that is timed"
    parser.add_argument("--cold", action="store_true", help=text)
    text = (
        "say what became slower or faster since then: what has the whole interval of its ratio "
        "above 1.05 or below 1/1.05 (more: `bwt bench OP --compare HEAD --help`)"
    )
    parser.add_argument("--compare", metavar="FILE|COMMIT", help=text)
    text = "of which ops, or train (default: all)"
    parser.add_argument("words", metavar="OP", nargs=argparse.REMAINDER, help=text)
    codes = "; ".join(f"{code}: {words}" for code, words in sorted(CODES.items()))
    parser.epilog = (
        f"Options of a benchmark: `bwt bench OP --help`. Exit codes: 0; {codes}; with several ops "
        "all run, and the gravest is taken."
    )


def run(arguments: argparse.Namespace) -> int:
    place = folder()
    files = {p.stem.removeprefix(PREFIX): p for p in sorted(place.glob(f"{PREFIX}*.py"))}
    ops = list(takewhile(lambda word: not word.startswith("-"), arguments.words))
    for op in ops:
        if op not in files:
            raise ValueError(f"bench: no benchmark {op!r}; choose from {', '.join(files)}")
    # Options may stand before the ops or after them.
    late = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    late.add_argument("--compare", default=arguments.compare)
    late.add_argument("--json", action="store_true", default=arguments.json)
    try:
        found, options = late.parse_known_args(arguments.words[len(ops) :])
    except argparse.ArgumentError as error:
        raise ValueError(f"bench: {error}") from error
    options += [f"--{name}" for name in ("quick", "cold") if getattr(arguments, name)]
    if found.compare is not None:
        command = [sys.executable, str(place / "compare.py"), found.compare, *ops, *options]
        return subprocess.run([*command, *["--json"] * found.json]).returncode
    wanted = {op: files[op] for op in ops or files}
    if found.json:
        return _documents(wanted, options)
    codes = {}
    for op, file in wanted.items():
        command = [sys.executable, str(file), *options]
        print(f"{op}: {' '.join(command)}", flush=True)
        codes[op] = subprocess.run(command).returncode
    if len(wanted) > 1:
        for op, code in codes.items():
            if code:
                print(f"{op}: {CODES.get(code, 'it crashed')} (exit code {code})")
    return _gravest(codes.values())


def _documents(files: dict[str, Path], options: list[str]) -> int:
    """Prints those of all benchmarks as one."""
    documents, codes = [], []
    for file in files.values():
        command = [sys.executable, str(file), *options, "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        documents += [json.loads(line) for line in done.stdout.splitlines()[-1:]]
        codes.append(done.returncode)
    print(json.dumps(documents))
    return _gravest(codes)


def _gravest(codes: Iterable[int]) -> int:
    found = [code for code in codes if code]
    crashed = [code for code in found if code not in CODES]
    ranked = [code for code in CODES if code in found]
    return next(iter([*crashed, *ranked]), 0)
