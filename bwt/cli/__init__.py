"""The `bwt` command. A subcommand is imported only when it is called, so that --help is instant."""

import contextlib
import importlib
import os
import sys
from collections.abc import Sequence

from bwt import __version__
from bwt.cli.flags import Parser
from bwt.threads import set_environment

# name -> what it does; bwt/cli/commands/<name>.py has `add_arguments` and `run`.
COMMANDS = {
    "train": "train a model in a wind tunnel and say how many bits it is from exact Bayes",
    "eval": "compare a trained model with exact Bayes, at its own length or at others",
    "geometry": "look inside a trained model: attention, states, what can be read off them",
    "ablate": "take parts out of a trained model and say how many bits that costs",
    "report": "turn one or several runs into one page of figures and plain words",
    "sweep": "train a grid of configurations side by side, or on a Ray cluster",
    "reproduce": "run the paper's tables and put its figures beside ours",
    "bench": "time the ops and the training of a checkout",
    "tune": "find the fastest tiles of the kernels on this machine's GPU, and keep them",
    "kernels": "list the kernels of every op and what they have been compiled for",
    "env": "list versions, devices, and which backend serves which op (and why not)",
}

FULL = 4  # exit code
EXIT_CODES = (
    "exit codes: 0 done; 2 refused or failed, and a line says why; 3 training has diverged; 4 the "
    "disk is full; 128 + N stopped by signal N, with the last step saved"
)


def build_parser(argv: Sequence[str]) -> tuple[Parser, Parser]:
    """That of the command line, and that of its subcommand, where one is named."""
    parser = Parser(
        prog="bwt",
        description="Bayesian wind tunnels: train where the exact posterior is known.",
        epilog=EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"bwt {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    called = parser
    for name, summary in COMMANDS.items():
        sentence = f"{summary[0].upper()}{summary[1:]}."
        command = commands.add_parser(name, help=summary, description=sentence)
        if name in argv[:1]:
            module = importlib.import_module(f"bwt.cli.commands.{name}")
            module.add_arguments(command, argv[1:])
            command.add_argument("--json", action="store_true", help="print one JSON document")
            command.set_defaults(run=module.run)
            called = command
    return parser, called


def main(argv: Sequence[str] | None = None) -> int:
    set_environment()
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        parser, called = build_parser(argv)
        arguments, unknown = parser.parse_known_args(argv)
        if unknown:
            called.refuse(unknown)
        code = arguments.run(arguments) or 0
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever read has seen enough (`| head`).
        _forget_output()
        return 0
    except OSError as error:
        return _complain_of(error)
    except (ValueError, RuntimeError, MemoryError) as error:
        _complain(error)
        return 2
    except KeyboardInterrupt:
        print("bwt: interrupted", file=sys.stderr)
        return 130


def _complain(error: Exception) -> None:
    """In one line: torch may have more to say."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    with contextlib.suppress(OSError):  # stderr may be on the disk that is full
        print(f"bwt: {lines[0]}", file=sys.stderr, flush=True)


def _complain_of(error: OSError) -> int:
    """The exit code."""
    from bwt.runs.files import full_disk, is_full

    if not is_full(error):
        _complain(error)
        return 2
    _complain(full_disk(error))
    try:
        sys.stdout.flush()
    except OSError:
        _forget_output()
    return FULL


def _forget_output() -> None:
    """What is still buffered cannot be written at the exit either, and must not complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
