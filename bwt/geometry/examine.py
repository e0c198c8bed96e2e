"""A run directory in, geometry.json out."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bwt.geometry.bar import Bar
from bwt.geometry.diagnostics import CHANGING, LOOKING, Diagnostic, Opened
from bwt.geometry.subject import Subject
from bwt.options import check_sequences
from bwt.records.base import Record
from bwt.records.geometry import PLATEAU, Geometry, Skipped
from bwt.runs import checkpoints
from bwt.runs.config import TrainConfig
from bwt.runs.device import local_device
from bwt.runs.directory import RunDirectory
from bwt.runs.files import read_former, write_atomically
from bwt.runs.loading import build_model, load

SEQUENCES = 512
DIGITS = 5


def examine(
    path: str | Path,
    *,
    sequences: int = SEQUENCES,
    seed: int = 0,
    device: str = "auto",
    quiet: bool = False,
) -> Geometry:
    """All diagnostics that need no change of the model; returns what geometry.json now holds."""
    opened = _open(path, sequences, seed, local_device(device))
    return _merge(RunDirectory(path), {"seed": seed, **_diagnose(LOOKING, opened, quiet)})


def ablate(
    path: str | Path,
    *,
    sequences: int = SEQUENCES,
    seed: int = 0,
    device: str = "auto",
    quiet: bool = False,
) -> Geometry:
    """The causal tests; returns what geometry.json now holds."""
    opened = _open(path, sequences, seed, local_device(device))
    return _merge(RunDirectory(path), _diagnose(CHANGING, opened, quiet))


def _diagnose(diagnostics: Sequence[Diagnostic], opened: Opened, quiet: bool) -> dict[str, Record]:
    chosen = [x for x in diagnostics if x.applies(opened.subject.model)]
    bar = Bar(sum(x.work(opened) for x in chosen), quiet)
    sections, done = {}, 0
    for diagnostic in chosen:
        bar.show(diagnostic.name)
        lacking = diagnostic.lacks(opened.subject.model)
        sections[diagnostic.name] = (
            diagnostic.compute(opened, bar) if lacking is None else Skipped(lacking)
        )
        done += diagnostic.work(opened)
        bar.reach(done)
    bar.clear()
    return sections


def _open(path: str | Path, sequences: int, seed: int, device: torch.device) -> Opened:
    if sequences < 16:
        raise ValueError(f"needs at least 16 sequences (for probes and errors), got {sequences}")
    check_sequences("geometry and ablate", sequences)
    task, model, config = load(path, None, device)
    initial = build_model(config, task).to(device).eval()
    run = RunDirectory(path)
    scratch = build_model(config, task).to(device).eval()

    def at_step(step: int) -> nn.Module:
        if step == 0:
            return initial
        checkpoints.fill(run, scratch, checkpoints.load_weights(run, step, device))
        return scratch

    subject = Subject.draw(task, model, sequences, seed=seed, device=device)
    steps = [0, *run.steps()]
    return Opened(subject, subject.of(initial), steps, at_step, seed, course_of_rate(config))


def course_of_rate(config: TrainConfig) -> str:
    """How the learning rate fell: as `--decay` says, or only at the end, after a plateau."""
    return config.decay if config.until == "steps" else PLATEAU


def _merge(run: RunDirectory, sections: dict[str, Any]) -> Geometry:
    """Sections made now replace those of geometry.json; one that was made at another step of the
    run says nothing about this one and goes."""
    path = run.path / "geometry.json"
    step = run.steps()[-1]
    former = read_former(path, Geometry)
    if former is None or former.step != step:
        former = Geometry(step)
    document = rounded(dataclasses.replace(former, **sections).to_json())
    # Compact: with one number a line it would be three times as large.
    write_atomically(path, lambda file: file.write_text(json.dumps(document) + "\n"))
    return Geometry.from_json(document)


def rounded(value: Any) -> Any:
    """Five significant digits of every number in a JSON document."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
