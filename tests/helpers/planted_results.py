"""Results of a reproduction with numbers that a test plants, without any run."""

from dataclasses import replace

from bwt.records.estimates import Estimate
from bwt.records.results import METRICS, Cell, Curve, Floor, Results, StudyText
from bwt.runs.presets import resolve

FLOORS = {"uniform": 2.0, "constant": 1.5}


def cell(
    setting="hmm",
    row="transformer",
    *,
    study="architecture",
    task=None,
    model="transformer",
    seed=0,
    status="finished",
    floors=FLOORS,
    task_options=None,
    model_options=None,
    curve=((10, 1.0), (100, 0.1)),
    numbers=None,
    **fields,
):
    """numbers: of metrics; the others are 0.01."""
    task = task or setting.partition("-")[0]
    options = {"width": 8} if model != "transformer" else {}
    config = resolve(
        task,
        model,
        "quick",
        settings={"seed": seed},
        task_options=task_options,
        model_options={**options, **(model_options or {})},
    )
    metrics = {**dict.fromkeys(METRICS, 0.01), **(numbers or {})}
    made = Cell(
        name=f"{study}-{setting}-{row}-seed={seed}",
        study=study,
        setting=setting,
        task=task,
        row=row,
        x=None,
        seed=seed,
        rate=1.0,
        trial=False,
        chosen=True,
        status=status,
        command=f"bwt train {task}",
        config=config.to_json(),
        parameters=1000,
        environment={
            "commit": None,
            "versions": {"torch": "2"},
            "machine": {"platform": "Linux", "cpu_count": 2},
        },
        seconds=1.0,
        curve=Curve(*map(list, zip(*curve, strict=True))) if curve else Curve([], []),
        metrics={name: Estimate(value, None) for name, value in metrics.items()},
        exact_entropy=1.0,
        floors={name: Floor(kl, kl) for name, kl in floors.items()},
        lengths={},
        geometry={},
    )
    return replace(made, **fields)


def document(*cells, studies=None):
    """Of these cells, and of studies by their names with axis and whether they are tuned."""
    names = dict.fromkeys(x.study for x in cells)
    texts = studies or [
        StudyText(name, name.title(), f"What of {name}?", "", name == "architecture")
        for name in names
    ]
    return Results(
        "planted", "bwt reproduce", None, "2026-01-01", 5, [1.0, 3.0], 0.5, texts, {}, [*cells]
    )
