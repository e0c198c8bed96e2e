"""A few sequences, with the exact and the model's distribution at every step."""

from bwt.geometry.subject import Subject
from bwt.tasks import HMM, Bijection

COUNT = 3


def examples(subject: Subject) -> dict:
    predicted = subject.part(slice(COUNT)).predict().exp()
    labels = _labels(subject)
    return {
        "sequences": [
            {
                "labels": labels[i],
                "exact": subject.exact[i].tolist(),
                "model": predicted[i].tolist(),
                "targets": subject.batch.targets[i].tolist(),
            }
            for i in range(min(COUNT, len(predicted)))
        ]
    }


def _labels(subject: Subject) -> list[list[str]]:
    """What is shown at each step."""
    task, batch = subject.task, subject.batch
    if isinstance(task, HMM):
        shown = task.parameters(batch)[0]
    elif isinstance(task, Bijection):
        shown = batch.tokens[:, batch.positions]
    else:
        shown = batch.tokens[:, batch.positions - 1]
    return [[str(x) for x in row] for row in shown[:COUNT].tolist()]
