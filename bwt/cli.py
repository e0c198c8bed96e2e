"""The `bwt` command. A subcommand is imported only when it is called, so that --help is instant."""

import importlib
import sys
from collections.abc import Sequence

from bwt import __version__
from bwt.flags import Parser

# name -> what it does; bwt/commands/<name>.py has `add_arguments` and `run`.
COMMANDS = {
    "train": "train a model in a wind tunnel and say how many bits it is from exact Bayes",
    "eval": "compare a trained model with exact Bayes, at its own length or at others",
    "env": "list versions, devices, and which backend serves which op (and why not)",
}


def build_parser(argv: Sequence[str]) -> Parser:
    parser = Parser(
        prog="bwt", description="Bayesian wind tunnels: train where the exact posterior is known."
    )
    parser.add_argument("--version", action="version", version=f"bwt {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary.capitalize() + ".")
        if name in argv[:1]:
            module = importlib.import_module(f"bwt.commands.{name}")
            module.add_arguments(command, argv[1:])
            command.add_argument("--json", action="store_true", help="print one JSON document")
            command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        arguments = build_parser(argv).parse_args(argv)
        return arguments.run(arguments) or 0
    except (ValueError, RuntimeError, OSError) as error:
        print(f"bwt: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bwt: interrupted", file=sys.stderr)
        return 130
