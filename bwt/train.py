"""Training: sample -> model -> loss -> step, on fresh data, measured against exact Bayes.

`train(config, out)` starts a run, `resume(out)` continues one bit for bit.
"""

import json
import math
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bwt import distributed, env, evaluate, models, tasks
from bwt.config import TrainConfig
from bwt.evaluate import Evaluation
from bwt.optim import Optimizer
from bwt.progress import Progress
from bwt.rundir import RunDirectory, write_json
from bwt.schedule import Averaged, catch_signals, log_spaced, lr_factor
from bwt.tasks import Batch, Task

LOG_POINTS = 100  # lines of training loss in metrics.jsonl
EVAL_SEED = 1_000_003  # apart from the seeds of training data
EVAL_BATCH = 256


@dataclass(frozen=True)
class Result:
    run: RunDirectory
    step: int
    evaluation: Evaluation | None  # None if the run was interrupted
    signal: int | None = None  # that interrupted it


def build_model(config: TrainConfig, task: Task) -> nn.Module:
    """With weights that follow from the seed alone."""
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        return models.build_for(task, config.model, **config.model_options)


def load(path: str | Path, step: int | None = None, device: str | torch.device = "cpu"):
    """(task, model, config) of a run, with the weights of a step, by default the last one."""
    run = RunDirectory.open(path)
    config = TrainConfig.from_json(run.read_config())
    task = tasks.get(config.task, **config.task_options)
    model = build_model(config, task).to(device)
    run.fill(model, run.load_weights(step, device))
    return task, model.eval(), config


def predictor(model: nn.Module) -> Callable[[Batch], Tensor]:
    """A model as `evaluate` wants it: batch -> log-probabilities [B, P, O]."""

    def predict(batch: Batch) -> Tensor:
        with torch.inference_mode():
            logits = model(batch.tokens, batch.features, batch.positions)
            return logits.float().log_softmax(-1)

    return predict


def loss_of(logits: Tensor, batch: Batch, targets: str) -> Tensor:
    """Mean cross-entropy in nats."""
    wanted = batch.targets if targets == "sampled" else batch.posterior
    return functional.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten(0, 1))


@dataclass
class Trainer:
    config: TrainConfig
    run: RunDirectory
    device: torch.device
    say: Callable[[str], None]
    quiet: bool = False
    step: int = 0
    seconds: float = 0.0  # of training, without evaluations
    loss_sum: Tensor = field(init=False)  # since the last log line
    loss_count: int = 0

    def __post_init__(self) -> None:
        config = self.config
        self.task = tasks.get(config.task, **config.task_options)
        self.model = build_model(config, self.task).to(self.device)
        self.parameters = list(self.model.parameters())
        distributed.broadcast([p.detach() for p in self.parameters])
        self.optimizer = Optimizer(
            self.model,
            name=config.optimizer,
            lr=config.lr,
            muon_lr=config.muon_lr,
            betas=(config.beta1, config.beta2),
            weight_decay=config.weight_decay,
        )
        self.averaged = Averaged(self.parameters, config)
        self.generator = torch.Generator(self.device).manual_seed(config.seed)
        self.loss_sum = torch.zeros((), device=self.device)
        if config.compile != "off":
            mode = "reduce-overhead" if config.compile == "graphs" else None
            self.model.compile(mode=mode)

    def autocast(self):
        if self.config.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    @property
    def main(self) -> bool:
        """One process writes and speaks."""
        return distributed.rank() == 0

    def sample(self) -> Batch:
        config = self.config
        batch = self.task.sample(
            config.batch_size * distributed.world_size(),
            generator=self.generator,
            device=self.device,
            posterior=config.targets == "posterior",
        )
        return batch._replace(
            tokens=distributed.part(batch.tokens),
            features=distributed.part(batch.features),
            targets=distributed.part(batch.targets),
            posterior=distributed.part(batch.posterior),
        )

    def update(self, stop: bool) -> bool:
        """One step; whether any process wants to stop after it."""
        batch = self.sample()
        with self.autocast():
            logits = self.model(batch.tokens, batch.features, batch.positions)
        loss = loss_of(logits, batch, self.config.targets)
        for p in self.parameters:
            p.grad = None
        loss.backward()
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if distributed.world_size() > 1:
            flags = (loss.detach().view(1), loss.new_full((1,), float(stop)))
            loss, stops = distributed.reduce(gradients, *flags)
            # All processes stop after the same step, or one would wait for another for ever.
            loss, stop = loss / distributed.world_size(), stops.item() > 0
        if self.config.clip:
            nn.utils.clip_grad_norm_(self.parameters, self.config.clip, foreach=True)
        self.optimizer.step(lr_factor(self.step, self.config))
        self.step += 1
        self.averaged.update(self.step)
        self.loss_sum += loss.detach()
        self.loss_count += 1
        return stop

    def evaluate(self) -> Evaluation:
        self.model.eval()
        with self.averaged.swapped_in():
            found = evaluate.evaluate(
                predictor(self.model),
                self.task,
                num_sequences=self.config.eval_sequences,
                batch_size=min(EVAL_BATCH, self.config.eval_sequences),
                seed=EVAL_SEED + self.config.seed,
                device=self.device,
            )
        self.model.train()
        return found

    def exact_entropy(self) -> float:
        """Mean bits of the exact posterior: what a perfect model's loss would be."""
        generator = torch.Generator(self.device).manual_seed(EVAL_SEED + self.config.seed)
        size = min(EVAL_BATCH, self.config.eval_sequences)
        batch = self.task.sample(size, generator=generator, device=self.device)
        return torch.special.entr(batch.posterior.double()).sum(-1).mean().item() / math.log(2)

    def save(self) -> None:
        with self.averaged.swapped_in():
            weights = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        names = list(weights)
        trained = dict(zip(names, self.parameters, strict=True))
        mean = dict(zip(names, self.averaged.mean, strict=False))
        state = {
            **{f"weights/{name}": p for name, p in trained.items()},
            **{f"mean/{name}": p for name, p in mean.items()},
            **{f"optimizer/{key}": value for key, value in self.optimizer.state().items()},
            "generator": self.generator.get_state(),
            "loss_sum": self.loss_sum,
            "counts": torch.tensor([self.loss_count, self.averaged.count]),
            "seconds": torch.tensor(self.seconds, dtype=torch.float64),
        }
        self.run.save(self.step, weights, state)

    def restore(self) -> None:
        self.step, state = self.run.load_state()
        groups: dict[str, dict[str, Tensor]] = {"weights": {}, "mean": {}, "optimizer": {}}
        for key, value in state.items():
            group, _, name = key.partition("/")
            if name:
                groups[group][name] = value.to(self.device)
        self.run.fill(self.model, groups["weights"])
        self.averaged.mean = [
            groups["mean"][name] for name, _ in self.model.named_parameters() if groups["mean"]
        ]
        self.optimizer.load(groups["optimizer"])
        self.generator.set_state(state["generator"])
        self.loss_sum = state["loss_sum"].to(self.device)
        self.loss_count, self.averaged.count = state["counts"].tolist()
        self.seconds = state["seconds"].item()

    def loss_bits(self) -> float:
        """Mean training loss since the last log line."""
        return self.loss_sum.item() / self.loss_count / math.log(2)

    def log(self, exact: float, found: Evaluation | None) -> None:
        loss = self.loss_bits()
        row: dict[str, Any] = {
            "step": self.step,
            "seconds": round(self.seconds, 3),
            "sequences": self.step * self.config.batch_size * distributed.world_size(),
            "loss": loss,
            "excess": loss - exact,
        }
        if found is not None:
            row["evaluation"] = means(found)
        self.loss_sum.zero_()
        self.loss_count = 0
        self.run.append_metrics(row)

    def loop(self, caught: list[int]) -> Result:
        """Evaluates and saves at chosen steps, the last one included; between them, steps."""
        config = self.config
        evaluations = log_spaced(config.steps, config.evaluations, first=min(10, config.steps))
        logs = log_spaced(config.steps, LOG_POINTS) | evaluations
        exact = self.exact_entropy()
        progress = Progress(config.steps, self.step, quiet=self.quiet or not self.main)
        found, stop = None, False
        tokens = config.batch_size * distributed.world_size() * self.task.seq_len
        start = time.perf_counter()
        while self.step < config.steps and not stop:
            stop = self.update(bool(caught))
            if self.step in logs:
                self.loss_sum.item()  # waits for the device
                self.seconds += time.perf_counter() - start
                found = self.checkpoint(progress, exact, self.step in evaluations)
                start = time.perf_counter()
            elif progress.due():
                excess = self.loss_bits() - exact
                progress.draw(self.step, f"excess {excess:.4f} bits", tokens)
        self.seconds += time.perf_counter() - start
        progress.clear()
        if self.step < config.steps:
            if self.main:
                self.save()
            distributed.wait()
            return Result(self.run, self.step, None, caught[0] if caught else signal.SIGTERM)
        return Result(self.run, self.step, self.finish(found))

    def checkpoint(self, progress: Progress, exact: float, evaluating: bool):
        found = None
        if self.main:
            found = self.evaluate() if evaluating else None
            self.log(exact, found)
            if evaluating:
                self.save()
                progress.clear()
                self.say(_line(self.step, self.seconds, found))
        else:
            self.loss_sum.zero_()
            self.loss_count = 0
        if evaluating:
            distributed.wait()
        return found

    def finish(self, found: Evaluation | None) -> Evaluation | None:
        if not self.main:
            return None
        if found is None:  # resumed after its last step
            found = self.evaluate()
        write_json(self.run.path / "evaluation.json", json.loads(found.to_json()))
        return found


def means(found: Evaluation) -> dict[str, float]:
    return {name: estimate.mean for name, estimate in found.model.overall.items()}


def _line(step: int, seconds: float, found: Evaluation) -> str:
    overall = means(found)
    return (
        f"step {step:>7}  {seconds:7.1f} s  entropy_mae {overall['entropy_mae']:.5f}  "
        f"kl {overall['kl']:.5f} bits"
    )


def _set_threads(config: TrainConfig) -> None:
    if config.threads:
        torch.set_num_threads(config.threads)


def train(
    config: TrainConfig,
    out: str | Path,
    *,
    say: Callable[[str], None] = lambda text: None,
    quiet: bool = False,
) -> Result:
    """Trains a new run in the directory `out`, which must not hold anything yet."""
    _set_threads(config)
    device = distributed.local_device(config.device)
    with distributed.joined(device):
        trainer_run = RunDirectory(out)
        if distributed.rank() == 0:
            trainer_run = RunDirectory.create(out)
        distributed.wait()
        trainer = Trainer(config, trainer_run, device, say, quiet)
        if trainer.main:
            say(statement(trainer.task, trainer.model))
            write_json(trainer_run.path / "config.json", config.to_json())
            write_json(trainer_run.path / "environment.json", env.collect())
        return _run(trainer)


def resume(
    out: str | Path, *, say: Callable[[str], None] = lambda text: None, quiet: bool = False
) -> Result:
    """Continues a run from its last saved step, as if it had never stopped."""
    run = RunDirectory.open(out)
    config = TrainConfig.from_json(run.read_config())
    _set_threads(config)
    device = distributed.local_device(config.device)
    with distributed.joined(device):
        trainer = Trainer(config, run, device, say, quiet)
        trainer.restore()
        distributed.wait()
        if trainer.main:
            run.forget_after(trainer.step)
            say(f"resuming {run.path} at step {trainer.step} of {config.steps}")
        return _run(trainer)


def _run(trainer: Trainer) -> Result:
    caught: list[int] = []
    with catch_signals(caught):
        return trainer.loop(caught)


def statement(task: Task, model: nn.Module) -> str:
    """Whether this model could learn this task by heart."""
    bits = 32 * model.num_parameters
    impossible = math.log2(bits) < task.hypothesis_bits
    conclusion = "it cannot learn them by heart" if impossible else "IT MIGHT LEARN THEM BY HEART"
    return (
        f"{task.describe()}\nThis model has {model.num_parameters:,} parameters: its weights hold "
        f"{bits:,} = 2^{math.log2(bits):.1f} bits, the task has 2^{task.hypothesis_bits:.1f} "
        f"hypotheses: {conclusion}."
    )
