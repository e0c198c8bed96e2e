"""A run directory in, geometry.json out."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from bwt import train
from bwt.geometry.ablation import MODES, ablate_parts, units
from bwt.geometry.attention import attention
from bwt.geometry.causal import interchange, removal
from bwt.geometry.clusters import clusters
from bwt.geometry.dissociation import dissociation
from bwt.geometry.examples import examples
from bwt.geometry.keys import keys
from bwt.geometry.lengths import lengths
from bwt.geometry.manifold import manifold
from bwt.geometry.probes import probes
from bwt.geometry.subject import SEED, Subject, blocks, has_attention
from bwt.options import check_sequences
from bwt.progress import Progress
from bwt.runs import checkpoints
from bwt.runs.device import local_device
from bwt.runs.directory import RunDirectory
from bwt.runs.files import read_object, write_atomically
from bwt.runs.loading import build_model

SEQUENCES = 512
DIGITS = 5


def examine(
    path: str | Path,
    *,
    sequences: int = SEQUENCES,
    seed: int = SEED,
    device: str = "auto",
    quiet: bool = False,
) -> dict[str, Any]:
    """All diagnostics that need no change of the model; returns what geometry.json now holds."""
    where = local_device(device)
    subject, untrained, load = _open(path, sequences, seed, where)
    run = RunDirectory(path)
    steps = [0, *run.steps()]
    few = subject.part(slice(max(8, sequences // 4)))

    sections: dict[str, Callable[[], Any]] = {"examples": lambda: examples(subject)}
    if has_attention(subject.model):
        sections |= {
            "keys": lambda: keys(subject, untrained),
            "attention": lambda: attention(subject),
        }
    sections |= {
        "manifold": lambda: manifold(subject),
        "probes": lambda: probes(subject, untrained),
        "clusters": lambda: clusters(subject, untrained),
        "lengths": lambda: lengths(subject.task, subject.model, sequences, seed=seed, device=where),
    }
    bar = _Bar(len(sections) + len(steps), quiet)
    found: dict[str, Any] = {"step": steps[-1], "seed": seed}
    for name, section in sections.items():
        bar.show(name)
        found[name] = section()
        bar.tick()
    bar.show("dissociation")
    found["dissociation"] = dissociation(few, steps, load, bar.tick)
    bar.clear()
    return _merge(run, found)


def ablate(
    path: str | Path,
    *,
    sequences: int = SEQUENCES,
    seed: int = SEED,
    device: str = "auto",
    quiet: bool = False,
) -> dict[str, Any]:
    """The causal tests; returns the section "ablation" of geometry.json.

    Raises:
        ValueError: the model has no blocks to take out.
    """
    subject, _, _ = _open(path, sequences, seed, local_device(device))
    if not blocks(subject.model):
        raise ValueError(f"{path}: its model is not made of blocks, there is nothing to ablate")
    parts, layers = len(list(units(subject.model))), len(blocks(subject.model))
    bar = _Bar(len(MODES) * parts + 2 * layers, quiet)
    bar.show("taking parts out")
    found = ablate_parts(subject, bar.tick)
    bar.show("removing subspaces")
    found["removal"] = removal(subject, bar.tick)
    bar.show("interchanging states")
    found["interchange"] = interchange(subject, bar.tick)
    bar.clear()
    return _merge(RunDirectory(path), {"ablation": found})["ablation"]


def _open(path, sequences: int, seed: int, device):
    """The trained model on fresh sequences, the same with random weights, and a loader of the
    model at any step (0: as it was before training)."""
    if sequences < 16:
        raise ValueError(f"needs at least 16 sequences (for probes and errors), got {sequences}")
    check_sequences("geometry and ablate", sequences)
    task, model, config = train.load(path, None, device)
    initial = build_model(config, task).to(device).eval()
    run = RunDirectory(path)
    scratch = build_model(config, task).to(device).eval()

    def load(step: int) -> nn.Module:
        if step == 0:
            return initial
        checkpoints.fill(run, scratch, checkpoints.load_weights(run, step, device))
        return scratch

    subject = Subject.draw(task, model, sequences, seed=seed, device=device)
    return subject, subject.of(initial), load


def _merge(run: RunDirectory, found: dict[str, Any]) -> dict[str, Any]:
    """Sections found now replace those of geometry.json; one that was found at another step of the
    run says nothing about this one and goes."""
    path = run.path / "geometry.json"
    document = read_object(path, {})
    step = run.steps()[-1]
    if document.get("step", step) != step:
        document = {}
    document |= {**plain(found), "step": step}
    # Compact: with one number a line it would be three times as large.
    write_atomically(path, lambda file: file.write_text(json.dumps(document) + "\n"))
    return document


def plain(value: Any) -> Any:
    """For JSON: five significant digits, null for what is not a finite number."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value


class _Bar:
    def __init__(self, total: int, quiet: bool):
        self.progress, self.done, self.text = Progress(total, 0, quiet=quiet), 0, ""

    def show(self, text: str) -> None:
        self.text = text
        if self.progress.shown:
            self.progress.draw(self.done, text)

    def tick(self) -> None:
        self.done += 1
        self.show(self.text)

    def clear(self) -> None:
        self.progress.clear()
