"""`bwt bench`"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import bwt

PREFIX = "bench_"


def folder() -> Path:
    """Where the benchmarks are. They belong to a checkout, not to the installed package."""
    for root in (Path.cwd(), *Path.cwd().parents, Path(bwt.__file__).parents[1]):
        if (root / "bwt").is_dir() and list((root / "benchmarks").glob(f"{PREFIX}*.py")):
            return root / "benchmarks"
    raise ValueError("bench: the benchmarks are not installed; run it in a checkout of bwt")


def add_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    parser.usage = "bwt bench [--json] [OP [options of the benchmark]]"
    text = "of which op, or train (default: all)"
    parser.add_argument("op", metavar="OP", nargs="?", help=text)
    text = "given to the benchmark; see `bwt bench OP --help`"
    parser.add_argument("options", metavar="options", nargs=argparse.REMAINDER, help=text)


def run(arguments: argparse.Namespace) -> int:
    files = {p.stem.removeprefix(PREFIX): p for p in sorted(folder().glob(f"{PREFIX}*.py"))}
    if arguments.op is not None and arguments.op not in files:
        raise ValueError(f"bench: no benchmark {arguments.op!r}; choose from {', '.join(files)}")
    wanted = list(files) if arguments.op is None else [arguments.op]
    documents, worst = [], 0
    for name in wanted:
        command = [sys.executable, str(files[name]), *arguments.options]
        if arguments.json:
            done = subprocess.run([*command, "--json"], stdout=subprocess.PIPE, text=True)
            documents += [json.loads(line) for line in done.stdout.splitlines()[-1:]]
        else:
            print(f"{name}: {' '.join(command)}", flush=True)
            done = subprocess.run(command)
        worst = max(worst, done.returncode)
    if arguments.json:
        print(json.dumps(documents))
    return worst
