"""A run that takes no time, and how to interrupt it."""

from bwt import train
from bwt.runs.config import TrainConfig

SMALL = TrainConfig(
    task="bijection",
    task_options=dict(num_symbols=4),
    model_options=dict(layers=1, heads=2, width=16, norm="layer", logit_scale=4.0),
    steps=12,
    batch_size=8,
    lr=1e-2,
    evaluations=3,
    eval_sequences=64,
)


def interrupt_at(step, action, monkeypatch):
    update = train.TrainStep.update

    def patched(self, batch=None):
        update(self, batch)
        if self.count == step:
            action()

    monkeypatch.setattr(train.TrainStep, "update", patched)


def crash():
    """An action: the run ends with what it has saved before."""
    raise MemoryError
