"""Locks on files. They end with the process that holds them, however it ends."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

# What file systems without locks answer.
UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


def try_lock(file: TextIO | int) -> bool:
    """False if another holds it. Where there are no locks, nobody can."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
    return True


@contextmanager
def locked(path: Path, holder: str) -> Iterator[str | None]:
    """Holds the lock of a file and writes `holder` into it. Yields None, or what the one who
    holds it has written: then it is not ours."""
    with open(path, "a+") as file:
        if not try_lock(file):
            file.seek(0)
            yield file.read().strip() or "another process"
            return
        file.truncate(0)
        with suppress(OSError):  # the lock is held, whether there is room for a name or not
            os.write(file.fileno(), holder.encode())
        try:
            yield None
        finally:
            file.truncate(0)
