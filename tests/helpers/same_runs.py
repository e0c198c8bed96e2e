"""Whether two runs are the same, file by file."""

import json

import torch
from safetensors.torch import load_file


def losses(run):
    return [(row.step, row.loss) for row in run.read_metrics()]


def same_files(a, b):
    assert a.steps() == b.steps()
    for step in a.steps():
        one, two = (load_file(run.weights_path(step)) for run in (a, b))
        assert one.keys() == two.keys()
        assert all(torch.equal(one[name], two[name]) for name in one), step
    assert losses(a) == losses(b)
    evaluations = [json.loads((run.path / "evaluation.json").read_text()) for run in (a, b)]
    assert evaluations[0] == evaluations[1]
