"""Configurations that are known to work: quick on 2 CPU cores, paper with the paper's sizes."""

import dataclasses
from typing import Any

from bwt import models, tasks
from bwt.runs.config import TrainConfig

PRESETS = ("quick", "paper")

# Quick: seen to converge on 2 CPU cores. Paper: its sizes and optimizer.
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
    ("paper", "hmm"): dict(layers=9, heads=8, width=256, norm="layer"),
    ("paper", "recall"): dict(layers=6, heads=6, width=192, tied=True),
}
# The paper's figures belong to the bijection with replacement: its MLP is at the uniform floor of
# that task, and the checkpoint behind its transformer's figure is named after it.
_TASKS: dict[tuple[str, str], dict[str, Any]] = {
    ("quick", "bijection"): dict(replacement=True),
    ("paper", "bijection"): dict(replacement=True),
}


def preset_task(name: str, task: str | None) -> dict[str, Any]:
    """Options of the task."""
    return dict(_TASKS.get((name, task), {}))


def preset(name: str, task: str | None) -> dict[str, Any]:
    """Settings of the run."""
    return dict(_RECIPES.get((name, task), {}))


def preset_model(name: str, task: str | None) -> dict[str, Any]:
    """Options of the transformer, which the other models are matched to in parameters."""
    return dict(_SIZES.get((name, task), {}))


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
    gets as many parameters as the preset's transformer has, unless its width is given."""
    options = dict(model_options or {})
    built = tasks.get(task, **{**preset_task(preset_name, task), **(task_options or {})})
    sizes = preset_model(preset_name, task)
    if model == "transformer":
        options = {**sizes, **options}
    else:
        known = [field.name for field in dataclasses.fields(models.options_class(model))]
        shared = {key: sizes[key] for key in ("norm", "logit_scale") if key in {*sizes} & {*known}}
        options = {**shared, **options}
        if "width" not in options:
            target = models.build_for(built, "transformer", **sizes).num_parameters
            options = models.match_parameters(model, built, target, **options)
    return TrainConfig(
        task=task,
        model=model,
        task_options=built.options(),
        model_options=dataclasses.asdict(models.options_class(model)(**options)),
        **{**preset(preset_name, task), **(settings or {})},
    )
