"""`bwt report`"""

import argparse
import json
from collections.abc import Sequence

from bwt.report import report


def add_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    parser.add_argument("paths", metavar="RUN", nargs="+", help="run directories")
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="the page (default: report.html in the run, or here if there are several runs)",
    )


def run(arguments: argparse.Namespace) -> None:
    path = report(arguments.paths, arguments.out)
    size = path.stat().st_size
    if arguments.json:
        print(json.dumps({"report": str(path), "bytes": size}))
    else:
        print(f"{path} ({size / 1000:.0f} kB): open it in a browser")
