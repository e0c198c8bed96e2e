"""`bwt env`"""

import argparse
import json
from collections.abc import Sequence

from bwt.runs import environment


def add_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    pass


def run(arguments: argparse.Namespace) -> None:
    report = environment.collect()
    print(json.dumps(report) if arguments.json else environment.render(report))
