"""The configuration of a training run: every field is a flag of `bwt train`."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from bwt.options import build, check_options, option


@dataclass(frozen=True)
class TrainConfig:
    """Fields without help are set by the command from other flags."""

    task: str
    model: str = "transformer"
    task_options: dict[str, Any] = field(default_factory=dict)
    model_options: dict[str, Any] = field(default_factory=dict)
    targets: str = option(
        "sampled",
        "what is learned from: draws, as a language model would, or the exact posterior itself",
        ("sampled", "posterior"),
    )
    steps: int = option(2000, "training steps", minimum=1)
    batch_size: int = option(64, "fresh sequences in each step, for each process", minimum=1)
    optimizer: str = option(
        "adamw", "muon: for the matrices in the blocks, adamw for the rest", ("adamw", "muon")
    )
    lr: float = option(1e-3, "peak learning rate of adamw", minimum=0)
    muon_lr: float = option(0.01, "peak learning rate of muon", minimum=0)
    beta1: float = option(0.9, "adamw: memory of the gradient", minimum=0, below=1)
    beta2: float = option(0.99, "adamw: memory of its square", minimum=0, below=1)
    weight_decay: float = option(0.0, "adamw: decay of the weights", minimum=0)
    clip: float = option(1.0, "largest norm of the gradient; 0: no limit", minimum=0)
    warmup: float = option(
        0.02, "fraction of the steps in which the learning rate rises", minimum=0, below=1
    )
    decay: str = option(
        "linear", "how the learning rate falls to 0 after that", ("linear", "cosine", "none")
    )
    average: float = option(
        0.1, "evaluate the mean weights over this last fraction of the steps", minimum=0, below=1
    )
    ema: float = option(
        0.0, "evaluate an exponential average with this memory instead (0.999)", minimum=0, below=1
    )
    until: str = option(
        "steps",
        "plateau: hold the learning rate after its rise, until a doubling of the steps lowers the "
        "KL by less than a tenth, then let it fall to 0; --steps is the most it may take. solved: "
        "likewise, or until the KL is a hundredth of that of a model that has learned nothing",
        ("steps", "plateau", "solved"),
    )
    curriculum: str = option(
        "",
        "at first another value of an option of the task, or several in turn: replacement=false, "
        "num_pairs=4,8,16",
    )
    curriculum_steps: int = option(0, "for how many steps", minimum=0)
    key_penalty: float = option(
        0.0,
        "weight of the mean squared cosine of the keys of different addresses (without their "
        "mean) in what is minimised, transformer only; negative: rewards keys that are aligned",
    )
    freeze: str = option(
        "none",
        "what stays as it is from step freeze_at on. routing: the query and key rows of every "
        "blocks.*.attn.qkv.weight; content: its value rows, attn.proj and the MLP of every block",
        ("none", "routing", "content"),
    )
    freeze_at: int = option(0, "the step from which it stays; 0: from the start")
    evaluations: int = option(
        12,
        "evaluations with a checkpoint, on a log scale of steps",
        minimum=1,
    )
    eval_sequences: int = option(2048, "sequences in each evaluation", minimum=2)
    seed: int = option(0, "of the weights and of the data")
    threads: int = option(
        0, "CPU threads; 0: as many as a step has work for, one for the quick presets", minimum=0
    )
    device: str = option("auto", "auto, cpu, or cuda")
    precision: str = option(
        "fp32",
        "of what the model computes; weights are trained in float32. tf32: products on a GPU; "
        "bf16: everything inside the model",
        ("fp32", "tf32", "bf16"),
    )
    graph: str = option(
        "auto",
        "on a GPU: capture a whole step as one CUDA graph and replay it; auto: where that can be",
        ("auto", "on", "off"),
    )
    compile: str = option(
        "off",
        "torch.compile; graphs: with CUDA graphs. Costs 10-20 s at the start and gains 10-20%",
        ("off", "on", "graphs"),
    )
    on_divergence: str = option(
        "stop",
        "when the loss is not finite, or far above that of a uniform guess for long",
        ("stop", "continue"),
    )
    extended: list[int] = field(default_factory=list)  # steps at which it had ended before

    def __post_init__(self) -> None:
        for name in ("task", "model"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} must be a name, got {getattr(self, name)!r}")
        for name in ("task_options", "model_options"):
            if not isinstance(getattr(self, name), dict):
                raise ValueError(f"{name} must be names and values, got {getattr(self, name)!r}")
        check_options(self)
        if not isinstance(self.extended, list) or not all(type(x) is int for x in self.extended):
            raise ValueError(f"extended must be a list of steps, got {self.extended!r}")
        if self.device == "cpu" and self.compile == "graphs":
            raise ValueError("compile graphs means CUDA graphs and needs a GPU")
        if bool(self.curriculum) != bool(self.curriculum_steps):
            raise ValueError("curriculum and curriculum_steps go together: give both or neither")
        if self.freeze == "none" and self.freeze_at:
            raise ValueError(f"freeze_at {self.freeze_at}: say what to freeze then (freeze)")
        if self.freeze_at >= self.steps:
            raise ValueError(
                f"freeze_at must be below the {self.steps} steps of the run, got {self.freeze_at}"
            )
        if self.key_penalty:
            self._check_key_penalty()

    def _check_key_penalty(self) -> None:
        if self.model != "transformer":
            raise ValueError(
                f"key_penalty needs the keys of a transformer, and {self.model} has none"
            )
        if self.model_options.get("keys") == "collapsed":
            raise ValueError("key_penalty needs keys that differ, and collapsed ones are all alike")
        if self.compile != "off":
            raise ValueError("key_penalty looks into the model and needs compile off")

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "TrainConfig":
        if "task" not in values:
            raise ValueError("names no task")
        return build(cls, values, "configuration")
