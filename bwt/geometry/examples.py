"""A few sequences, with the exact and the model's distribution at every step, what each head looks
at there, and what the model said at earlier checkpoints."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from bwt.geometry.subject import Subject, has_attention
from bwt.records.geometry import Example, ExampleCheckpoint, Examples

COUNT = 3
CHECKPOINTS = 12
WEIGHTS = 200_000  # of attention that are kept: they are most of the section


def examples(
    subject: Subject, steps: Sequence[int] = (), load: Callable[[int], nn.Module] | None = None
) -> Examples:
    """steps: of the checkpoints; load gives the model as it was at one of them."""
    few = subject.part(slice(COUNT))
    predicted = few.predict().exp()
    shown, tokens = few.task.shown(few.batch).tolist(), few.task.spelled(few.batch)
    attention = _attention(few)
    sequences = [
        Example(
            labels=[str(x) for x in shown[i]],
            exact=few.exact[i].tolist(),
            model=predicted[i].tolist(),
            targets=few.batch.targets[i].tolist(),
            tokens=tokens[i],
            asked=few.positions.tolist(),
            attention=attention[i] if i < len(attention) else None,
        )
        for i in range(len(predicted))
    ]
    rows = []
    if load is not None:
        for step in spread(steps):
            said = few.of(load(step)).predict().exp()
            rows.append(ExampleCheckpoint(step, _thousandths(said)))
    return Examples(sequences, rows)


def spread(steps: Sequence[int], count: int = CHECKPOINTS) -> list[int]:
    """At most so many of the steps, with the first and the last."""
    if len(steps) <= count:
        return list(steps)
    last = len(steps) - 1
    return [steps[round(i * last / (count - 1))] for i in range(count)]


def _attention(subject: Subject) -> list[list]:
    """For as many of the sequences as there is room for: [layer][head][step][position]."""
    if not has_attention(subject.model):
        return []
    trace = subject.look("blocks.*.attn.weights")
    layers = [trace[name] for name in sorted(trace, key=_layer)]  # [B, H, P, T]
    room = WEIGHTS // sum(w[0].numel() for w in layers)
    ends = [at + 1 for at in subject.positions.tolist()]
    return [
        [
            [[row[:end] for row, end in zip(head, ends, strict=True)] for head in heads]
            for heads in (_thousandths(w[i]) for w in layers)
        ]
        for i in range(min(len(subject.batch.tokens), room))
    ]


def _layer(name: str) -> int:
    return int(name.split(".")[1])


def _thousandths(shares: Tensor) -> list:
    return (1000 * shares.double()).round().long().tolist()
