"""Compiled code that all processes share, in build/emulator of the checkout.

Nothing of torch is imported here: the emulated GPU is built before torch is loaded.
"""

import fcntl
import hashlib
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

BUILT = Path(__file__).parents[2] / "build/emulator"


def built(name: str, parts: Iterable[Path | str], make: Callable[[Path], None]) -> Path:
    """Return the folder that `make` fills. One process calls it, the others wait.

    parts: what the result depends on: files, and the names and versions of tools.
    """
    digest = hashlib.sha256()
    for part in parts:
        content = part.read_bytes() if isinstance(part, Path) else part.encode()
        digest.update(hashlib.sha256(content).digest())
    folder = BUILT / f"{name}-{digest.hexdigest()[:16]}"
    BUILT.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=BUILT) as unfinished:
                made = Path(unfinished) / folder.name
                made.mkdir()
                make(made)
                made.rename(folder)
    return folder


@cache
def version(compiler: str) -> str:
    """Return what a compiler says of itself."""
    return subprocess.run(
        [compiler, "--version"], check=True, capture_output=True, text=True
    ).stdout


def files(folder: Path) -> list[Path]:
    """Return all files below a folder but bytecode, in a fixed order."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [path for path in found if path.suffix != ".pyc"]
