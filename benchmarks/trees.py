"""The package as it was at a commit, ready to be imported: a temporary worktree with its native
library."""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from progress import Progress
from records import ROOT

NATIVE = ("csrc", "setup.py")
KEPT = ROOT / "build" / "bench"  # libraries of commits: building one takes minutes


def git(*words: str, root: Path = ROOT) -> subprocess.CompletedProcess:
    try:
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)
    except FileNotFoundError as fault:
        raise ValueError("--compare COMMIT needs git, which is not installed") from fault


def resolve(revision: str, root: Path = ROOT) -> str | None:
    """The commit that is meant, or None."""
    done = git(
        "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}", root=root
    )
    return done.stdout.strip() if done.returncode == 0 else None


@contextmanager
def checked_out(commit: str, progress: Progress, root: Path = ROOT) -> Iterator[Path]:
    """
    Raises:
        ValueError: it cannot be checked out or built.
    """
    with tempfile.TemporaryDirectory(prefix="bwt-bench-") as folder:
        tree = Path(folder) / "bwt"
        words = ("-c", "core.hooksPath=/dev/null", "worktree", "add", "--detach", "--force")
        done = git(*words, str(tree), commit, root=root)
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["git fails"])[-1]
            raise ValueError(f"--compare: {commit[:12]} cannot be checked out: {reason}")
        try:
            link = tree / "bwt" / "kernels"
            if (tree / "kernels").is_dir() and not link.exists():
                link.symlink_to("../kernels")  # what an installation makes of it
            _add_library(commit, tree, progress, root)
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree), root=root)


def same_sources(commit: str, root: Path = ROOT) -> bool:
    """Whether the native sources are those of the present tree, changes and new files included."""
    changed = git("diff", "--quiet", commit, "--", *NATIVE, root=root).returncode != 0
    new = git("ls-files", "--others", "--exclude-standard", "--", *NATIVE, root=root).stdout
    return not changed and not new.strip()


def _add_library(commit: str, tree: Path, progress: Progress, root: Path) -> None:
    if same_sources(commit, root):
        _copy_libraries(root / "bwt", tree / "bwt")
        return
    kept = KEPT / _key(commit, root)
    if not kept.is_dir():
        with progress.busy(f"building the native library of {commit[:12]}, which takes minutes"):
            _build(commit, tree)
        kept.mkdir(parents=True)
        _copy_libraries(tree / "bwt", kept)
        return
    _copy_libraries(kept, tree / "bwt")


def _key(commit: str, root: Path) -> str:
    """Of what a library depends on."""
    sources = [git("rev-parse", f"{commit}:{name}", root=root).stdout for name in NATIVE]
    return hashlib.sha256("".join([*sources, torch.__version__]).encode()).hexdigest()[:16]


def _copy_libraries(source: Path, target: Path) -> None:
    for library in source.glob("*.so"):
        shutil.copy2(library, target)


def _build(commit: str, tree: Path) -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    log = KEPT / "build.log"
    with log.open("w") as file:
        command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
        code = subprocess.run(command, cwd=tree, stdout=file, stderr=file).returncode
    if code != 0:
        raise ValueError(f"--compare: {commit[:12]} cannot be built (see {log})")
