"""The `bwt` command. Subcommands import what they need when they run, so that --help is instant."""

import argparse
import json
import sys
from collections.abc import Sequence

from bwt import __version__


def _env(arguments: argparse.Namespace) -> None:
    from bwt import env

    report = env.collect()
    print(json.dumps(report) if arguments.json else env.render(report))


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bwt", description="Bayesian wind tunnels: train where the exact posterior is known."
    )
    parser.add_argument("--version", action="version", version=f"bwt {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    summary = "list versions, devices, and which backend serves which op (and why not)"
    env = commands.add_parser("env", help=summary, description=summary.capitalize() + ".")
    env.add_argument("--json", action="store_true", help="print one JSON document")
    env.set_defaults(run=_env)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = build_parser().parse_args(argv)
    try:
        arguments.run(arguments)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"bwt: {error}", file=sys.stderr)
        return 2
    return 0
