"""The diagnostics: each fills the section of geometry.json that has its name.

A new one is a record in bwt/records/geometry.py, its computation in a file here, its cards and
sentences in a file of bwt/report/diagnostics, and a line in each of the two lists.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor, nn

from bwt.geometry import ablation, splice
from bwt.geometry.attention import attention
from bwt.geometry.bar import Bar
from bwt.geometry.clusters import clusters
from bwt.geometry.dissociation import dissociation
from bwt.geometry.examples import examples
from bwt.geometry.formation import formation
from bwt.geometry.key_edits import worth_of_heads
from bwt.geometry.keys import keys
from bwt.geometry.lengths import lengths
from bwt.geometry.lens import lens
from bwt.geometry.manifold import manifold
from bwt.geometry.probes import probes
from bwt.geometry.subject import (
    Subject,
    has_attention,
    lacks_blocks,
    lacks_head,
    lacks_norm,
    lacks_states,
)
from bwt.records import geometry as records
from bwt.records.base import Record


@dataclass(frozen=True)
class Opened:
    """What a diagnostic may look at."""

    subject: Subject  # the trained model on fresh sequences
    untrained: Subject  # the same with the random weights it began with
    steps: list[int]  # that have weights; 0 for those before training
    load: Callable[[int], nn.Module]  # the model as it was at a step
    seed: int
    decay: str | None = None  # of the learning rate in training

    @property
    def few(self) -> Subject:
        """On a quarter of the sequences, for what is repeated at every checkpoint."""
        return self.subject.part(slice(max(8, len(self.subject.batch.tokens) // 4)))

    @cached_property
    def worth(self) -> Tensor | None:
        """Of each head: two diagnostics ask for it, and it takes a run of the model for each."""
        return worth_of_heads(self.few)


@dataclass(frozen=True)
class Diagnostic:
    name: str
    record: type[Record]
    compute: Callable[[Opened, Bar], Record]
    applies: Callable[[nn.Module], bool] = lambda model: True
    # What a model of another package may lack, in words; the section says so then.
    lacks: Callable[[nn.Module], str | None] = lambda model: None
    work: Callable[[Opened], int] = lambda opened: 1  # ticks of the bar


def _lengths(x: Opened, bar: Bar) -> Record:
    subject = x.subject
    count, device = len(subject.batch.tokens), subject.positions.device
    return lengths(subject.task, subject.model, count, seed=x.seed, device=device)


LOOKING = (
    Diagnostic("examples", records.Examples, lambda x, bar: examples(x.subject, x.steps, x.load)),
    Diagnostic(
        "keys",
        records.Keys,
        lambda x, bar: keys(x.subject, x.untrained, x.worth),
        has_attention,
    ),
    Diagnostic(
        "attention",
        records.Attention,
        lambda x, bar: attention(x.subject, x.untrained),
        has_attention,
    ),
    Diagnostic(
        "manifold",
        records.Manifold,
        lambda x, bar: manifold(x.subject, x.untrained),
        lacks=lacks_states,
    ),
    Diagnostic(
        "probes",
        records.Probes,
        lambda x, bar: probes(x.subject, x.untrained),
        lacks=lacks_states,
    ),
    Diagnostic("lens", records.Lens, lambda x, bar: lens(x.subject, x.untrained), lacks=lacks_head),
    Diagnostic(
        "clusters",
        records.Clusters,
        lambda x, bar: clusters(x.subject, x.untrained),
        lacks=lacks_norm,
    ),
    Diagnostic("lengths", records.Lengths, _lengths),
    Diagnostic(
        "formation",
        records.Formation,
        lambda x, bar: formation(x.few, x.steps, x.load, bar.tick),
        has_attention,
        work=lambda x: len(x.steps),
    ),
    Diagnostic(
        "dissociation",
        records.Dissociation,
        lambda x, bar: dissociation(x.few, x.steps, x.load, bar.tick, x.decay, x.worth),
        lacks=lacks_states,
        work=lambda x: len(x.steps),
    ),
)
# They change the model, and take longest.
CHANGING = (
    Diagnostic(
        "ablation",
        records.Ablation,
        lambda x, bar: ablation.ablation(x.subject, bar),
        lacks=lacks_blocks,
        work=lambda x: ablation.work(x.subject),
    ),
    Diagnostic(
        "splice",
        records.Splice,
        lambda x, bar: splice.splice(x.subject, bar.tick),
        lacks=lacks_blocks,
        work=lambda x: splice.work(x.subject),
    ),
)
