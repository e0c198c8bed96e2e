"""A scale on which everything is run and nothing is learned."""

from bwt.reproduce.scales import Scale
from bwt.reproduce.studies import Study, Variant, rows

TASKS = {
    "bijection": {"num_symbols": 4, "replacement": True},
    "hmm": {"length": 4, "targets": "posterior"},
    "recall": {"num_pairs": 3, "num_queries": 2, "num_keys": 6, "num_values": 6},
}
AMONG = {
    "bijection": ("transformer", "mlp-position"),
    "hmm": ("transformer", "lstm", "mlp"),
    "recall": ("transformer", "lstm"),
}
ARCHITECTURE = Study(
    "architecture",
    "Architectures and tasks",
    "How far is each architecture from exact Bayes?",
    tuple(x for task in TASKS for x in rows(task, task, AMONG[task], **TASKS[task])),
    tuned=True,
    opened=(("bijection", "transformer"),),
)
SHAPE = Study(
    "shape",
    "Heads",
    "How many heads does filtering need?",
    tuple(
        Variant("hmm", f"{n} heads", "hmm", fields={**TASKS["hmm"], "heads": n}, x=n)
        for n in (1, 2)
    ),
    seeds=1,
    axis="heads",
)
TINY = Scale(
    "tiny",
    "quick",
    seeds=2,
    studies=(ARCHITECTURE, SHAPE),
    about="for tests",
    rates=(1.0, 3.0),
    trial=0.5,
    settings={"evaluations": 2, "eval_sequences": 16, "batch_size": 4, "steps": 4},
    sequences=16,
)
