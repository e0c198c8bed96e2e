"""`bwt env`"""

import argparse
import json
from collections.abc import Sequence

from bwt import env


def add_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    pass


def run(arguments: argparse.Namespace) -> None:
    report = env.collect()
    print(json.dumps(report) if arguments.json else env.render(report))
