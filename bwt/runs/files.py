"""Files that are written whole or not at all, and JSON that is read back without surprises."""

import contextlib
import errno
import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError

from bwt.records.base import Document, RecordError, plain
from bwt.runs.locks import try_lock

D = TypeVar("D", bound=Document)

TEMPORARY = re.compile(r"\..+\.(json|jsonl|safetensors|svg|html)\.[a-z0-9_]{8}")


FULL = {errno.ENOSPC, errno.EDQUOT}  # what the system answers when there is no room


class RunError(ValueError):
    """Something is wrong with the files of a run; the message says what, in one line."""


class FullDisk(OSError):
    """There is no room for a file; the message says what to do, in one line."""

    def __init__(self, path: str | Path, then: str = "repeat the command"):
        super().__init__(f"{path} cannot be written: the disk is full; make room, then {then}")
        self.path = path


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """`write` fills a file beside `path`, which then takes its name: never half a file.

    Raises:
        OSError: it cannot be written; the message names it. FullDisk if there is no room.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = _temporary(path)
        try:
            write(Path(name))
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
        finally:
            os.close(handle)
    except (OSError, SafetensorError) as error:
        raise not_written(path, error) from error


def not_written(path: Path, error: Exception) -> OSError:
    """What to raise instead of an error that says neither which file nor what to do."""
    if is_full(error):
        return FullDisk(path)
    return OSError(f"{path} cannot be written: {reason_of(error)}")


def full_disk(error: OSError, then: str | None = None) -> FullDisk:
    """The same, and what to do then. An error without a file is that of a print."""
    if isinstance(error, FullDisk):
        return error if then is None else FullDisk(error.path, then)
    return FullDisk(error.filename or "what is printed", *filter(None, [then]))


def is_full(error: Exception) -> bool:
    """Whether it says that there is no room."""
    if isinstance(error, SafetensorError):  # has no number of its own
        return any(f"(os error {number})" in str(error) for number in FULL)
    return isinstance(error, FullDisk) or getattr(error, "errno", None) in FULL


def _temporary(path: Path) -> tuple[int, str]:
    """Locked while its writer lives, so that those of the dead can be told (see `clean`)."""
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        if try_lock(handle) and os.fstat(handle).st_nlink:
            return handle, name
        os.close(handle)  # a cleaner came between the two


def clean(folder: Path) -> None:
    """Removes temporary files whose writers were killed."""
    if folder.is_symlink() or not folder.is_dir():
        return
    for path in folder.iterdir():
        if TEMPORARY.fullmatch(path.name) and path.is_file():
            # What is not ours to open or remove stays.
            with contextlib.suppress(OSError), open(path) as file:
                if try_lock(file):
                    path.unlink()


def reason_of(error: Exception) -> str:
    """In one line, without the name of the temporary file."""
    return getattr(error, "strerror", None) or " ".join(str(error).split())


def strict_json(value: Any, **layout: Any) -> str:
    """A number that is not finite becomes null."""
    return json.dumps(plain(value), allow_nan=False, **layout)


def write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    write_text(path, strict_json(value, indent=2) + "\n")


def loads(text: str) -> Any:
    """NaN and Infinity, which are not JSON, are read as null."""
    return json.loads(text, parse_constant=lambda name: None)


def read_json(path: Path) -> Any:
    try:
        return loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunError(f"{path} does not exist") from error
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read: {reason_of(error)}") from error


def read_object(path: Path, default: dict[str, Any] | None = None) -> dict[str, Any]:
    """The JSON object in a file; the default, if there is one, where there is no file."""
    if default is not None and not path.exists():
        return default
    value = read_json(path)
    if not isinstance(value, dict):
        raise RunError(f"{path} does not hold a JSON object; remove it, or make it again")
    return value


def read_record(path: Path, kind: type[D]) -> D:
    """
    Raises:
        RunError: there is no such file, or it does not fit; the message says what to do.
    """
    try:
        return kind.from_json(read_object(path))
    except RecordError as error:
        raise RunError(f"{path}: {error}; {kind.REMEDY.format(run=path.parent)}") from error


def read_former(path: Path, kind: type[D]) -> D | None:
    """What a command adds to. None where there is nothing, or what does not fit: it is made again.

    Raises:
        RunError: there is something that is no JSON object.
    """
    if not path.exists():
        return None
    try:
        return kind.from_json(read_object(path))
    except RecordError:
        return None
