"""The loop of training: sample -> model -> loss -> step, on fresh data, measured against exact
Bayes at chosen steps."""

import dataclasses
import math
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from bwt import evaluate, tasks
from bwt.evaluate import NotProbabilities, predictor
from bwt.progress import Progress
from bwt.records.evaluation import Evaluation, Evaluations
from bwt.records.metrics import MetricsRow
from bwt.runs import checkpoints
from bwt.runs.config import TrainConfig
from bwt.runs.directory import RunDirectory
from bwt.runs.files import write_json
from bwt.runs.loading import build_model
from bwt.tasks import Batch
from bwt.train import distributed, state
from bwt.train.averaging import Averaged
from bwt.train.curriculum import curriculum
from bwt.train.divergence import LOOK_EVERY, Divergence, Watch, all_finite
from bwt.train.freezing import Frozen
from bwt.train.optim import Optimizer
from bwt.train.penalty import KeyPenalty
from bwt.train.plateau import Plateau
from bwt.train.schedule import log_spaced, lr_factor

LOG_POINTS = 100  # lines of training loss in metrics.jsonl
WILD = "what the model predicts is not finite"


@dataclass(frozen=True)
class Result:
    run: RunDirectory
    step: int
    evaluation: Evaluation | None  # None if the run was interrupted, or diverged
    signal: int | None = None  # that interrupted it
    divergence: Divergence | None = None


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
        self.easier = curriculum(config, self.task)
        self.plateau = Plateau(config.steps) if config.until == "plateau" else None
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
        weight = config.key_penalty
        self.penalty = KeyPenalty(self.task, weight, self.device) if weight else None
        self.frozen = Frozen(self.model, config)
        self.generator = distributed.stream(config.seed, distributed.rank(), self.device)
        self.agreement = distributed.Agreement()
        self.loss_sum = torch.zeros((), device=self.device)
        alone = self.device.type == "cpu" and distributed.world_size() == 1
        self.watch = Watch(self.task.num_outcomes, every=1 if alone else LOOK_EVERY)
        self.divergence: Divergence | None = None
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
        """This process's part of a step."""
        task = self.task
        if self.step < self.config.curriculum_steps:
            task = self.easier[self.step % len(self.easier)]
        return task.sample(
            self.config.batch_size,
            generator=self.generator,
            device=self.device,
            posterior=self.config.targets == "posterior",
        )

    def losses(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """The cross-entropy, which is what is logged, and what is minimised beside it, if any."""
        penalty = self.penalty
        watching = penalty.watching(self.model) if penalty else nullcontext()
        with watching as trace, self.autocast():
            logits = self.model(batch.tokens, batch.features, batch.positions)
        loss = loss_of(logits, batch, self.config.targets)
        return loss, penalty(trace, batch) if penalty else None

    def update(self, stop: bool) -> bool:
        """One step; whether all stop after it, as one process has wished (of several: in time for
        the step before). The host does not wait for the device."""
        stop = self.agreement.any(stop)
        batch = self.sample()
        loss, added = self.losses(batch)
        for p in self.parameters:
            p.grad = None
        (loss if added is None else loss + added).backward()
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if distributed.world_size() > 1:
            loss = distributed.reduce(gradients, loss)
        holding = self.frozen.applies(self.step)
        if holding:
            self.frozen.hold(self.optimizer.parts)
        if self.config.clip:
            nn.utils.clip_grad_norm_(self.parameters, self.config.clip, foreach=True)
        self.optimizer.step(lr_factor(self.step, self.config, self.plateau))
        self.step += 1
        self.averaged.update(self.step)
        if holding:
            self.frozen.put_back(self.averaged.mean)
        self.loss_sum += loss.detach()
        self.loss_count += 1
        self.watch.add(loss)
        return stop

    def evaluate(self) -> Evaluation | None:
        """None if what the model predicts is not finite."""
        self.model.eval()
        try:
            with self.averaged.swapped_in():
                return evaluate.evaluate(
                    predictor(self.model),
                    self.task,
                    num_sequences=self.config.eval_sequences,
                    batch_size=min(evaluate.BATCH, self.config.eval_sequences),
                    seed=evaluate.SEED + self.config.seed,
                    device=self.device,
                )
        except NotProbabilities:
            return None
        finally:
            self.model.train()

    @property
    def last(self) -> int:
        """The last step, as far as is known."""
        return self.config.steps if self.plateau is None else self.plateau.last

    def evaluations(self) -> set[int]:
        """Steps that are evaluated and saved, beside the last one."""
        config = self.config
        if self.plateau is not None:
            return self.plateau.evaluations()
        steps = log_spaced(config.steps, config.evaluations, first=min(10, config.steps))
        return steps | {config.freeze_at}  # what is gained after it needs what was there

    @property
    def stopped(self) -> bool:
        return self.divergence is not None and self.config.on_divergence == "stop"

    def look(self) -> None:
        self.note(self.watch.look(self.step))

    def note(self, divergence: Divergence | None) -> bool:
        """Whether any process has found that the run diverged; the first time counts."""
        diverged = distributed.agree(divergence is not None)
        if diverged and self.divergence is None:
            divergence = divergence or Divergence(self.step, "another process says so")
            self.divergence = dataclasses.replace(divergence, checkpoint=self.run.last_step())
            if self.main and not self.stopped:
                self.say(f"{self.divergence}; going on, as asked")
        return diverged

    def exact_entropy(self) -> float:
        """Mean bits of the exact posterior: what a perfect model's loss would be."""
        generator = torch.Generator(self.device).manual_seed(evaluate.SEED + self.config.seed)
        size = min(evaluate.BATCH, self.config.eval_sequences)
        batch = self.task.sample(size, generator=generator, device=self.device)
        return torch.special.entr(batch.posterior.double()).sum(-1).mean().item() / math.log(2)

    def save(self) -> bool:
        """One process writes, and all have to call: each has its own state of the data. False if
        there is nothing worth saving: then the last checkpoint stays the last one."""
        kept = (*self.parameters, *self.averaged.mean, *self.optimizer.state().values())
        bad = Divergence(self.step, "the weights are not finite")
        if self.note(None if all_finite(kept) else bad):
            return False
        generators = distributed.gather(self.generator.get_state())
        if not self.main:
            return True
        checkpoints.save(
            self.run, self.step, state.weights_of(self), state.state_of(self, generators)
        )
        return True

    def loss_bits(self) -> float:
        """Mean training loss since the last log line."""
        return self.loss_sum.item() / self.loss_count / math.log(2)

    def log(self, exact: float, evaluation: Evaluation | None) -> None:
        loss = self.loss_bits()
        row = MetricsRow(
            step=self.step,
            seconds=round(self.seconds, 3),
            sequences=self.step * self.config.batch_size * distributed.world_size(),
            loss=loss,
            excess=loss - exact,
            evaluation=None if evaluation is None else means(evaluation),
        )
        self.loss_sum.zero_()
        self.loss_count = 0
        self.run.append_metrics(row)

    def loop(self, caught: list[int]) -> Result:
        """Evaluates and saves at chosen steps, the last one included; between them, steps."""
        config = self.config
        evaluations = self.evaluations()
        logs = log_spaced(config.steps, LOG_POINTS) | evaluations
        exact = self.exact_entropy()
        progress = Progress(config.steps, self.step, quiet=self.quiet or not self.main)
        evaluation, stop = None, False
        tokens = config.batch_size * distributed.world_size() * self.task.seq_len
        start = time.perf_counter()
        while self.step < self.last and not stop and not self.stopped:
            stop = self.update(bool(caught))
            evaluating = self.step in evaluations or self.step == self.last
            logging = self.step in logs or evaluating
            if logging or self.watch.due():
                self.look()  # waits for the device
            if logging and not self.stopped:
                self.seconds += time.perf_counter() - start
                evaluation = self.checkpoint(progress, exact, evaluating)
                start = time.perf_counter()
            elif progress.due():
                excess = self.loss_bits() - exact
                progress.draw(self.step, f"excess {excess:.4f} bits", tokens)
        self.agreement.answer()
        self.seconds += time.perf_counter() - start
        progress.clear()
        if self.step < self.last and not self.stopped and self.save():
            distributed.wait()
            return Result(self.run, self.step, None, caught[0] if caught else signal.SIGTERM)
        return self.finish(evaluation)

    def checkpoint(self, progress: Progress, exact: float, evaluating: bool):
        evaluation = None
        if self.main:
            evaluation = self.evaluate() if evaluating else None
            self.log(exact, evaluation)
        else:
            self.loss_sum.zero_()
            self.loss_count = 0
        if not evaluating:
            return None
        self.seek_plateau(evaluation)
        bad = Divergence(self.step, WILD)
        if not self.note(bad if self.main and evaluation is None else None) and self.save():
            if self.main:
                progress.clear()
                self.say(_line(self.step, self.seconds, evaluation))
            distributed.wait()
        return evaluation

    def seek_plateau(self, evaluation: Evaluation | None) -> None:
        """Whether the run comes to its end now; one process has the evaluation, and all agree."""
        if self.plateau is None:
            return
        if evaluation is not None:
            self.plateau.see(self.step, evaluation)
        if distributed.agree(self.main and self.plateau.reached(self.step)):
            self.plateau.ending = self.step

    def finish(self, evaluation: Evaluation | None) -> Result:
        """After the last step, or after the run has diverged."""
        whole = self.step == self.last and not self.stopped
        if self.main and whole:
            evaluation = evaluation or self.evaluate()  # None: resumed after its last step
        if distributed.agree(self.main and whole and evaluation is not None):
            if self.main:
                write_json(self.run.path / "evaluation.json", Evaluations(evaluation).to_json())
            return Result(self.run, self.step, evaluation)
        self.note(Divergence(self.step, WILD))
        if self.main:
            write_json(self.run.path / "diverged.json", dataclasses.asdict(self.divergence))
        return Result(self.run, self.step, None, divergence=self.divergence)


def means(evaluation: Evaluation) -> dict[str, float]:
    return {name: estimate.mean for name, estimate in evaluation.model.overall.items()}


def _line(step: int, seconds: float, evaluation: Evaluation) -> str:
    overall = means(evaluation)
    return (
        f"step {step:>7}  {seconds:7.1f} s  entropy_mae {overall['entropy_mae']:.5f}  "
        f"kl {overall['kl']:.5f} bits"
    )
