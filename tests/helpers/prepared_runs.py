"""Run directories that have a config.json and nothing else, as a sweep leaves them for a stack."""

from bwt.runs.directory import RunDirectory
from bwt.runs.files import write_json


def prepared(folder, configs):
    outs = []
    for index, config in enumerate(configs):
        run = RunDirectory.create(folder / f"run{index}")
        write_json(run.path / "config.json", config.to_json())
        outs.append(run.path)
    return outs
