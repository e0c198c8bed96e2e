"""Flags of the command from the fields of a dataclass, so that no option is written down twice."""

import argparse
import dataclasses
import difflib
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from bwt.options import kind_of


class Parser(argparse.ArgumentParser):
    """Complains in one line; argparse would print the whole usage above it."""

    # Whose option a word is that is not one here: of another task, say; empty if nobody's.
    whose: Callable[[str], str] = staticmethod(lambda option: "")

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """Words that are no arguments here, with what may have been meant by the first."""
        options = [word.partition("=")[0] for word in words if word.startswith("-")]
        if not options:
            self.error(f"unrecognized arguments: {' '.join(words)}")
        if whose := self.whose(options[0]):
            self.error(f"{options[0]} is an option of {whose}")
        known = [option for option in self._option_string_actions if option.startswith("--")]
        near = difflib.get_close_matches(options[0], known, n=1)
        self.error(f"no option {options[0]}" + (f"; did you mean {near[0]}?" if near else ""))


def add_fields(group: Any, cls: type, defaults: dict[str, Any]) -> None:
    """One flag for each field that has help. A flag not given sets nothing; `defaults` is what the
    help shows."""
    for field in dataclasses.fields(cls):
        if "help" not in field.metadata:
            continue
        default = defaults.get(field.name, field.default)
        kind = kind_of(field)
        settings: dict[str, Any] = {"default": argparse.SUPPRESS, "dest": field.name}
        if kind is bool:
            settings["action"] = argparse.BooleanOptionalAction
        elif field.metadata.get("choices"):
            settings["choices"] = field.metadata["choices"]
        else:
            settings |= {"type": kind, "metavar": {int: "N", float: "X"}.get(kind, "NAME")}
        shown = "" if default is None else f" (default: {default})"
        text = (field.metadata["help"] + shown).replace("%", "%%")
        group.add_argument(f"--{field.name.replace('_', '-')}", help=text, **settings)


def given(arguments: argparse.Namespace, cls: type) -> dict[str, Any]:
    """The fields of `cls` that were given on the command line."""
    return {name: getattr(arguments, name) for name in names(cls) if hasattr(arguments, name)}


def names(cls: type) -> list[str]:
    """The fields of `cls` that are flags."""
    return [field.name for field in dataclasses.fields(cls) if "help" in field.metadata]
