"""`bwt report`"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bwt.report import report


def add_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    parser.add_argument("paths", metavar="RUN", nargs="+", help="run directories")
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="the page (default: report.html in the run, or here if there are several runs)",
    )


def run(arguments: argparse.Namespace) -> None:
    path = report(_runs(arguments.paths), arguments.out)
    size = path.stat().st_size
    if arguments.json:
        print(json.dumps({"report": str(path), "bytes": size}))
    else:
        print(f"{path} ({size / 1000:.0f} kB): open it in a browser")


def _runs(paths: Sequence[str]) -> list[str]:
    """Without what a pattern as `sweep/*` catches besides runs; a single one is meant."""
    if len(paths) == 1:
        return list(paths)
    runs = [path for path in paths if (Path(path) / "config.json").is_file()]
    others = [path for path in paths if path not in runs]
    if not runs:
        raise ValueError(f"report: none of {', '.join(paths)} is a run directory")
    if others:
        print(f"left out, as they are no runs: {', '.join(others)}", file=sys.stderr)
    return runs
