"""Names of tasks and models: ours, those that are registered, and those of installed packages.

A package adds its own by entry points, `bwt.tasks` or `bwt.models`:

    [project.entry-points."bwt.tasks"]
    coin = "my_package.coin:Coin"

A file or module that is not installed is named in the environment variable BWT_IMPORT (several with
commas between), and is imported when a name is looked for that is not ours; it calls `register`.
"""

import difflib
import importlib
import importlib.metadata
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from pathlib import Path
from typing import Any

VARIABLE = "BWT_IMPORT"
_imported: dict[str, Any] = {}  # by the words of BWT_IMPORT


class Registry:
    """name -> class. Classes of packages are loaded when they are asked for; one that cannot be
    loaded is left out of values and items, with a line to say why."""

    def __init__(
        self, kind: str, own: Mapping[str, type | str], check: Callable[[str, type], None]
    ):
        """kind: "task" or "model". own: classes, or where they are ("module:class"). check: raises
        ValueError for a class that is none of this kind."""
        self.kind, self.group, self.check = kind, f"bwt.{kind}s", check
        self.own = dict(own)
        self.registered: dict[str, type] = {}
        self.offers: dict[str, list[importlib.metadata.EntryPoint]] | None = None
        self.complaints: set[str] = set()

    def register(self, name: str, cls: type | None = None) -> Any:
        """Under the name, or, without a class, as a decorator of one.

        Raises:
            ValueError: the name is taken, or the class is not one of this kind.
        """
        if cls is None:
            return lambda cls: self.register(name, cls)
        if not isinstance(name, str) or not name.replace("-", "_").isidentifier():
            raise ValueError(f"{self.kind} {name!r}: a name is letters, digits, _ and -")
        if self._taken(name, cls):
            raise ValueError(f"there is a {self.kind} {name!r} already; take another name")
        self.check(name, cls)
        self.registered[name] = cls
        return cls

    def _taken(self, name: str, cls: type) -> bool:
        """By another class: a cell of a notebook that is run again defines the same."""
        if name in self.own:
            return True
        if name in self.registered:
            return _place(self.registered[name]) != _place(cls)
        return any(offer.value != _place(cls) for offer in self._offers().get(name, ()))

    def _offers(self) -> dict[str, list[importlib.metadata.EntryPoint]]:
        """Entry points of installed packages, by name."""
        if self.offers is None:
            self.offers = {}
            found = importlib.metadata.entry_points(group=self.group)
            for offer in sorted(found, key=lambda offer: offer.name):
                if offer.name in self.own:
                    taken = f"there is a {self.kind} of this name already"
                    self._complain(f"{self.kind} {offer.name!r} of {_package(offer)}: {taken}")
                else:
                    self.offers.setdefault(offer.name, []).append(offer)
        return self.offers

    def _complain(self, line: str) -> None:
        if line not in self.complaints:
            self.complaints.add(line)
            logging.getLogger("bwt").warning("%s", line)

    def __getitem__(self, name: str) -> type:
        """
        Raises:
            ValueError: there is none of this name, or its package cannot be loaded.
        """
        if name in self.own:
            return self._own(name)
        if name not in self:
            near = difflib.get_close_matches(str(name), self._names(), n=1)
            meant = f"; did you mean {near[0]}?" if near else f"; choose one of {', '.join(self)}"
            raise ValueError(f"no {self.kind} {name!r}{meant}")
        if name not in self.registered:
            self.registered[name] = self._load(name, self._offers()[name])
        return self.registered[name]

    def _own(self, name: str) -> type:
        there = self.own[name]
        if isinstance(there, str):
            module, _, attribute = there.partition(":")
            there = self.own[name] = getattr(importlib.import_module(module), attribute)
        return there

    def _load(self, name: str, offers: list[importlib.metadata.EntryPoint]) -> type:
        who = f"{self.kind} {name!r} of {' and '.join(map(_package, offers))}"
        if len({offer.value for offer in offers}) > 1:
            raise ValueError(f"{who}: two packages offer it; remove one")
        try:
            cls = offers[0].load()
            self.check(name, cls)
        except Exception as error:  # whatever another's code may raise
            reason = " ".join(str(error).split())
            raise ValueError(f"{who} cannot be loaded: {type(error).__name__}: {reason}") from error
        return cls

    def _names(self) -> list[str]:
        import_named()
        return list(dict.fromkeys((*self.own, *self._offers(), *self.registered)))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def __contains__(self, name: object) -> bool:
        return name in self.own or name in self.registered or name in self._names()

    def values(self) -> ValuesView[type]:
        return self._whole().values()

    def items(self) -> ItemsView[str, type]:
        return self._whole().items()

    def _whole(self) -> dict[str, type]:
        found = {}
        for name in self:
            try:
                found[name] = self[name]
            except ValueError as error:
                self._complain(str(error))
        return found

    def source(self, name: str) -> str | None:
        """What has to be imported to have it, as BWT_IMPORT takes it; None of our own."""
        if name in self.own:
            return None
        module = self[name].__module__
        here = sys.modules.get(module)
        named = [word for word, found in _imported.items() if found is here]
        if module == "__main__":
            file = getattr(here, "__file__", None)
            return str(Path(file).resolve()) if file else None
        return named[0] if named else module


def sources(registry: Registry) -> list[str]:
    """What other processes have to import to have all that was registered, as BWT_IMPORT takes it;
    packages that offer it themselves need not be named."""
    offered = registry._offers()
    names = [name for name in registry.registered if name not in offered]
    return [word for word in map(registry.source, names) if word is not None]


def import_named() -> None:
    """What BWT_IMPORT names, once.

    Raises:
        ValueError: it cannot be imported.
    """
    for word in filter(None, os.environ.get(VARIABLE, "").split(",")):
        if word not in _imported:
            _imported[word] = None  # it looks for names itself while it is imported
            try:
                _imported[word] = _import_file(word) if word.endswith(".py") else _import(word)
            except Exception as error:
                del _imported[word]
                reason = " ".join(str(error).split())
                raise ValueError(
                    f"{VARIABLE}: {word} cannot be imported: {type(error).__name__}: {reason}"
                ) from error


def _import(module: str) -> Any:
    return importlib.import_module(module)


def _import_file(path: str) -> Any:
    file = Path(path).resolve()
    main = sys.modules.get("__main__")
    started = getattr(main, "__file__", None)
    if started is not None and Path(started).resolve() == file:
        return main
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None  # of a file that ends in .py
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[file.stem]
        raise
    return module


def _place(cls: type) -> str:
    """As an entry point names it."""
    return f"{cls.__module__}:{cls.__qualname__}"


def _package(offer: importlib.metadata.EntryPoint) -> str:
    if offer.dist is None:
        return f"a package ({offer.value})"
    return f"package {offer.dist.name} {offer.dist.version}"
