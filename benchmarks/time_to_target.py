"""How long training takes until a model is so many bits from exact Bayes.

    python benchmarks/time_to_target.py            the quick presets, 5 seeds
    python benchmarks/time_to_target.py --tasks bijection --seeds 2 --out /tmp/mine

For each preset and seed: the first evaluation at which the KL is at most 0.1, 0.01 and 0.003 bits,
with its step and the seconds of training before it (evaluations not counted). Evaluations are a
factor of about 1.1 apart. The table is what later work has to beat: `--against FILE` says by how
much. Seconds are those of one machine on one day; steps are not.
"""

import argparse
import math
import sys
from pathlib import Path
from statistics import median
from typing import Any

from bwt import train
from bwt.runs import environment
from bwt.runs.directory import RunDirectory
from bwt.runs.files import RunError, read_object, write_atomically, write_json
from bwt.runs.presets import resolve

TARGETS = (0.1, 0.01, 0.003)  # bits of KL
TASKS = ("bijection", "hmm", "recall")
EVALUATIONS = 60
OUT = Path(__file__).resolve().parents[1] / "results" / "time-to-target"


def reached(run: RunDirectory) -> dict[str, dict[str, float] | None]:
    """Target -> step and seconds of the first evaluation that meets it, None if none does."""
    found: dict[str, dict[str, float] | None] = {}
    rows = [row for row in run.read_metrics() if row.evaluation is not None]
    for target in TARGETS:
        first = next((row for row in rows if row.evaluation["kl"] <= target), None)
        found[f"{target:g}"] = first and {"step": first.step, "seconds": first.seconds}
    return found


def measure(task: str, seed: int, runs: Path, threads: int) -> dict[str, Any]:
    """Of a run of the quick preset, which is continued if it was cut short."""
    settings = dict(seed=seed, threads=threads, evaluations=EVALUATIONS, eval_sequences=512)
    config = resolve(task, "transformer", "quick", settings=settings)
    path = runs / f"{task}-{seed}"
    if not (path / "evaluation.json").exists():
        if (path / "config.json").exists():
            train.resume(path, say=print)
        else:
            train.train(config, path, say=print)
    run = RunDirectory.open(path)
    return {
        "task": task,
        "seed": seed,
        "steps": config.steps,
        "reached": reached(run),
        "environment": read_object(path / "environment.json"),
    }


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Markdown: medians over seeds, with the least and the greatest."""
    lines = ["| preset | bits of KL | seeds | steps | seconds |", "|---|---|---|---|---|"]
    for task in dict.fromkeys(row["task"] for row in rows):
        own = [row for row in rows if row["task"] == task]
        for target in TARGETS:
            met = [x for row in own if (x := row["reached"][f"{target:g}"]) is not None]
            steps = _spread([x["step"] for x in met], "{:,.0f}")
            seconds = _spread([x["seconds"] for x in met], "{:.1f}")
            lines.append(
                f"| {task} | {target:g} | {len(met)} of {len(own)} | {steps} | {seconds} |"
            )
    return lines


def _spread(values: list[float], form: str) -> str:
    if not values:
        return "-"
    middle, least, most = (form.format(f(values)) for f in (median, min, max))
    return f"{middle} ({least} to {most})"


def against(rows: list[dict[str, Any]], former: list[dict[str, Any]]) -> list[str]:
    """Ratios of median steps and seconds, where both have any."""
    lines = []
    for task in dict.fromkeys(row["task"] for row in rows):
        for target in TARGETS:
            medians = [_medians(x, task, f"{target:g}") for x in (former, rows)]
            if None not in medians:
                (steps, seconds), (new_steps, new_seconds) = medians
                lines.append(
                    f"{task} to {target:g} bits: {new_steps / steps:.2f} times the steps, "
                    f"{new_seconds / seconds:.2f} times the seconds"
                )
    return lines


def _medians(rows: list[dict[str, Any]], task: str, target: str) -> tuple[float, float] | None:
    met = [x for row in rows if row["task"] == task and (x := row["reached"][target])]
    if not met:
        return None
    return median(x["step"] for x in met), max(median(x["seconds"] for x in met), math.ulp(0))


def page(rows: list[dict[str, Any]]) -> str:
    about = __doc__.split("\n\n")[2].replace("\n", " ")
    where = rows[0]["environment"] if rows else environment.collect()
    return "\n".join(
        [
            "# Time to target",
            "",
            about,
            "",
            *table(rows),
            "",
            f"Written by `python benchmarks/time_to_target.py` at commit {where.get('commit')}. "
            "Each run and its machine: times.json.",
            "",
        ]
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--tasks", nargs="+", choices=TASKS, default=TASKS)
    add("--seeds", type=int, default=5)
    add("--threads", type=int, default=1)
    add("--runs", type=Path, default=Path("runs/time-to-target"), help="continued if there")
    add("--out", type=Path, default=OUT, help="of the table")
    add("--against", type=Path, metavar="FILE", help="times.json to compare with")
    arguments = parser.parse_args(argv)
    try:
        former = read_object(arguments.against)["runs"] if arguments.against else []
        rows = [
            measure(task, seed, arguments.runs, arguments.threads)
            for seed in range(arguments.seeds)
            for task in arguments.tasks
        ]
    except RunError as error:
        print(f"time_to_target: {error}", file=sys.stderr)
        return 2
    rows.sort(key=lambda row: (row["task"], row["seed"]))
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_json(arguments.out / "times.json", {"targets": TARGETS, "runs": rows})
    text = page(rows)
    write_atomically(arguments.out / "README.md", lambda file: file.write_text(text))
    print("\n".join([*table(rows), *against(rows, former)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
