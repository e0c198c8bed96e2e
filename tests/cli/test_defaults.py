"""Tests that the defaults of commands, options and presets are those of a committed table."""

import argparse
import dataclasses
import json
from pathlib import Path

from bwt import models, tasks
from bwt.cli import COMMANDS, build_parser
from bwt.runs.config import TrainConfig
from bwt.runs.presets import PRESETS, preset, preset_model, preset_task

HOW = "after an intended change: .venv/bin/python -P tests/cli/test_defaults.py"
TABLE = Path(__file__).with_name("defaults.json")
OWN_TASKS, OWN_MODELS = ("bijection", "hmm", "recall"), ("transformer", "mamba", "lstm", "mlp")


def defaults():
    """Return the default of each name; "not set" for a flag that does nothing unless given."""
    found = {f"TrainConfig {name}": value for name, value in fields_of(TrainConfig)}
    for task in OWN_TASKS:
        found |= {f"task {task} {name}": value for name, value in fields_of(tasks.TASKS[task])}
    for model in OWN_MODELS:
        options = fields_of(models.options_class(model))
        found |= {f"model {model} {name}": value for name, value in options}
    for name in PRESETS:
        for task in OWN_TASKS:
            found[f"preset {name} {task}"] = preset_task(name, task)
            for model in OWN_MODELS:
                of_model = preset(name, task, model) | preset_model(name, task, model)
                found[f"preset {name} {task} {model}"] = of_model
    for command in COMMANDS:
        _, parser = build_parser([command])
        for action in parser._actions[1:]:  # all but --help
            default = "not set" if action.default == argparse.SUPPRESS else action.default
            found[f"bwt {command} {' '.join(action.option_strings) or action.dest}"] = default
    return found


def fields_of(cls):
    for field in dataclasses.fields(cls):
        made = field.default_factory
        required = field.default is dataclasses.MISSING and made is dataclasses.MISSING
        value = field.default if made is dataclasses.MISSING else made()
        yield field.name, "required" if required else value


def as_text(table):
    """Return JSON with a line for each name."""
    lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in table.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def test_defaults_are_those_of_the_committed_table():
    committed, now = json.loads(TABLE.read_text()), json.loads(as_text(defaults()))
    changed = [
        f"{name}: {committed.get(name, 'missing')!r} in the table, {now.get(name, 'missing')!r} now"
        for name in committed | now
        if name not in committed or name not in now or committed[name] != now[name]
    ]
    assert not changed, f"{HOW}; {changed}"


if __name__ == "__main__":
    TABLE.write_text(as_text(defaults()))
