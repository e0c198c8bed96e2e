"""A run: what it trains on, how it is measured against exact Bayes, and what it leaves behind."""

import dataclasses
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bwt import evaluate, streams, tasks
from bwt.evaluate import NotProbabilities, predictor
from bwt.progress import duration
from bwt.records.evaluation import Evaluation, Evaluations
from bwt.records.metrics import MetricsRow
from bwt.runs import checkpoints
from bwt.runs.config import TrainConfig
from bwt.runs.directory import RunDirectory
from bwt.runs.files import write_json
from bwt.runs.loading import build_model
from bwt.tasks import Batch, Task
from bwt.train import distributed, state
from bwt.train.curriculum import curriculum
from bwt.train.divergence import Divergence, Watch, all_finite
from bwt.train.penalty import KeyPenalty
from bwt.train.plateau import Plateau
from bwt.train.program import Program, losses_of
from bwt.train.schedule import log_spaced

LOG_POINTS = 100  # lines of training loss in metrics.jsonl
WILD = "what the model predicts is not finite"


@dataclass(frozen=True)
class Result:
    run: RunDirectory
    step: int
    evaluation: Evaluation | None  # None if the run was interrupted, or diverged
    signal: int | None = None  # that interrupted it
    divergence: Divergence | None = None
    seconds: float = 0.0  # of training, without evaluations


@dataclass
class Trainer:
    config: TrainConfig
    run: RunDirectory
    device: torch.device
    say: Callable[[str], None]
    quiet: bool = False
    curve: bool = False  # drawn in the terminal, instead of a bar
    step: int = 0
    seconds: float = 0.0  # of training, without evaluations
    loss_count: int = 0  # since the last log line
    program: Program = field(init=False)  # what an update computes, here or with other runs
    row: int = field(init=False)  # of this run among those of the program

    def __post_init__(self) -> None:
        config = self.config
        self.task = tasks.get(config.task, **config.task_options)
        self.easier = curriculum(config, self.task)
        self.plateau = Plateau.of(config)
        self.model = build_model(config, self.task).to(self.device)
        self.parameters = list(self.model.parameters())
        distributed.broadcast([p.detach() for p in self.parameters])
        weight = config.key_penalty
        self.penalty = KeyPenalty(self.task, weight, self.device) if weight else None
        self.generator = streams.generator(
            "training", config.seed, self.device, rank=distributed.rank()
        )
        self.agreement = distributed.Agreement()
        self.expected: Tensor | None = None  # see `expect`
        self.divergence: Divergence | None = None
        self.ended = False  # others of its program may go on
        Program([self])
        if config.compile != "off":
            mode = "reduce-overhead" if config.compile == "graphs" else None
            self.model.compile(mode=mode)

    def join(self, program: Program, row: int) -> None:
        """Updates are computed by this program from now on."""
        self.program, self.row = program, row
        self.watch = Watch(self.task.num_outcomes, program.losses[row])

    @property
    def sums(self) -> Tensor:
        """Loss, exact entropy and its standard error [3], summed since the last log line."""
        return self.program.sums[self.row]

    @property
    def main(self) -> bool:
        """One process writes and speaks."""
        return distributed.rank() == 0

    def sample(self) -> Batch:
        """This process's part of a step."""
        return self.draw(self.task_at(self.step), posterior=self.config.targets == "posterior")

    def expect(self) -> None:
        """Measure what a perfect model's loss would be, unless each batch tells it: entropies
        [tasks, 2] of the curriculum's tasks and, last, of the task itself, with standard errors."""
        if self.expected is None and self.config.targets == "sampled":
            pairs = [
                evaluate.expected_entropy(task, seed=self.config.seed, device=self.device)
                for task in (*self.easier, self.task)
            ]
            self.expected = torch.tensor(pairs, device=self.device) * math.log(2)

    def easier_at(self, step: int) -> int | None:
        """Which task of the curriculum, if it lasts so long."""
        return step % len(self.easier) if step < self.config.curriculum_steps else None

    def task_at(self, step: int) -> Task:
        """What the step-th update (from 0) learns from."""
        easier = self.easier_at(step)
        return self.task if easier is None else self.easier[easier]

    def draw(self, task: Task, *, posterior: bool = False) -> Batch:
        return task.sample(
            self.config.batch_size,
            generator=self.generator,
            device=self.device,
            posterior=posterior,
        )

    def flops(self) -> float:
        """Return about how many floating-point operations a step takes in this process: six for
        each parameter and token."""
        return (
            6.0
            * sum(p.numel() for p in self.parameters)
            * self.task.seq_len
            * (self.config.batch_size)
        )

    def losses(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """[1]: the cross-entropy, which is what is logged, and what is minimised beside it, if
        anything."""
        penalty = self.penalty
        watching = penalty.watching(self.model) if penalty else nullcontext({})
        with watching as trace:
            logits = self.model(batch.tokens, batch.features, batch.positions)
        loss = losses_of(logits, batch, self.config.targets)
        return loss, penalty(trace, batch) if penalty else None

    def update(self, stop: bool) -> bool:
        """One step; whether all stop after it, as one process has wished (of several: in time for
        the step before). The host does not wait for the device."""
        stop = self.agreement.any(stop)
        self.program.step()
        return stop

    def evaluate(self) -> Evaluation | None:
        """None if what the model predicts is not finite."""
        program = self.program
        best = program.averaged.best(self.step)
        self.model.eval()
        try:
            with program.weights.pointing(self.model, self.row, best):
                return evaluate.evaluate(
                    predictor(self.model),
                    self.task,
                    num_sequences=self.config.eval_sequences,
                    batch_size=min(evaluate.BATCH, self.config.eval_sequences),
                    seed=self.config.seed,
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

    def save(self) -> bool:
        """One process writes, and all have to call: each has its own state of the data. False if
        there is nothing worth saving: then the last checkpoint stays the last one."""
        bad = Divergence(self.step, "the weights are not finite")
        if self.note(None if all_finite(state.kept(self)) else bad):
            return False
        generators = distributed.gather(self.generator.get_state())
        if not self.main:
            return True
        checkpoints.save(
            self.run, self.step, state.weights_of(self), state.state_of(self, generators)
        )
        return True

    def loss_bits(self) -> tuple[float, float, float]:
        """Return the mean training loss since the last log line, its excess over the entropy of
        the exact posteriors, and the standard error of that entropy."""
        loss, exact, error = (self.sums / self.loss_count / math.log(2)).tolist()
        return loss, loss - exact, error

    def log(self, evaluation: Evaluation | None) -> None:
        loss, excess, error = self.loss_bits()
        row = MetricsRow(
            step=self.step,
            seconds=round(self.seconds, 3),
            sequences=self.step * self.config.batch_size * distributed.world_size(),
            loss=loss,
            excess=excess,
            excess_se=error,
            evaluation=None if evaluation is None else means(evaluation),
        )
        self.run.append_metrics(row)

    def logs(self) -> set[int]:
        """Steps with a line in metrics.jsonl, beside the last one."""
        return log_spaced(self.config.steps, LOG_POINTS) | self.evaluations()

    def checkpoint(self, evaluating: bool) -> Evaluation | None:
        """A line in metrics.jsonl and, when evaluating, an evaluation and a checkpoint."""
        evaluation = None
        if self.main:
            evaluation = self.evaluate() if evaluating else None
            self.log(evaluation)
        self.sums.zero_()
        self.loss_count = 0
        if not evaluating:
            return None
        self.seek_plateau(evaluation)
        bad = Divergence(self.step, WILD)
        if not self.note(bad if self.main and evaluation is None else None) and self.save():
            if self.main and evaluation is not None:
                self.say(line(self.step, self.last, self.seconds, evaluation))
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
            self.program.reschedule()

    def finish(self, evaluation: Evaluation | None) -> Result:
        """After the last step, or after the run has diverged."""
        self.ended = True
        whole = self.step == self.last and not self.stopped
        if self.main and whole:
            evaluation = evaluation or self.evaluate()  # None: resumed after its last step
        if distributed.agree(self.main and whole and evaluation is not None):
            if self.main:
                write_json(self.run.path / "evaluation.json", Evaluations(evaluation).to_json())
            return Result(self.run, self.step, evaluation, seconds=self.seconds)
        self.note(Divergence(self.step, WILD))
        if self.main and self.divergence is not None:
            write_json(self.run.path / "diverged.json", dataclasses.asdict(self.divergence))
        return Result(self.run, self.step, None, divergence=self.divergence)


def means(evaluation: Evaluation) -> dict[str, float]:
    return {name: estimate.mean for name, estimate in evaluation.model.overall.items()}


def line(step: int, last: int, seconds: float, evaluation: Evaluation) -> str:
    overall = means(evaluation)
    rate = step / max(seconds, 1e-9)
    return (
        f"step {step:>7}  {seconds:7.1f} s  entropy_mae {overall['entropy_mae']:.5f}  "
        f"kl {overall['kl']:.5f} bits  ({rate:.1f} steps/s, {duration((last - step) / rate)} left)"
    )
