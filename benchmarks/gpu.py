"""`make gpu`: everything that waits for a GPU, in one command.

    make gpu                                    about 30 minutes
    make gpu GPU_OPTIONS="--quick"              about 10
    make gpu GPU_OPTIONS="--only bench train"

Checks the machine, builds, runs the tests marked gpu, tunes, benchmarks, trains the quick presets,
and puts all of it into results/gpu/DEVICE/. It needs nothing but Python itself; the stages run in
.venv. Exit codes: 0, 1 if a stage failed, 2 without a GPU or for bad arguments.
"""

import argparse
import json
import re
import shutil
import sys
import time
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gpu_report
import gpu_stages
import machine
from gpu_stages import Failed, Shell, Stage

ROOT = Path(__file__).resolve().parents[1]
PYTHON = str(ROOT / ".venv/bin/python")
BENCHES = (
    *("attention", "hmm_filter", "bijection_posterior", "selective_scan", "pointwise"),
    *("train", "mamba"),
)
TASKS = ("bijection", "hmm", "recall")
LEAST_MEMORY = 4000  # MiB free; the largest benchmark needs about that
TARGET_MISSED = 3  # an exit code of the benchmarks
OLDEST_NVCC = (12, 8)  # knows compute_100

# Run in .venv: what torch and bwt make of the machine.
PROBE = """
import importlib.metadata, json, torch
found = {"torch": torch.__version__, "cuda": torch.version.cuda,
         "devices": torch.cuda.device_count() if torch.cuda.is_available() else 0}
try:
    found["triton"] = importlib.metadata.version("triton")
except importlib.metadata.PackageNotFoundError:
    found["triton"] = None
from bwt.ops import _library
found["extension"] = _library.cuda_fault
found["native"] = _library.native_fault
print(json.dumps(found))
"""


class Plan(NamedTuple):
    """Minutes of each stage, and how much it does."""

    quick: bool
    build: float = 5
    test: float = 6
    tune: float = 8
    bench: float = 9
    train: float = 4

    @classmethod
    def of(cls, quick: bool) -> "Plan":
        return cls(True, test=3, tune=2, bench=2, train=1, build=3) if quick else cls(False)


def check_machine() -> dict[str, Any]:
    """The first GPU as nvidia-smi sees it, and nvcc. What is only missed is said in `notes`."""
    gpus = machine.query()
    found = gpus[0] | {"gpus": len(gpus), "notes": []}
    if (found["memory_free_mib"] or LEAST_MEMORY) < LEAST_MEMORY:
        found["notes"].append(
            f"only {found['memory_free_mib']:.0f} MiB of memory are free; end what else uses it"
        )
    found["nvcc"] = nvcc_version()
    if found["nvcc"] is None:
        found["notes"].append(
            "nvcc is not on the path: bijection_posterior takes a slower way; install the CUDA "
            "toolkit 12.8 or newer and put its bin folder on PATH"
        )
    elif tuple(map(int, found["nvcc"].split("."))) < OLDEST_NVCC:
        found["notes"].append(f"nvcc {found['nvcc']} is too old for sm_100; install 12.8 or newer")
    return found


def nvcc_version() -> str | None:
    if shutil.which("nvcc") is None:
        return None
    try:
        return re.search(r"release (\d+\.\d+)", machine.output(["nvcc", "--version"]))[1]
    except (OSError, TypeError):
        return None


def check_software(shell: Shell) -> dict[str, Any]:
    _, lines = shell([PYTHON, "-P", "-c", PROBE], "software", 1)
    found = document(lines)
    fault = software_fault(found)
    if fault:
        raise Failed(fault, found)
    # Not fatal: bijection_posterior has a slower way.
    return found | {"notes": [found["extension"]] if found["extension"] else []}


def document(lines: list[str]) -> dict[str, Any]:
    """The last line of JSON; libraries may have something to say after it."""
    for line in reversed(lines):
        if line.startswith("{"):
            return json.loads(line)
    raise ValueError(f"no JSON in its output; last line: {(lines or ['none'])[-1][:200]}")


def software_fault(found: dict[str, Any]) -> str | None:
    """The first thing that keeps everything else from running, and what to do."""
    release = found["torch"].partition("+")[0]
    if found["cuda"] is None:
        return (
            f"torch {found['torch']} in .venv is built without CUDA; "
            f"run `.venv/bin/pip install --force-reinstall 'torch==={release}'`, "
            "`rm .venv/.built` and `make gpu` again"
        )
    if not found["devices"]:
        return (
            f"torch {found['torch']} (CUDA {found['cuda']}) sees no device, but nvidia-smi does; "
            "look at CUDA_VISIBLE_DEVICES, or update the driver to one for that CUDA"
        )
    if found["triton"] is None:
        return "triton is not installed in .venv; run `.venv/bin/pip install triton`"
    if found["native"] is not None:
        return f"the native extension: {found['native']}"
    return None


def run_tests(shell: Shell, plan: Plan) -> dict[str, Any]:
    command = [PYTHON, "-P", "-m", "pytest", "-m", "gpu", "-q", "-rf", "--color=no"]
    code, lines = shell(command, "test", plan.test, check=False)
    found: dict[str, Any] = {}
    summary = next((line for line in reversed(lines) if re.search(r" in [\d.]+s", line)), "")
    for count, kind in re.findall(r"(\d+) (passed|failed|skipped|errors?)\b", summary):
        found[kind.rstrip("s") if kind.startswith("error") else kind] = int(count)
    found["failures"] = [line[7:] for line in lines if line.startswith(("FAILED ", "ERROR "))]
    if code != 0:
        first = found["failures"][0] if found["failures"] else (lines or ["no output"])[-1]
        raise Failed(f"pytest -m gpu: {summary.strip('= ') or code}; first: {first}", found)
    if not found.get("passed"):
        raise Failed("pytest -m gpu ran no test: torch in .venv sees no GPU", found)
    return found


def tune(shell: Shell, plan: Plan) -> dict[str, Any]:
    command = [PYTHON, "-m", "bwt", "tune", "--json", "--minutes", str(plan.tune)]
    _, lines = shell(command, "tune", plan.tune)
    table = document(lines)
    gains = [float(x) for x in re.findall(r"chosen: .*, ([\d.]+) times as fast", "\n".join(lines))]
    skipped = sum("skipped: " in line for line in lines)
    entries = len(table["entries"])
    return {"entries": entries, "faster": len(gains), "gains": gains, "skipped": skipped}


def bench(shell: Shell, plan: Plan) -> dict[str, Any]:
    """All benchmarks; one that is wrong or fails does not keep the others from running."""
    rows, faults, notes = [], [], []
    budget = ["--seconds", "0.5"]
    if plan.quick:  # torch.compile takes longer than all else
        budget = ["--repeats", "5", "--seconds", "0.1", "--without", "*compiled"]
    for name in BENCHES:
        command = [PYTHON, f"benchmarks/bench_{name}.py", "--device", "cuda", "--json", *budget]
        try:
            code, lines = shell(command, f"bench_{name}", plan.bench, check=False)
            found = document(lines)
        except (Failed, ValueError) as fault:
            faults.append(f"{name}: {fault}")
            continue
        rows += found["rows"]
        missed = [claim for claim in found.get("claims", ()) if claim["verdict"] == "missed"]
        notes += [f"{name}: target missed: {x['claim']}: {x['measured']:.3g}" for x in missed]
        faults += found["wrong"] or (
            [f"{name}: exit code {code}"] if code not in (0, TARGET_MISSED) else []
        )
    details = {"rows": rows, "faults": faults, "notes": notes}
    if faults:
        raise Failed(f"{len(faults)} fault(s), the first: {faults[0]}", details)
    return details


def train(shell: Shell, plan: Plan, now=time.monotonic) -> dict[str, Any]:
    """The quick presets of the three tasks."""
    found, faults = {}, []
    for task in TASKS:
        out = shell.logs / f"train-{task}"
        shutil.rmtree(out, ignore_errors=True)
        command = [PYTHON, "-P", "-m", "bwt", "train", task, "--preset", "quick"]
        command += ["--device", "cuda", "--json", "--out", str(out)]
        if plan.quick:
            command += ["--steps", "300"]
        start = now()
        try:
            _, lines = shell(command, f"train_{task}", plan.train)
            result = document(lines)
            overall = result["evaluation"]["model"]["overall"]
        except (Failed, KeyError, ValueError) as fault:
            faults.append(f"{task}: {fault}")
            continue
        means = {name: overall[name]["mean"] for name in ("entropy_mae", "kl")}
        found[task] = {"steps": result["step"], "seconds": now() - start} | means
    details = {"tasks": found, "faults": faults}
    if faults:
        raise Failed(f"{len(faults)} of {len(TASKS)} failed, the first: {faults[0]}", details)
    return details


def stages(shell: Shell, plan: Plan) -> list[Stage]:
    ready = ("machine", "build", "software")

    def build() -> None:
        shell(["make", "--no-print-directory", "build", "tools"], "build", plan.build)

    return [
        Stage("machine", 0, check_machine),
        Stage("build", plan.build, build, ("machine",)),
        Stage("software", 0.2, partial(check_software, shell), ready[:2]),
        Stage("test", plan.test, partial(run_tests, shell, plan), ready),
        Stage("tune", plan.tune, partial(tune, shell, plan), ready),
        Stage("bench", plan.bench, partial(bench, shell, plan), ready),
        Stage("train", plan.train, partial(train, shell, plan), ready),
    ]


NAMES = ("machine", "build", "software", "test", "tune", "bench", "train")
ALWAYS = ("machine", "software")  # cheap, and the report needs them


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="STAGE", help=", ".join(NAMES))
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--results", type=Path, default=ROOT / "results/gpu", help="where to")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None, make_stages=stages, git=gpu_report.commit) -> int:
    options = parse(argv)
    if fault := machine.fault():
        print(fault, file=sys.stderr)
        return 2
    shell = Shell(ROOT, ROOT / "build/gpu")
    wanted = [*options.only, *ALWAYS] if options.only else NAMES
    chosen = [s for s in make_stages(shell, Plan.of(options.quick)) if s.name in wanted]
    say = partial(print, flush=True)
    start = datetime.now(timezone.utc)
    outcomes = gpu_stages.run(chosen, say)
    name = machine.query()[0]["name"]
    record = gpu_report.record(name, start, git(ROOT), options.quick, outcomes)
    say(f"results: {gpu_report.add(options.results, record)}")
    for outcome in outcomes:
        for note in (outcome.details or {}).get("notes", ()):
            say(f"note: {note}")
        if outcome.state != "passed":
            say(f"{outcome.stage} {outcome.state}: {outcome.words}")
    return 0 if all(outcome.state == "passed" for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
