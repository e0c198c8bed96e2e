"""`bwt geometry`"""

import argparse
import json
from collections.abc import Sequence

from bwt.geometry import examine
from bwt.geometry.examine import SEQUENCES
from bwt.report.diagnostics import summary


def add_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    add = parser.add_argument
    add("path", metavar="RUN", help="run directory")
    add("--sequences", metavar="N", type=int, default=SEQUENCES, help=f"(default: {SEQUENCES})")
    add("--seed", metavar="N", type=int, default=0, help="of the sequences")
    add("--device", metavar="NAME", default="auto", help="auto, cpu, or cuda (default: auto)")


def run(arguments: argparse.Namespace) -> None:
    geometry = examine(
        arguments.path,
        sequences=arguments.sequences,
        seed=arguments.seed,
        device=arguments.device,
        quiet=arguments.json,
    )
    if arguments.json:
        print(json.dumps(geometry.to_json()))
        return
    print(summary(geometry))
    print(f"\nwritten to {arguments.path}/geometry.json; see it with `bwt report {arguments.path}`")
