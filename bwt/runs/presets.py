"""Configurations: `quick` is known to converge on 2 CPU cores; `paper` has the paper's sizes, and
its other models are matched to the transformer at equal depth; `authors` is as the authors' code,
model by model."""

import dataclasses
import functools
from typing import Any

from bwt import models, tasks
from bwt.runs import authors
from bwt.runs.config import TrainConfig

PRESETS = ("quick", "paper", "authors")

_PAPER = dict(
    steps=100_000,
    batch_size=128,
    lr=3e-4,
    beta2=0.95,
    weight_decay=0.1,
    decay="cosine",
    average=0.0,
)
_RECIPES: dict[tuple[str, str], dict[str, Any]] = {
    ("quick", "bijection"): dict(
        steps=3_000, batch_size=64, lr=3e-3, optimizer="muon", muon_lr=0.02, average=0.0
    ),
    ("quick", "hmm"): dict(steps=6_000, batch_size=64, lr=3e-3, optimizer="muon"),
    ("quick", "recall"): dict(steps=1_200, batch_size=64, lr=3e-3, optimizer="muon"),
    ("paper", "bijection"): _PAPER,
    ("paper", "hmm"): {**_PAPER, "batch_size": 64, "weight_decay": 0.01},
    ("paper", "recall"): _PAPER,
}
# Of the transformer.
_SIZES: dict[tuple[str, str], dict[str, Any]] = {
    ("quick", "bijection"): dict(
        layers=2, heads=2, width=64, norm="layer", token_shift="input", logit_scale=8.0
    ),
    ("quick", "hmm"): dict(
        layers=4,
        heads=4,
        width=64,
        norm="layer",
        token_shift="block",
        positions="none",
    ),
    ("quick", "recall"): dict(
        layers=2, heads=2, width=64, norm="layer", token_shift="input", shift_span=2
    ),
    ("paper", "bijection"): dict(layers=6, heads=6, width=192, tied=True),
    # The table of positions has room for the paper's longest test: 50 observations behind a header
    # of tokens.
    ("paper", "hmm"): dict(layers=9, heads=8, width=256, norm="layer", position_table=153),
    ("paper", "recall"): dict(layers=6, heads=6, width=192, tied=True),
}
# What another model has from the transformer. Quick leaves each at the depth it trains best at: at
# the HMM's 4 layers and 1,000 steps an LSTM is still at the floor and Mamba four times as far from
# exact as with its own 2.
_SHARED = {"quick": ("norm", "logit_scale"), "paper": ("layers", "norm", "logit_scale")}


def preset_task(name: str, task: str | None) -> dict[str, Any]:
    """Return the options of the task that a preset changes."""
    return dict(authors.TASKS.get(task or "", {})) if name == "authors" else {}


def preset(name: str, task: str | None, model: str = "transformer") -> dict[str, Any]:
    """Settings of the run."""
    if task is None:
        return {}
    if name == "authors":
        recipes = authors.RECIPES.get(task, {})
        return dict(recipes.get(model, recipes.get("transformer", {})))
    return dict(_RECIPES.get((name, task), {}))


def preset_model(name: str, task: str | None, model: str = "transformer") -> dict[str, Any]:
    """Options of the model. Without a width among them it is matched to the transformer of the
    preset in parameters."""
    if task is None:
        return {}
    if name == "authors":
        return dict(authors.SIZES.get(task, {}).get(model, {}))
    sizes = _SIZES.get((name, task), {})
    if model == "transformer":
        return dict(sizes)
    known = {field.name for field in dataclasses.fields(models.options_class(model))}
    return {key: sizes[key] for key in _SHARED[name] if key in sizes and key in known}


def resolve(
    task: str,
    model: str,
    preset_name: str,
    *,
    settings: dict[str, Any] | None = None,
    task_options: dict[str, Any] | None = None,
    model_options: dict[str, Any] | None = None,
) -> TrainConfig:
    """The configuration of a preset with some settings changed. A model other than the transformer
    gets as many parameters as the preset's transformer has, unless its width is given, by the
    preset or by the caller, or it has none that could be changed for that."""
    built = tasks.get(task, **{**preset_task(preset_name, task), **(task_options or {})})
    options = {**preset_model(preset_name, task, model), **(model_options or {})}
    if model != "transformer" and "width" not in options and models.matchable(model):
        sizes = preset_model(preset_name, task)
        options = dict(_matched(built, model, tuple(sizes.items()), tuple(options.items())))
    return TrainConfig(
        task=task,
        model=model,
        task_options=built.options(),
        model_options=dataclasses.asdict(models.options_class(model)(**options)),
        **{**preset(preset_name, task, model), **(settings or {})},
    )


@functools.cache
def _matched(task: tasks.Task, model: str, sizes: tuple, options: tuple) -> dict[str, Any]:
    """Options with a width that gives as many parameters as a transformer of these sizes has. A
    reproduction asks for hundreds of runs that differ in seed and learning rate only."""
    target = models.build_for(task, "transformer", **dict(sizes)).num_parameters
    return models.match_parameters(model, task, target, **dict(options))
