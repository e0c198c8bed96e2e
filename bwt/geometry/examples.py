"""A few sequences, with the exact and the model's distribution at every step."""

from bwt.geometry.subject import Subject
from bwt.records.geometry import Example, Examples

COUNT = 3


def examples(subject: Subject) -> Examples:
    predicted = subject.part(slice(COUNT)).predict().exp()
    shown = subject.task.shown(subject.batch)[:COUNT].tolist()
    return Examples(
        [
            Example(
                labels=[str(x) for x in shown[i]],
                exact=subject.exact[i].tolist(),
                model=predicted[i].tolist(),
                targets=subject.batch.targets[i].tolist(),
            )
            for i in range(min(COUNT, len(predicted)))
        ]
    )
