"""Rows of an earlier run, read from a file: what `bwt bench --json` printed, or a CSV file of
benchmarks/results."""

import csv
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import options
import records
import timing
from common import Bench

NUMBERS = ("units", "median_ms", "p20_ms", "p80_ms")
NEEDED = ("op", "case", "provider", "mode", "dtype", "device", "shape", *NUMBERS)
KEY = ("op", "case", "provider", "mode", "dtype", "device", "threads")


def load(path: Path) -> list[dict[str, Any]]:
    """
    Raises:
        ValueError: in one line, why it is no such file.
    """
    try:
        text = path.read_text()
        found = _from_json(text) if text.lstrip()[:1] in ("{", "[") else _from_csv(text)
        rows = [_normal(row) for row in found]
    except (OSError, UnicodeDecodeError, KeyError, TypeError, ValueError, csv.Error) as fault:
        raise ValueError(
            f"--compare: {path} has no rows of `bwt bench`: {_words(fault)}"
        ) from fault
    if not rows:
        raise ValueError(f"--compare: {path} has no rows of `bwt bench`: it is empty")
    return rows


def _words(fault: Exception) -> str:
    if isinstance(fault, KeyError):
        return f"{fault} is missing"
    return str(fault).splitlines()[0] if str(fault) else type(fault).__name__


def _from_json(text: str) -> list[dict]:
    found = json.loads(text)
    documents = found if isinstance(found, list) else [found]
    return [row for document in documents for row in document["rows"]]


def _from_csv(text: str) -> list[dict]:
    return list(csv.DictReader(io.StringIO(text)))


def _normal(row: dict) -> dict[str, Any]:
    kept = {name: row[name] for name in NEEDED}
    kept |= {name: float(row[name]) for name in NUMBERS}
    kept["threads"] = int(row["threads"])
    shape = row["shape"]
    kept["shape"] = json.loads(shape) if isinstance(shape, str) else shape
    versions = row.get("versions") or {}
    kept["versions"] = json.loads(versions) if isinstance(versions, str) else versions
    kept |= {name: row.get(name) or "" for name in ("simd", "git", "timestamp")}
    return kept | {"pages": row.get("pages") or "system", "cache": row.get("cache") or "warm"}


def key(row: dict) -> tuple:
    return tuple(row[name] for name in KEY)


class Here(NamedTuple):
    """What a row must have in common with this machine and this run."""

    devices: dict[str, str]  # cpu or cuda -> its name
    simd: str
    cpus: int
    pages: str
    cache: str

    @classmethod
    def of(cls, devices: dict[str, str], wanted_pages: str, cold: bool) -> "Here":
        """Pages are compared as they are asked for."""
        cache = "cold" if cold else "warm"
        return cls(devices, records.simd(), timing.cpu_count(), wanted_pages, cache)

    def obstacle(self, row: dict, bench: Bench) -> str | None:
        """Why a row cannot be compared, if it cannot."""
        if row["device"] not in self.devices.values():
            return f"recorded on {row['device']}, this is {', '.join(self.devices.values())}"
        if row["device"] == self.devices.get("cpu"):
            if row["simd"] != self.simd:
                return f"recorded with {row['simd'] or 'no library'}, here is {self.simd or 'none'}"
            if row["threads"] > self.cpus:
                return f"recorded with {row['threads']} threads, here are {self.cpus} CPUs"
            if row["pages"] not in (self.pages, "system"):
                return f"recorded with --pages {row['pages']}, which this run has not"
        if row["cache"] != self.cache:
            return f"recorded with {row['cache']} caches, here they are {self.cache} (see --cold)"
        case = next((x for x in options.all_cases(bench) if x.name == row["case"]), None)
        if case is None or row["mode"] not in case.modes:
            return "there is no such case any more"
        if json.loads(json.dumps(case.shape)) != row["shape"] or case.dtype != row["dtype"]:
            return "the case of this name has another shape now"
        if row["provider"] not in options.names_of(bench.providers):
            return "there is no such provider any more"
        return None
