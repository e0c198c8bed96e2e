"""What is kept of a measurement: its circumstances, and the CSV file."""

import csv
import importlib
import io
import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Iterable
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = ("bwt", "torch", "triton", "numpy")

KEY = ("op", "case", "provider", "mode", "dtype", "device", "threads", "cache")
# Times are those of one call, which handles `units` units; `ratio` compares times per unit:
# that of the baseline in the same run over this one's, so above 1 is faster than the baseline.
COLUMNS = (
    *("op", "case", "provider", "mode", "shape", "dtype", "device", "threads", "backend"),
    *("unit", "units", "median_ms", "p20_ms", "p80_ms", "repeats", "peak_mb"),
    *("baseline", "ratio", "pages", "versions", "simd", "git", "timestamp"),
    # On a GPU: with a cold L2 cache, until a call returns, of the device's peaks, its state.
    *("cold_ms", "host_us", "bandwidth_percent", "arithmetic_percent", "gpu"),
    # "warm", or "cold" if the caches were emptied before each call.
    "cache",
)


def environment(packages: Iterable[str], pages: str) -> dict:
    """The part of a row that is the same for the whole run."""
    return {
        "pages": pages,
        "versions": {**versions(packages), "python": platform.python_version()},
        "simd": simd(),
        "git": git_state(),
        "timestamp": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for package in (*PACKAGES, *packages):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def simd() -> str:
    """The instruction set the native library chose on this machine; empty if it is not built."""
    try:
        return importlib.import_module("bwt._C").simd()
    except ImportError:
        return ""


def git_state() -> str:
    def git(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)

    try:
        head = git("rev-parse", "--verify", "--quiet", "HEAD")
        # Recording results must not make the next measurement look like one of changed code.
        changes = git("status", "--porcelain", "--", ".", ":!benchmarks/results")
    except FileNotFoundError:
        return ""
    if changes.returncode != 0:
        return ""
    sha = head.stdout.strip() if head.returncode == 0 else "no-commit"
    return sha + ("-dirty" if changes.stdout.strip() else "")


def record(path: Path, rows: list[dict]) -> None:
    """Adds rows to a CSV file; a row with the same key is replaced."""
    kept = {_key(row): row for row in read(path)}
    for row in rows:
        flat = {name: _flat(row.get(name)) for name in COLUMNS}
        kept[_key(flat)] = flat
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(kept.values())
    replace(path, text.getvalue())


def read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        # Rows of old had no cache but a warm one.
        return [{**row, "cache": row.get("cache") or "warm"} for row in csv.DictReader(file)]


def replace(path: Path, text: str) -> None:
    """Writes all or nothing: a run killed here must not cost what was kept before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "w", newline="") as file:
            file.write(text)
        os.chmod(temporary, 0o644)  # mkstemp gives 0600
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _key(row: dict) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in KEY)


def _flat(value) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return json.dumps(value) if isinstance(value, dict) else str(value)
