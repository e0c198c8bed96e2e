"""geometry.json: what the diagnostics of a trained model have found, a record for each of them."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar

from bwt.records.base import Document, Record, RecordError, check_lengths, check_names
from bwt.records.estimates import Estimate, Estimates

Matrix = list[list[float]]
PLATEAU = "after a plateau"  # of a rate that is held until then
FORMER_DISSOCIATION = "it was measured in a way that is no longer used; run bwt geometry again"


@dataclass(frozen=True)
class Skipped(Record):
    """A diagnostic that cannot be made of this run."""

    reason: str


@dataclass(frozen=True)
class Example(Record):
    labels: list[str]  # what is shown at each step
    exact: Matrix  # [step][outcome]
    model: Matrix
    targets: list[int]
    # What is read at each position, and the positions that are asked; None in older files.
    tokens: list[str] | None = None
    asked: list[int] | None = None
    # [layer][head][step][position] in thousandths, up to the position that is asked; None: no
    # attention, or too much of it.
    attention: list[list[list[list[int]]]] | None = None

    def __post_init__(self) -> None:
        check_lengths(self, "labels", "exact", "model", "targets")
        check_matrix(self.exact + self.model)
        if (self.tokens is None) != (self.asked is None):
            raise RecordError("has tokens without the positions that are asked, or these alone")
        if self.tokens is not None and self.asked is not None:
            check_lengths(self, "labels", "asked")
            if any(not 0 <= at < len(self.tokens) for at in self.asked):
                raise RecordError("asks at positions that the sequence does not have")
        if self.attention is not None:
            self._check_attention(self.attention)

    def _check_attention(self, layers: list[list[list[list[int]]]]) -> None:
        check_filled(layers, "layers")
        heads = {len(layer) for layer in layers}
        rows = [[len(row) for row in head] for layer in layers for head in layer]
        if self.asked is None or len(heads) > 1 or heads == {0}:
            raise RecordError("has attention without questions, or layers of different heads")
        if any(lengths != [at + 1 for at in self.asked] for lengths in rows):
            raise RecordError("has attention of other positions than those before each question")


@dataclass(frozen=True)
class ExampleCheckpoint(Record):
    """What was predicted for the examples at a step of training, in thousandths."""

    step: int
    model: list[list[list[int]]]  # [sequence][step][outcome]


@dataclass(frozen=True)
class Examples(Record):
    sequences: list[Example]
    checkpoints: list[ExampleCheckpoint] | None = None  # None in older files

    def __post_init__(self) -> None:
        check_filled(self.sequences, "sequences")
        for row in self.checkpoints or ():
            shape = [[len(p) for p in example.exact] for example in self.sequences]
            if [[len(q) for q in example] for example in row.model] != shape:
                raise RecordError(f"has examples of another shape at step {row.step}")


@dataclass(frozen=True)
class KeyCosines(Record):
    """Mean |cos| of the keys of different addresses: for each layer, of its heads."""

    plain: list[Estimates]
    centred: list[Estimates]  # without the mean key of the sequence

    def __post_init__(self) -> None:
        check_lengths(self, "plain", "centred")


@dataclass(frozen=True)
class KeyGroup(Record):
    """Positions whose keys attention may have to tell apart."""

    trained: KeyCosines
    untrained: KeyCosines
    addresses: int
    needed: bool | None = None  # whether keys carry information in the task; None: not known
    why: str = ""  # in words

    def __post_init__(self) -> None:
        check_filled(self.trained.plain, "layers")
        if len(self.trained.plain) != len(self.untrained.plain):
            raise RecordError("has another number of layers trained than untrained")


@dataclass(frozen=True)
class Keys(Record):
    # By name; the first is where attention needs to tell addresses apart, the last where they are
    # shown.
    groups: dict[str, KeyGroup]
    gaussian: float  # of independent Gaussian vectors
    head_size: int
    sequences: int
    # [layer][head] bits that are lost with the keys of a head alike; None in older files.
    worth: Matrix | None = None

    def __post_init__(self) -> None:
        check_filled(self.groups, "groups of addresses")
        for group in self.groups.values():
            heads = [len(x) for x in group.trained.plain]
            if self.worth is not None and [len(x) for x in self.worth] != heads:
                raise RecordError("has the worth of other heads than there are")
        if len({len(group.trained.plain) for group in self.groups.values()}) > 1:
            raise RecordError("has groups of addresses with different numbers of layers")


@dataclass(frozen=True)
class AttentionLayer(Record):
    entropy: Estimates  # of each head, in bits
    mass: dict[str, Estimates]  # role -> share of attention, of each head
    mass_by_step: dict[str, Estimates]  # mean over heads
    alignment_by_step: dict[str, list[float | None]]  # role -> cosine of query and key
    maps: list[Matrix]  # [head][step][position], mean over sequences
    example: list[Matrix]  # of one sequence

    def __post_init__(self) -> None:
        check_lengths(self, "entropy", "maps", "example")
        for name in ("mass_by_step", "alignment_by_step"):
            check_names(getattr(self, name), self.mass, f"{name} of")
        for mass in self.mass.values():
            if len(mass) != len(self.entropy):
                raise RecordError("has another number of heads for mass than for entropy")
        for matrix in (*self.maps, *self.example):
            check_matrix(matrix)


@dataclass(frozen=True)
class Attention(Record):
    layers: list[AttentionLayer]
    # Of attention that looks everywhere alike.
    uniform_mass: dict[str, float]
    uniform_entropy: float
    meaning: dict[str, str]  # of each role, in words
    sequences: int
    # Entropy in bits by layer, mean over heads; the share of it that is gone in the last layer.
    entropy: Estimates | None = None
    untrained_entropy: Estimates | None = None
    fall: Estimate | None = None
    untrained_fall: Estimate | None = None
    asked: list[int] | None = None  # the position of each step; None in older files

    def __post_init__(self) -> None:
        check_filled(self.layers, "layers")
        for curve in (self.entropy, self.untrained_entropy):
            if curve is not None and len(curve) != len(self.layers):
                raise RecordError("has another number of layers for the entropy")
        check_names(self.meaning, self.uniform_mass, "the meaning of")
        check_names(self.uniform_mass, ("irrelevant",), "the role")
        for layer in self.layers:
            check_names(layer.mass, self.uniform_mass, "the mass of")


@dataclass(frozen=True)
class Ordering(Record):
    """How well a coordinate orders the entropy; None where nothing is left to order."""

    r2: Estimate | None
    spearman: Estimate | None
    r2_within: Estimate | None  # with the position held fixed
    spearman_within: Estimate | None


@dataclass(frozen=True)
class Cloud(Record):
    share: list[float]  # of the variance, by principal component
    dimensions: float
    first: Ordering  # of the first component
    fitted: Ordering  # of the best linear coordinate

    def __post_init__(self) -> None:
        check_filled(self.share, "components")


@dataclass(frozen=True)
class Points(Record):
    """Some states in the space of the first three components."""

    x: list[float]
    y: list[float]
    entropy: list[float]
    step: list[int]
    z: list[float] | None = None  # None in older files, and where there are only two

    def __post_init__(self) -> None:
        check_lengths(self, "x", "y", "entropy", "step")
        if self.z is not None:
            check_lengths(self, "x", "z")


@dataclass(frozen=True)
class Alignment(Record):
    """Is the posterior entropy encoded along the first principal component? With the position held
    fixed where the entropy varies then; directions are found on half of the sequences, and all
    else is measured on the other half."""

    # |cos| with the first component: of the direction in which states move with the entropy, of
    # the same with the labels of other sequences, and of a random direction.
    cosine: Estimate
    shuffled: float
    random: float
    plane: float  # length of the direction's projection on the first two components
    share: float  # of the variance along the direction
    first_share: float  # and along the first component
    first_r2: float  # entropy from the first component
    best_r2: float  # and from the best direction
    untrained_cosine: float | None = None
    untrained_best_r2: float | None = None


@dataclass(frozen=True)
class Manifold(Record):
    entropy_varies_within_position: bool
    clouds: dict[str, Cloud]  # by what is captured, from the input to the head
    points: dict[str, Points]
    sequences: int
    # By what is captured, and "values i" of attention; those that hold nothing are left out.
    alignment: dict[str, Alignment] | None = None

    def __post_init__(self) -> None:
        check_filled(self.clouds, "clouds")
        check_names(self.points, self.clouds, "the points of")


@dataclass(frozen=True)
class ProbeScores(Record):
    """Of one target at one stage. None: the target does not vary, or is not a yes or no."""

    r2: Estimate | None
    untrained_r2: Estimate | None
    within: Estimate | None = None  # with the position held fixed
    untrained_within: Estimate | None = None
    accuracy: Estimate | None = None
    majority: float | None = None  # accuracy of the more frequent answer at each position


@dataclass(frozen=True)
class Reading(Record):
    """R2 of a probe; None: the target does not vary."""

    r2: Estimate | None
    within: Estimate | None = None  # with the position held fixed


@dataclass(frozen=True)
class ProbeTarget(Record):
    varies_within: bool  # at a fixed position
    stages: list[ProbeScores]
    history: Reading  # of what was shown, counted, without a model


@dataclass(frozen=True)
class Probes(Record):
    stages: list[str]
    targets: dict[str, ProbeTarget]
    sequences: int

    def __post_init__(self) -> None:
        check_filled(self.stages, "stages")
        for name, target in self.targets.items():
            if len(target.stages) != len(self.stages):
                raise RecordError(f"has {len(target.stages)} stages of {name}")


@dataclass(frozen=True)
class LensStage(Record):
    """Bits of KL from the exact posterior to what is read off one stage."""

    raw: Estimate | None  # by the model's own head; None where it does not fit
    tuned: Estimate  # by an affine map fitted to the final answer on other sequences
    untrained: Estimate  # the same map of the untrained model's states


@dataclass(frozen=True)
class Lens(Record):
    stages: list[str]
    readings: list[LensStage]
    model: Estimate  # of the final answer
    floors: dict[str, Estimate]  # the weakest come first
    sequences: int  # on which all this is measured

    def __post_init__(self) -> None:
        check_filled(self.stages, "stages")
        check_lengths(self, "stages", "readings")


@dataclass(frozen=True)
class ClusterScores(Record):
    clusters: int  # the number of best silhouette
    silhouette: float
    rand: float  # agreement with the likeliest outcome
    outcomes: int
    # With as many clusters as outcomes, and of the outcomes themselves as clusters.
    rand_given_outcomes: float
    silhouette_of_outcomes: float


@dataclass(frozen=True)
class Clustering(ClusterScores):
    share: list[float]
    plane: Matrix  # [point][x, y]
    outcome: list[int]
    cluster: list[int]

    def __post_init__(self) -> None:
        check_lengths(self, "plane", "outcome", "cluster")
        check_filled(self.plane, "points")
        if any(len(point) != 2 for point in self.plane):
            raise RecordError("has points that are not in a plane")


@dataclass(frozen=True)
class Clusters(Record):
    # Of the states as they are.
    trained: Clustering
    untrained: Clustering
    entropy: list[float]
    points: int
    sequences: int
    # Of the predictions read from them, and of the exact posteriors; None in older files.
    predicted: Clustering | None = None
    predicted_untrained: ClusterScores | None = None
    ceiling: ClusterScores | None = None
    # Of exact filters that see the last k observations, by their name; None in older files.
    limited: dict[str, ClusterScores] | None = None

    def __post_init__(self) -> None:
        added = (self.predicted, self.predicted_untrained, self.ceiling)
        if None in added and added != (None,) * 3:
            raise RecordError("has predictions in part: they belong together with their ceiling")

    @property
    def compared(self) -> tuple[Clustering, ClusterScores, ClusterScores] | None:
        """Clusters of the predictions, of the untrained model's, and their ceiling."""
        if self.predicted is None or self.predicted_untrained is None or self.ceiling is None:
            return None
        return self.predicted, self.predicted_untrained, self.ceiling


@dataclass(frozen=True)
class Checkpoint(Record):
    """Distances are to two late checkpoints, and None of these."""

    step: int
    kl: Estimate
    entropy_mae: Estimate
    distance: float | None  # 1 - CKA of the states
    spread: float  # of the most certain states
    pc1: float
    entropy_r2: float | None = None
    attention: Estimate | None = None  # of the maps, in bits
    attention_layers: list[float] | None = None


@dataclass(frozen=True)
class Slopes(Record):
    """Of attention's distance over that of KL, both on log scales."""

    ratio: float
    low: float
    high: float
    steps: list[int]  # the checkpoints compared
    # By which both have fallen at the last of them since learning began.
    attention_factor: float
    kl_factor: float

    def __post_init__(self) -> None:
        check_filled(self.steps, "steps")


@dataclass(frozen=True)
class Dissociation(Record):
    checkpoints: list[Checkpoint]
    references: list[int]  # the late checkpoints to which distances are
    sequences: int
    # Heads by what they are worth, and all alike; None: no attention, or too little to tell.
    slopes: Slopes | None = None
    slopes_alike: Slopes | None = None  # None in older files, too, whose slopes are these
    shares: Matrix | None = None  # [layer][head] of that worth; None: all count alike
    floor: float | None = None  # distance that noise alone would give, in bits
    decay: str | None = None  # how the learning rate fell: as --decay says, or PLATEAU

    def __post_init__(self) -> None:
        steps = [row.step for row in self.checkpoints]
        if len(steps) < 2 or steps[0] != 0 or steps != sorted(set(steps)):
            raise RecordError("has no checkpoints in order, from that before training")
        if not self.references or not set(self.references) <= set(steps[1:]):
            raise RecordError("has references that are not among its checkpoints")
        if self.slopes and not set(self.slopes.steps) <= set(steps):
            raise RecordError("has slopes of steps that are not among its checkpoints")


@dataclass(frozen=True)
class FormationRow(Record):
    """At one checkpoint. Attention is that of the best head of each layer."""

    step: int
    kl_known: Estimate  # of questions about a key that was shown before, in bits
    kl_new: Estimate | None  # of the others; None if there are none
    binding: list[float]  # from a value to the key it belongs to, by layer
    same_key: list[float]  # from a question to where its key was shown before, by layer
    answer: list[float]  # and to the value beside it


@dataclass(frozen=True)
class Formation(Record):
    rows: list[FormationRow]
    uniform_known: float  # KL of a uniform guess on known keys
    uniform_binding: float  # of attention that looks everywhere alike
    uniform_answer: float
    sequences: int

    def __post_init__(self) -> None:
        check_filled(self.rows, "checkpoints")
        layers = {len(x) for row in self.rows for x in (row.binding, row.same_key, row.answer)}
        if len(layers) != 1 or layers == {0}:
            raise RecordError("has another number of layers at some checkpoints, or none")


@dataclass(frozen=True)
class Lengths(Record):
    trained: int
    tested: int
    kl: Estimates  # by position
    entropy_mae: Estimates
    sequences: int

    def __post_init__(self) -> None:
        for curve in (self.kl, self.entropy_mae):
            if not 0 < self.trained < self.tested == len(curve):
                fault = f"has {len(curve)} positions of {self.tested}, trained {self.trained}"
                raise RecordError(fault)


@dataclass(frozen=True)
class AblatedPart(Record):
    layer: int
    part: str  # "block", the name of a sub-block, "head"; of an LSTM "layer", "memory"
    head: int | None
    mode: str  # "zero" or "mean"
    kl_added: Estimate  # paired: the same sequences with and without the part
    entropy_mae_added: Estimate
    entropy_mae_factor: float


@dataclass(frozen=True)
class RemovalCost(Record):
    """KL added by removing a subspace; all four are of equal rank."""

    encoded: Estimate
    readout: Estimate
    random: Estimate
    principal: Estimate


@dataclass(frozen=True)
class RemainingR2(Record):
    encoded: Estimate | None
    readout: Estimate | None


@dataclass(frozen=True)
class Removal(Record):
    layer: int
    target: str
    rank: int
    kl_added: RemovalCost
    r2_left: RemainingR2  # of a new probe


@dataclass(frozen=True)
class Interchange(Record):
    layer: int
    own: Estimate  # bits to the posterior of the own sequence
    other: Estimate  # and to that of the sequence the state comes from
    plain: Estimate  # without interchange
    tvd_between: Estimate
    steps: list[int]


@dataclass(frozen=True)
class KeyEdit(Record):
    """The keys of attention changed, without training: see bwt/geometry/key_edits.py."""

    edit: str
    layer: int | None  # None: all layers at once
    kl_added: Estimate  # paired
    entropy_mae_added: Estimate


@dataclass(frozen=True)
class Ablation(Record):
    kl: Estimate  # of the intact model
    entropy_mae: Estimate
    parts: list[AblatedPart]  # each by zero, then by mean
    sequences: int
    removal: list[Removal]
    interchange: list[Interchange]
    keys: list[KeyEdit] = field(default_factory=list)  # empty without attention, and in older files

    def __post_init__(self) -> None:
        check_filled(self.parts, "parts")
        check_filled(self.interchange, "layers with states interchanged")
        if [part.mode for part in self.parts] != ["zero", "mean"] * (len(self.parts) // 2):
            raise RecordError("has parts that were not taken out by zero and by mean")


@dataclass(frozen=True)
class SplicedPlace(Record):
    """What happens 0, 1, 2, ... steps after a state was exchanged there."""

    kind: str  # "input", "residual", "blocks" at one position; "memory", "state" of all up to it
    layer: int | None  # None: of all layers at once
    # Share of the way from the undisturbed model to one that has read the other sequence; None
    # where there is no way to go, as all is forgotten.
    follows: list[Estimate | None]
    spliced: Estimates  # bits to the posterior of the other's steps, continued by its own
    own: Estimates  # and to that of its own sequence

    def __post_init__(self) -> None:
        check_lengths(self, "follows", "spliced", "own")


@dataclass(frozen=True)
class Splice(Record):
    """States of a sequence with the same header and other observations are put in, and the model
    reads on. All in bits to the spliced posterior, by the steps since then."""

    steps: list[int]  # at which states are exchanged
    recurrent: bool  # what the model remembers does not grow with the sequence
    plain: Estimates  # of the undisturbed model
    ceiling: Estimates  # of the model that has read the spliced sequence
    apart: Estimates  # of the exact posterior of the own sequence
    # The share of the way that exact Bayes goes if only the observation of that step is exchanged:
    # what a model shows that computes its answer from the observations again.
    one: list[Estimate | None]
    places: list[SplicedPlace]
    sequences: int

    def __post_init__(self) -> None:
        check_lengths(self, "plain", "ceiling", "apart", "one")
        check_filled(self.places, "places")
        for place in self.places:
            if len(place.follows) != len(self.one):
                raise RecordError("has places with another number of steps")


@dataclass(frozen=True)
class Geometry(Document):
    """Sections in the order in which they are computed and told; None: not made, or not of this
    kind of model."""

    step: int  # of the checkpoint
    seed: int | None = None  # of the sequences
    examples: Examples | None = None
    keys: Keys | Skipped | None = None
    attention: Attention | None = None
    manifold: Manifold | Skipped | None = None
    probes: Probes | Skipped | None = None
    lens: Lens | Skipped | None = None
    clusters: Clusters | Skipped | None = None
    formation: Formation | Skipped | None = None
    dissociation: Dissociation | Skipped | None = None
    lengths: Lengths | Skipped | None = None
    ablation: Ablation | Skipped | None = None
    splice: Splice | Skipped | None = None

    SCHEMA: ClassVar[int] = 1
    REMEDY: ClassVar[str] = "run bwt geometry {run} (and bwt ablate {run}) again"

    @classmethod
    def from_json(cls, value: Any) -> "Geometry":
        lengths = value.get("lengths") if isinstance(value, dict) else None
        if isinstance(lengths, dict) and "schema" not in value and "reason" in lengths:
            # Of the time before schemas: the length of training stood beside the reason.
            value = {**value, "lengths": {"reason": lengths["reason"]}}
        keys = value.get("keys") if isinstance(value, dict) else None
        if isinstance(keys, dict) and "trained" in keys:
            value = {**value, "keys": _grouped(keys)}
        former = value.get("dissociation") if isinstance(value, dict) else None
        if isinstance(former, dict) and "settled" in former:
            # It set a linear scale against a logarithmic one: nothing of it can be kept.
            value = {**value, "dissociation": {"reason": FORMER_DISSOCIATION}}
        return super().from_json(value)

    @property
    def examined(self) -> bool:
        """Whether `bwt geometry` has run: every model has states."""
        return self.manifold is not None


def _grouped(keys: dict[str, Any]) -> dict[str, Any]:
    """Of the time when there was one group of addresses, where they are shown."""
    own = {f.name for f in dataclasses.fields(KeyGroup)}
    group = {name: x for name, x in keys.items() if name in own}
    return {"groups": {"addresses": group}, **{n: x for n, x in keys.items() if n not in own}}


def check_filled(values: list | dict, what: str) -> None:
    if not values:
        raise RecordError(f"has no {what}")


def check_matrix(matrix: Matrix) -> None:
    if not matrix or not matrix[0] or len({len(row) for row in matrix}) > 1:
        raise RecordError("has rows of a matrix that are not equally long")
