"""What is kept of `make gpu`: one JSON document for each run, and a page made of all of them."""

import json
import re
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

from gpu_stages import Outcome
from records import replace

SCHEMA = 1


def slug(name: str) -> str:
    """As kernels/tuned.py has it, which is not importable before the build."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name.removeprefix("NVIDIA ")).strip("-")


def commit(root: Path) -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        sha = git("rev-parse", "--short=12", "HEAD")
        # Tables and results are what a run itself writes.
        changed = git("status", "--porcelain", "-uno", "--", ".", ":!results", ":!kernels/devices")
    except OSError:
        return ""
    return sha + ("+" if changed else "")


def record(
    device: str, start: datetime, commit: str, quick: bool, outcomes: list[Outcome]
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "device": device,
        "date": start.isoformat(timespec="seconds"),
        "commit": commit,
        "quick": quick,
        "stages": {
            outcome.stage: {
                "state": outcome.state,
                "seconds": round(outcome.seconds, 1),
                "words": outcome.words,
                "details": outcome.details,
            }
            for outcome in outcomes
        },
    }


def add(folder: Path, record: dict[str, Any]) -> Path:
    """Writes the run's document and the page; returns the device's folder."""
    place = folder / slug(record["device"])
    place.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^0-9T]", "", record["date"].partition("+")[0])
    path = place / f"{name}.json"
    number = 1
    while path.exists():  # two runs in a second
        number += 1
        path = place / f"{name}-{number}.json"
    replace(path, json.dumps(record, indent=1) + "\n")
    runs = [json.loads(file.read_text()) for file in place.glob("*.json")]
    replace(place / "README.md", page(sorted(runs, key=lambda run: run["date"])))
    return place


def page(runs: list[dict[str, Any]]) -> str:
    """Markdown; of each stage the newest run that has details of it."""
    parts = [f"# {runs[-1]['device']}", "Written by `make gpu`; the JSON files beside it have all."]
    parts.append(_runs(runs))
    sections = {"test": _tests, "tune": _tuning, "bench": _speeds, "train": _training}
    for stage, section in sections.items():
        for run in reversed(runs):
            found = run["stages"].get(stage)
            if found and found["details"]:
                parts.append(section(run, found["details"]))
                break
    return "\n\n".join(parts) + "\n"


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _figure(value: float | None, unit: str = "", digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}g}{unit}"


def _runs(runs: list[dict[str, Any]]) -> str:
    header = ["date", "commit", "driver", "torch", "CUDA", "triton", "clock", "power limit"]
    rows = []
    for run in reversed(runs):
        stages = run["stages"]
        gpu, software = (
            stages.get(name, {}).get("details") or {} for name in ("machine", "software")
        )
        states = [
            f"{name} {stage['state']} ({stage['seconds'] / 60:.1f} min)"
            for name, stage in stages.items()
        ]
        rows.append(
            [
                run["date"] + (" (quick)" if run["quick"] else ""),
                run["commit"] or "-",
                *(str(gpu.get("driver") or "-"), str(software.get("torch") or "-")),
                *(str(software.get("cuda") or "-"), str(software.get("triton") or "-")),
                f"{_figure(gpu.get('clock_mhz'), digits=4)} of "
                f"{_figure(gpu.get('clock_max_mhz'), digits=4)} MHz",
                _figure(gpu.get("power_limit_w"), " W"),
                "; ".join(states),
            ]
        )
    return "## Runs\n\n" + _table([*header, "stages"], rows)


def _tests(run: dict, found: dict) -> str:
    kinds = ("passed", "failed", "skipped", "error")
    counts = ", ".join(f"{found[kind]} {kind}" for kind in kinds if found.get(kind))
    failures = "".join(f"\n- {line}" for line in found["failures"])
    return f"## Tests ({run['date']})\n\n`pytest -m gpu`: {counts or 'nothing ran'}{failures}"


def _tuning(run: dict, found: dict) -> str:
    gains = ", ".join(f"{gain:.2f}" for gain in found["gains"]) or "none"
    return (
        f"## Tuning ({run['date']})\n\n{found['entries']} entries searched, "
        f"{found['faster']} configs faster than the architecture's (times as fast: {gains}), "
        f"{found['skipped']} candidates skipped as wrong, spilling or not compiling."
    )


def _speeds(run: dict, found: dict) -> str:
    header = ["op", "case", "mode", "provider", "L2 warm", "L2 cold", "to launch"]
    header += ["of bandwidth", "of arithmetic", "speed-up"]
    rows = [
        [
            *(row["op"], row["case"], row["mode"], row["provider"]),
            *(_figure(row["median_ms"], " ms"), _figure(row["cold_ms"], " ms")),
            _figure(row["host_us"], " us"),
            *(_figure(row[f"{name}_percent"], "%") for name in ("bandwidth", "arithmetic")),
            f"{_figure(row['ratio'])} {row['baseline']}" if row["ratio"] else "-",
        ]
        for row in found["rows"]
        if not row["bound"]
    ]
    faults = "".join(f"\n- {fault}" for fault in found["faults"])
    text = "Each result was compared with the reference before and after the timing."
    head = f"## Speed ({run['date']})\n\n{text}{faults and chr(10)}{faults}"
    return f"{head}\n\n{_table(header, rows)}"


def _training(run: dict, found: dict) -> str:
    rows = [
        [
            *(task, f"{result['steps']:,}", f"{result['seconds']:.0f} s"),
            *(_figure(result[name]) for name in ("entropy_mae", "kl")),
        ]
        for task, result in found["tasks"].items()
    ]
    faults = "".join(f"\n- {fault}" for fault in found["faults"])
    header = ["task", "steps", "time", "entropy_mae (bits)", "kl (bits)"]
    table = _table(header, rows)
    return f"## Training, quick presets ({run['date']})\n\n{table}{faults and chr(10)}{faults}"
