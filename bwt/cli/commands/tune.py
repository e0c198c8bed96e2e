"""`bwt tune`"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from functools import partial

import torch

from bwt.tuning import device, search, subjects


def add_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    parser.add_argument("op", metavar="OP", nargs="*", help="of these ops (default: all)")
    only = parser.add_argument_group("only some entries")
    text = "all entries, an hour or two (default: what the presets train with, ten minutes)"
    only.add_argument("--all", action="store_true", help=text)
    only.add_argument(
        "--kernel", nargs="+", metavar="NAME", help="as kernels/configs.py names them"
    )
    only.add_argument("--dtype", nargs="+", choices=["fp16", "tf32", "fp32", "fp64"])
    only.add_argument("--size", nargs="+", type=int, help="of a head, or padded states")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after that")
    parser.add_argument("--dry-run", action="store_true", help="time, and keep nothing")


def run(arguments: argparse.Namespace) -> int:
    keys = _wanted(arguments)
    if not torch.cuda.is_available():
        raise RuntimeError(
            "tune: times kernels on a GPU, and torch sees none here; without a table of the device "
            "the built-in one serves"
        )
    machine, name = device.machine(), torch.cuda.get_device_name()
    chosen = subjects.subjects(keys, machine.arch, subjects.FULL)
    # Progress is no result: with --json it goes elsewhere.
    say = partial(print, flush=True, file=sys.stderr if arguments.json else sys.stdout)
    guess = min(search.estimate(chosen), arguments.minutes * 60)
    say(f"{name}: {len(chosen)} configs to tune, about {guess / 60:.0f} minutes")

    def keep(entries: dict[subjects.Key, tuple]) -> None:
        if not arguments.dry_run:
            device.write(name, machine.arch, entries)

    entries = search.tune(chosen, machine, limit=arguments.minutes * 60, say=say, keep=keep)
    if arguments.json:
        print(json.dumps(device.document(name, machine.arch, entries)))
    elif entries and not arguments.dry_run:
        from bwt.kernels import tuned

        say(f"kept in {tuned.path(tuned.slug(name))}; calls on this device use it from now on")
    return 0


def _wanted(arguments: argparse.Namespace) -> list[subjects.Key]:
    """
    Raises:
        ValueError: nothing is; the message says what there is.
    """
    given = (arguments.op or None, arguments.kernel, arguments.dtype, arguments.size)
    every = subjects.keys(quick=False)
    for part, name in enumerate(("op", "kernel", "dtype", "size")):
        known = list(dict.fromkeys(key[part] for key in every))
        for value in given[part] or ():
            if value not in known:
                listed = ", ".join(map(str, known))
                raise ValueError(f"tune: no {name} {value!r}; choose from {listed}")
    # Who names a kernel, dtype or size means all of those.
    quick = not arguments.all and all(part is None for part in given[1:])
    keys = [
        key
        for key in subjects.keys(quick)
        if all(some is None or part in some for part, some in zip(key, given, strict=True))
    ]
    if not keys:
        raise ValueError("tune: no kernel is of all the names given; leave one out")
    return keys
