"""What is asked, and which runs answer it: a study is a table with a row for each variant."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Variant:
    """What is trained, apart from learning rate and seed. `setting` is the wind tunnel as tables
    name it, `row` what varies within it, `x` its place on the axis of a figure."""

    setting: str
    row: str
    task: str
    model: str = "transformer"
    fields: dict[str, Any] = field(default_factory=dict)  # options of the run, task and model
    x: float | None = None


@dataclass(frozen=True)
class Study:
    name: str
    title: str
    question: str
    variants: tuple[Variant, ...]
    tuned: bool = False  # whether learning rates are tried, or the preset's are taken
    seeds: int | None = None  # None: as many as the scale has
    axis: str = ""  # what x is
    preset: str | None = None  # None: that of the scale
    # (setting, row) of the models that are looked into, all seeds of them.
    opened: tuple[tuple[str, str], ...] = ()


# Row of the tables -> (model, options). It matters what an MLP may see, so there are two.
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "transformer": ("transformer", {}),
    "mamba": ("mamba", {}),
    "lstm": ("lstm", {}),
    "mlp": ("mlp", {"context": "prefix"}),
    "mlp-position": ("mlp", {"context": "position"}),
}


def rows(setting: str, task: str, among: Iterable[str] = ROWS, **fields: Any) -> Iterator[Variant]:
    """A variant for each row of the tables."""
    for row in among:
        model, options = ROWS[row]
        yield Variant(setting, row, task, model, {**fields, **options})


def architecture(*, tuned: bool = True, **tasks: dict[str, Any]) -> Study:
    return Study(
        "architecture",
        "Architectures and tasks",
        "How far is each architecture from exact Bayes?",
        tuple(x for task, fields in tasks.items() for x in rows(task, task, **fields)),
        tuned=tuned,
        opened=(
            *((task, "transformer") for task in tasks),
            ("bijection", "mamba"),
            ("hmm", "mamba"),
            ("hmm", "lstm"),
        ),
    )


STICKY = {"stickiness": 0.95, "targets": "posterior"}


def transport(steps: int) -> Study:
    """Where forgetting does not do the work: the exact filters of the last 1, 2, 5, 10
    observations lose 0.75, 0.50, 0.17, 0.03 bits when states stay with 0.95."""
    hidden = {**STICKY, "stickiness": 0.9, "missing": 0.5}
    among = ("transformer", "mamba", "lstm", "mlp")
    return Study(
        "transport",
        "Transport of a belief",
        "Is a belief carried through time where observations are weak, or missing?",
        (
            *rows("hmm-sticky", "hmm", among, **STICKY, steps=steps),
            *rows("hmm-missing", "hmm", among, **hidden, steps=steps),
        ),
        opened=(
            *(("hmm-sticky", row) for row in ("transformer", "mamba", "lstm")),
            *(("hmm-missing", row) for row in ("transformer", "mamba")),
        ),
    )


# The HMM as the authors generate it, and a table of positions for their longest test, 50
# observations.
TOKENS: dict[str, Any] = {"header": "tokens", "floor": 0.05}
TOKEN_PLACES = {"position_table": 153}


def variants_of_tasks(steps: int) -> Study:
    """The easier bijection, one with so many noisy pairs that they have to be added up, and the HMM
    as the authors generate it: a transformer has to know which number of its header is which."""
    noisy: dict[str, Any] = {"num_symbols": 8, "num_pairs": 16, "noise": 0.2, "steps": 2 * steps}
    tokens = {**TOKENS, "targets": "posterior", "steps": steps}
    places = {"positions": "learned", **TOKEN_PLACES}
    return Study(
        "generators",
        "Other generators",
        "What do distinct keys, noise, and the authors' HMM change?",
        (
            *rows("bijection-distinct", "bijection", replacement=False, steps=steps),
            *rows("bijection-noisy", "bijection", **noisy),
            *rows("hmm-tokens", "hmm", ("transformer",), **tokens, **places),
            *rows("hmm-tokens", "hmm", ("mamba", "lstm"), **tokens),
        ),
    )


DISTINCT_FIRST = {"curriculum": "replacement=false", "curriculum_steps": 500}


def mixed_in(steps: int) -> dict[str, Any]:
    """Every other batch has distinct keys, up to this step. Then the values that were seen tell
    something by themselves, as they do not in the task (tests/geometry/test_formation.py)."""
    return {"curriculum": "replacement=false,true", "curriculum_steps": steps}


def lookup(steps: int) -> Study:
    """Without a token shift a transformer has to build the look-up by itself."""

    def variant(row: str, **fields: Any) -> Variant:
        return Variant("bijection", row, "bijection", fields={"steps": steps, **fields})

    def mixed(row: str, model: str = "transformer", **fields: Any) -> Variant:
        fields = {"steps": steps, **mixed_in(3 * steps // 5), **fields}
        return Variant("distinct keys mixed in", row, "bijection", model, fields)

    none = {"token_shift": "none"}
    longer = {**none, "steps": 10 * steps}
    return Study(
        "lookup",
        "How the look-up forms",
        "What does a transformer need to look up a repeated key: a token shift, positions of a "
        "kind, depth, an easier task first, or mixed in?",
        (
            variant("token shift"),
            variant("learned", **none, positions="learned"),
            variant("rotary", **none, positions="rotary"),
            variant("no positions", **none, positions="none"),
            variant("rotary, 4 layers", **none, positions="rotary", layers=4),
            variant("learned, ten times as long", **longer, positions="learned"),
            variant("rotary, ten times as long", **longer, positions="rotary"),
            variant("learned, distinct keys first", **none, **DISTINCT_FIRST),
            variant("rotary, distinct keys first", **none, **DISTINCT_FIRST, positions="rotary"),
            mixed("learned", **none, positions="learned"),
            mixed("rotary", **none, positions="rotary"),
            mixed("mamba", "mamba"),
            mixed("lstm", "lstm"),
        ),
        opened=(
            ("bijection", "token shift"),
            ("bijection", "learned, ten times as long"),
            ("bijection", "rotary, ten times as long"),
            ("bijection", "rotary, distinct keys first"),
            ("distinct keys mixed in", "learned"),
        ),
    )


def freezing(steps: int, at: tuple[int, ...]) -> Study:
    """The causal side of the dissociation: what is still gained when parts no longer learn. At a
    constant rate the noise of the steps hides that, and less of it where less is trained: so the
    weights that are evaluated are means over some hundred steps."""
    shared = {"steps": steps, "decay": "none", "average": 0.0, "ema": 0.99, "evaluations": 24}
    branches = [Variant("bijection", "nothing frozen", "bijection", fields=shared)]
    for step in at:
        for part in ("routing", "content"):
            fields = {**shared, "freeze": part, "freeze_at": step}
            branches.append(
                Variant("bijection", f"{part} frozen at {step}", "bijection", fields=fields, x=step)
            )
    return Study(
        "freezing",
        "Routing or content, frozen",
        "What is still learned after queries and keys (routing), or values and MLPs (content), "
        "are frozen?",
        tuple(branches),
        axis="step at which the part is frozen",
        opened=(("bijection", "nothing frozen"),),
    )


def keys(steps: int) -> Study:
    def variant(row: str, **fields: Any) -> Variant:
        return Variant("bijection", row, "bijection", fields={"steps": steps, **fields})

    return Study(
        "keys",
        "Orthogonal keys, in training",
        "Does it cost bits to keep keys from being orthogonal, or to make them so?",
        (
            variant("as they come"),
            variant("penalty on cosines", key_penalty=0.3),
            variant("reward for cosines", key_penalty=-0.3),
            variant("weak penalty on cosines", key_penalty=0.03),
            variant("weak reward for cosines", key_penalty=-0.03),
            variant("fixed random rotation", keys="orthogonal"),
            variant("all alike", keys="collapsed"),
        ),
        opened=tuple(
            ("bijection", row)
            for row in (
                "as they come",
                "weak penalty on cosines",
                "weak reward for cosines",
                "fixed random rotation",
            )
        ),
    )


def feed_forward(steps: int, hmm_steps: int) -> Study:
    kinds = {
        "all": "an MLP in each block",
        "last": "in the last block only",
        "frozen": "random and never trained",
        "none": "attention only",
    }
    hmm = {"targets": "posterior", "steps": hmm_steps}
    return Study(
        "feed-forward",
        "What the MLPs do",
        "What is lost without the MLPs, or with ones that do not learn?",
        tuple(
            Variant(task, row, task, fields={**fields, "mlp": kind})
            for task, fields in (("bijection", {"steps": steps}), ("hmm", hmm))
            for kind, row in kinds.items()
        ),
    )


# Widths that give about as many parameters as the preset's 4 layers of 64 have, by depth.
DEPTHS = {1: 128, 2: 88, 4: 64, 8: 44, 12: 36}


def shape(steps: int) -> Study:
    hmm = {"targets": "posterior", "steps": steps}
    heads = (1, 2, 4, 8, 16)
    return Study(
        "shape",
        "Heads and depth at equal parameters",
        "How many heads, and how many layers, does filtering need?",
        (
            *(
                Variant("hmm by heads", f"{n} heads", "hmm", fields={**hmm, "heads": n}, x=n)
                for n in heads
            ),
            *(
                Variant(
                    "hmm by depth",
                    f"{n} layers of {width}",
                    "hmm",
                    fields={**hmm, "layers": n, "width": width},
                    x=n,
                )
                for n, width in DEPTHS.items()
            ),
        ),
        axis="heads, or layers",
    )


def filtering(steps: int) -> Study:
    """Which part makes a transformer filter."""
    found = []
    for header in ("rows", "tokens"):
        for shift in ("none", "input", "block"):
            for positions in ("learned", "rotary", "none"):
                fields = {
                    "targets": "posterior",
                    "steps": steps,
                    "header": header,
                    "token_shift": shift,
                    "positions": positions,
                }
                if positions == "learned":  # a table for the longest test
                    fields["position_table"] = {"rows": 50, "tokens": 153}[header]
                row = f"shift {shift}, positions {positions}"
                found.append(Variant(f"hmm {header}", row, "hmm", fields=fields))
    return Study(
        "filtering",
        "What makes a transformer filter",
        "Token shift, positions, header: which of them decides?",
        tuple(found),
    )


def recall(steps: int) -> Study:
    """Accuracy against the number of pairs, for memories of several sizes."""
    found = []
    for pairs in (4, 8, 16, 32, 64):
        size = max(64, 2 * pairs)
        mixed = [n for n in (4, 8, 16, 32, 64) if n < pairs]
        fields: dict[str, Any] = {
            "num_pairs": pairs,
            "num_keys": size,
            "num_values": size,
            "steps": steps,
            "until": "solved",
        }
        if mixed:
            fields["curriculum"] = "num_pairs=" + ",".join(map(str, [*mixed, pairs]))
            fields["curriculum_steps"] = steps // 2
        found.append(Variant("transformer", f"{pairs} pairs", "recall", fields=fields, x=pairs))
        for state in (16, 64):
            found.append(
                Variant(
                    f"mamba, state {state}",
                    f"{pairs} pairs",
                    "recall",
                    "mamba",
                    {**fields, "state": state},
                    x=pairs,
                )
            )
        found.append(Variant("lstm", f"{pairs} pairs", "recall", "lstm", fields, x=pairs))
    return Study(
        "recall",
        "Recall by pairs and size of the state",
        "How many pairs can each architecture keep?",
        tuple(found),
        axis="stored pairs",
    )


def paper_size(steps: int, lookup_steps: int, hmm_steps: int, token_steps: int) -> Study:
    """Models of the paper's size, on a budget that a CPU can afford. lookup_steps: of the one that
    has to build the look-up by itself, as many as two layers have; token_steps: of the header of
    tokens, three times as long as that of rows."""
    shared = {
        "optimizer": "muon",
        "lr": 3e-3,
        "muon_lr": 0.02,
        "batch_size": 64,
        "logit_scale": 8.0,
        "weight_decay": 0.0,
        "decay": "linear",
        "steps": steps,
        "evaluations": 20,
    }
    hmm = {**shared, "targets": "posterior", "logit_scale": 1.0, "steps": hmm_steps}
    shifted = {"token_shift": "input"}
    distinct = {**shared, **DISTINCT_FIRST, "positions": "rotary"}
    block = {"token_shift": "block", "positions": "none", "position_table": 0}
    return Study(
        "paper-size",
        "Models of the paper's size",
        "What do models of the paper's size do, and what is inside them?",
        (
            Variant("bijection", "6 x 192, token shift", "bijection", fields={**shared, **shifted}),
            Variant("bijection", "6 x 192", "bijection", fields=shared),
            Variant(
                "bijection", "6 x 192, rotary, distinct keys first", "bijection", fields=distinct
            ),
            Variant(
                "bijection",
                "6 x 192, rotary, distinct keys first, longer",
                "bijection",
                fields={**distinct, "steps": lookup_steps},
            ),
            Variant("hmm", "9 x 256, token shift", "hmm", fields={**hmm, **block}),
            Variant("hmm", "9 x 256", "hmm", fields={**hmm, "position_table": 50}),
            Variant(
                "hmm-tokens",
                "9 x 256",
                "hmm",
                fields={**hmm, "steps": token_steps, **TOKENS, **TOKEN_PLACES},
            ),
        ),
        preset="paper",
        seeds=2,
        opened=(
            ("bijection", "6 x 192, token shift"),
            ("bijection", "6 x 192"),
            ("bijection", "6 x 192, rotary, distinct keys first"),
            ("bijection", "6 x 192, rotary, distinct keys first, longer"),
            ("hmm", "9 x 256, token shift"),
            ("hmm", "9 x 256"),
            ("hmm-tokens", "9 x 256"),
        ),
    )
