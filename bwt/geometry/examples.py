"""A few sequences, with the exact and the model's distribution at every step."""

from bwt.geometry.subject import Subject

COUNT = 3


def examples(subject: Subject) -> dict:
    predicted = subject.part(slice(COUNT)).predict().exp()
    shown = subject.task.shown(subject.batch)[:COUNT].tolist()
    return {
        "sequences": [
            {
                "labels": [str(x) for x in shown[i]],
                "exact": subject.exact[i].tolist(),
                "model": predicted[i].tolist(),
                "targets": subject.batch.targets[i].tolist(),
            }
            for i in range(min(COUNT, len(predicted)))
        ]
    }
