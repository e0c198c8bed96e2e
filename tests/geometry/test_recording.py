"""A changed model that begins at the change gives what one that runs as a whole gives."""

import math

import pytest
import torch

from bwt import models, tasks
from bwt.geometry import ablation, causal, key_edits, splice
from bwt.geometry.bar import Bar
from bwt.geometry.intervene import edited
from bwt.geometry.recording import Recording
from bwt.geometry.subject import Subject
from bwt.records.base import plain

TASKS = {
    "hmm": tasks.get("hmm", num_states=3, num_symbols=3, length=8, stickiness=0.5),
    "bijection": tasks.get("bijection", num_symbols=5, num_pairs=4, replacement=True),
}
MODELS = {
    "transformer": dict(layers=3, heads=2, width=16, token_shift="block"),
    "mamba": dict(layers=2, width=8, state=4),
    "lstm": dict(layers=2, width=12, embed=8),
    "mlp": dict(layers=2, width=8),
}
ALL = slice(None)


class Slowly(Recording):
    """Runs the whole model, on all sequences at once."""

    def predict(self, path, edit, read=ALL):
        with edited(self.subject.model, path, edit):
            return self.subject.predict()[:, read]

    def predict_within(self, layer, change, read=ALL):
        with change:
            return self.subject.predict()[:, read]


def draw(name, task="hmm", sequences=24):
    torch.manual_seed(1)
    model = models.build_for(TASKS[task], name, **MODELS[name]).double().eval()
    torch.nn.init.normal_(model.head.weight)
    return Subject.draw(TASKS[task], model, sequences)


def numbers(document):
    if isinstance(document, dict | list):
        items = document.values() if isinstance(document, dict) else document
        return [x for item in items for x in numbers(item)]
    if isinstance(document, str):
        return []
    return [math.nan if document is None else document]


def found(subject):
    bar = Bar(1, quiet=True)
    return [plain(ablation.ablation(subject, bar)), plain(splice.splice(subject))]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", MODELS)
def test_the_records_are_those_of_whole_runs(name, task, monkeypatch):
    subject = draw(name, task)
    monkeypatch.setattr("bwt.geometry.recording.CHUNK", 5)
    fast = found(subject)
    for module in (ablation, causal, key_edits, splice):
        monkeypatch.setattr(module, "Recording", Slowly)
    slow = found(subject)
    got, want = numbers(fast), numbers(slow)
    assert len(got) == len(want) > 100
    assert got == pytest.approx(want, rel=1e-6, abs=1e-9, nan_ok=True)
    for module in subject.model.modules():
        assert not module._forward_hooks and "forward" not in vars(module)


def test_only_what_the_change_can_reach_is_run():
    subject = draw("transformer")
    blocks, intact = subject.model.blocks, Recording.of(subject)
    positions, lengths = subject.positions, []

    def watch(i):
        return blocks[i].mlp.register_forward_hook(lambda m, x, y: lengths.append((i, y.shape[1])))

    handles = [watch(i) for i in range(3)]
    step, later = 3, slice(3, 6)
    swap = causal._swap(int(positions[step]))
    want = Slowly.predict(intact, "blocks.0", swap, later)
    lengths.clear()
    torch.testing.assert_close(intact.predict("blocks.0", swap, later), want)
    assert lengths == [(1, 3), (2, 3)]  # from the exchange to the last that is read
    lengths.clear()
    intact.predict("blocks.1", lambda module, x, y: x)
    assert lengths == [(2, len(positions))]
    lengths.clear()
    before = slice(0, step)
    assert torch.equal(intact.predict("blocks.0", swap, before), intact.log_q[:, before])
    assert lengths == []
    for handle in handles:
        handle.remove()


def test_an_error_in_a_changed_run_restores_the_model():
    subject = draw("transformer")
    intact = Recording.of(subject)
    with pytest.raises(RuntimeError):
        intact.predict("blocks.0", lambda module, x, y: y.new_full((), torch.nan).expand(2, 3, 4))
    assert torch.equal(subject.predict(), intact.log_q)
    for module in subject.model.modules():
        assert not module._forward_hooks and "forward" not in vars(module)
