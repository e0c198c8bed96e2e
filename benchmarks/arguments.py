"""How the benchmarks' commands read their arguments."""

import argparse


class Parser(argparse.ArgumentParser):
    def error(self, message: str):
        # One line; argparse would print the whole usage above it.
        self.exit(2, f"{self.prog}: {message} (see --help)\n")


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value
