"""A training run: a step, its directory, and what is recorded, evaluated and saved on the way."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from bwt import evaluate
from bwt.evaluate import NotProbabilities, predictor
from bwt.progress import duration
from bwt.records.evaluation import Evaluation, Evaluations
from bwt.records.metrics import MetricsRow
from bwt.runs import checkpoints
from bwt.runs.config import TrainConfig
from bwt.runs.directory import RunDirectory
from bwt.runs.files import RunError, write_json
from bwt.train import distributed
from bwt.train.divergence import Divergence, DivergenceCheck, all_finite
from bwt.train.schedule import BLOCK, log_spaced
from bwt.train.step import TrainStep

LOG_POINTS = 100  # lines of training loss in metrics.jsonl
NON_FINITE = "the model's predictions are not finite"


@dataclass(frozen=True)
class Result:
    run: RunDirectory
    step: int
    evaluation: Evaluation | None  # None if the run was interrupted, or diverged
    signal: int | None = None  # that interrupted it
    divergence: Divergence | None = None
    seconds: float = 0.0  # of training, without evaluations


class Run:
    """One process of several writes files and messages; all call the same methods."""

    def __init__(
        self,
        directory: RunDirectory,
        config: TrainConfig,
        step: TrainStep,
        say: Callable[[str], None] = lambda text: None,
    ):
        self.directory, self.config, self.step, self.say = directory, config, step, say
        self.main = distributed.rank() == 0
        self.seconds = 0.0  # of training, without evaluations
        self.logged = 0  # the step of the last log line
        self.excess = math.nan  # bits of the training loss above the exact entropy, since then
        self.evaluation: Evaluation | None = None  # the last one
        self.check = DivergenceCheck(step.task.num_outcomes, step.losses)
        self.divergence: Divergence | None = None
        self.evaluations = self._evaluations()
        self.logs = log_spaced(config.steps, LOG_POINTS) | self.evaluations
        # Reading a loss waits for a device, and of several processes for the others.
        self.reads_every_step = step.device.type == "cpu" and distributed.world_size() == 1

    def _evaluations(self) -> set[int]:
        """Return the steps that are evaluated and saved, besides the last one."""
        config, plateau = self.config, self.step.plateau
        if plateau is not None:
            return plateau.evaluations()
        steps = log_spaced(config.steps, config.evaluations, first=min(10, config.steps))
        return steps | {config.freeze_at}  # what is gained after it is compared with it

    @property
    def last(self) -> int:
        """The last step, as far as is known."""
        plateau = self.step.plateau
        return self.config.steps if plateau is None else plateau.last

    @property
    def ended(self) -> bool:
        return self.step.count >= self.last or self.stopped

    @property
    def stopped(self) -> bool:
        """Whether the run has diverged and is not to go on."""
        return self.divergence is not None and self.config.on_divergence == "stop"

    @property
    def logs_now(self) -> bool:
        return self.step.count in self.logs or self.step.count == self.last

    @property
    def reads_now(self) -> bool:
        """Whether losses are read at this step; later ones overwrite them."""
        unread = self.step.count - self.check.seen
        return self.reads_every_step or self.logs_now or unread >= BLOCK

    def read_losses(self) -> None:
        """Look for divergence in the losses since the last time, and update `excess`."""
        self.note(self.check.read(self.step.count))
        _, self.excess, _ = self._loss_bits()

    def record(self) -> Evaluation | None:
        """Log this step; evaluate and save it if it is one of those."""
        evaluates = self.step.count in self.evaluations or self.step.count == self.last
        evaluation = self.evaluate() if evaluates and self.main else None
        if self.main:
            self._log(evaluation)
        self.step.sums.zero_()
        self.logged = self.step.count
        if evaluates:
            self._end_at_plateau(evaluation)
            bad = Divergence(self.step.count, NON_FINITE)
            if not self.note(bad if self.main and evaluation is None else None) and self.save():
                self._say_evaluation(evaluation)
        self.evaluation = evaluation
        return evaluation

    def evaluate(self) -> Evaluation | None:
        """Compare the evaluated weights with exact Bayes; None if predictions are not finite."""
        self.step.model.eval()
        try:
            with self.step.using(self.step.best()) as model:
                return evaluate.evaluate(
                    predictor(model),
                    self.step.task,
                    num_sequences=self.config.eval_sequences,
                    batch_size=min(evaluate.BATCH, self.config.eval_sequences),
                    seed=self.config.seed,
                    device=self.step.device,
                )
        except NotProbabilities:
            return None
        finally:
            self.step.model.train()

    def _loss_bits(self) -> tuple[float, float, float]:
        """Return the mean training loss since the last log line, its excess over the entropy of
        the exact posteriors, and the standard error of that entropy."""
        count = max(1, self.step.count - self.logged)
        loss, exact, error = (self.step.sums / count / math.log(2)).tolist()
        return loss, loss - exact, error

    def _log(self, evaluation: Evaluation | None) -> None:
        loss, excess, error = self._loss_bits()
        row = MetricsRow(
            step=self.step.count,
            seconds=round(self.seconds, 3),
            sequences=self.step.count * self.config.batch_size * distributed.world_size(),
            loss=loss,
            excess=excess,
            excess_se=error,
            evaluation=None if evaluation is None else means(evaluation),
        )
        self.directory.append_metrics(row)

    def _say_evaluation(self, evaluation: Evaluation | None) -> None:
        if evaluation is not None:
            self.say(line(self.step.count, self.last, self.seconds, evaluation))
        distributed.barrier()

    def _end_at_plateau(self, evaluation: Evaluation | None) -> None:
        """Let the learning rate fall if a plateau is reached; one process has the evaluation."""
        plateau = self.step.plateau
        if plateau is None:
            return
        if evaluation is not None:
            plateau.record(self.step.count, evaluation)
        if distributed.any_rank(self.main and plateau.reached(self.step.count)):
            plateau.ending = self.step.count
            self.step.reschedule()

    def note(self, divergence: Divergence | None) -> bool:
        """Return whether any process has found that the run diverged; the first time counts."""
        diverged = distributed.any_rank(divergence is not None)
        if diverged and self.divergence is None:
            divergence = divergence or Divergence(self.step.count, "another process diverged")
            last = self.directory.last_step()
            self.divergence = dataclasses.replace(divergence, checkpoint=last)
            if self.main and not self.stopped:
                self.say(f"{self.divergence}; going on, as asked")
        return diverged

    def save(self) -> bool:
        """Write a checkpoint; each process has its own state of the data. Return whether there was
        something worth saving: otherwise the last checkpoint stays the last one."""
        tensors = self.step.tensors()
        bad = Divergence(self.step.count, "the weights are not finite")
        if self.note(None if all_finite(tensors.values()) else bad):
            return False
        generators = distributed.gather(self.step.generator.get_state())
        if self.main:
            weights = {**self.step.best(), **dict(self.step.model.named_buffers())}
            state = {**tensors, "generator": generators, **self._state()}
            checkpoints.save(self.directory, self.step.count, weights, state)
        return True

    def _state(self) -> dict[str, torch.Tensor]:
        counts = {"logged": self.logged, "above": self.check.above}
        state = {f"run/{name}": torch.tensor(x) for name, x in counts.items()}
        state["run/seconds"] = torch.tensor(self.seconds, dtype=torch.float64)
        if (plateau := self.step.plateau) is not None:
            kl = torch.tensor(list(plateau.kl.items()), dtype=torch.float64).view(-1, 2)
            state["plateau/kl"] = kl
            state["plateau/ending"] = torch.tensor(-1 if plateau.ending is None else plateau.ending)
        return state

    def restore(self) -> None:
        """Go to the last state that was saved.

        Raises:
            RunError: it is damaged, or of another run.
        """
        step, state = checkpoints.load_state(self.directory)
        try:
            self._restore_own(step, state)
            self.step.load(step, state)
            self.step.generator.set_state(self._own_generator(state["generator"]))
        except RunError:
            raise
        except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
            path = self.directory.state_path(step)
            raise RunError(f"{path} is not the state of this run: {error!r}") from error

    def _restore_own(self, step: int, state: dict[str, torch.Tensor]) -> None:
        self.logged, self.check.above = (int(state[f"run/{x}"]) for x in ("logged", "above"))
        self.seconds = state["run/seconds"].item()
        self.check.seen = step
        if (plateau := self.step.plateau) is not None:
            ending = int(state["plateau/ending"])
            plateau.ending = None if ending < 0 else ending
            plateau.kl = {int(at): kl for at, kl in state["plateau/kl"].tolist()}
            if step in self.config.extended:
                plateau.reopen()

    def _own_generator(self, states: torch.Tensor) -> torch.Tensor:
        if len(states) != distributed.world_size():
            raise RunError(
                f"{self.directory.path} has data for {len(states)} process(es) and there are "
                f"{distributed.world_size()}; resume it with as many as it was started with"
            )
        return states[distributed.rank()].clone()

    def interrupt(self, signal: int) -> Result:
        """Save the run, which a signal has stopped, at this step."""
        self.note(self.check.read(self.step.count))  # a checkpoint has the count of bad losses
        if self.stopped or not self.save():
            return self.finish()
        distributed.barrier()
        return Result(self.directory, self.step.count, None, signal)

    def finish(self) -> Result:
        """Write the evaluation of the last step, or how the run diverged."""
        whole = self.step.count == self.last and not self.stopped
        evaluation = self.evaluation
        if self.main and whole and evaluation is None:  # resumed after its last step
            evaluation = self.evaluate()
        step, path = self.step.count, self.directory.path
        if distributed.any_rank(self.main and whole and evaluation is not None):
            if self.main:
                write_json(path / "evaluation.json", Evaluations(evaluation).to_json())
            return Result(self.directory, step, evaluation, seconds=self.seconds)
        self.note(Divergence(step, NON_FINITE))
        if self.main and self.divergence is not None:
            write_json(path / "diverged.json", dataclasses.asdict(self.divergence))
        return Result(self.directory, step, None, divergence=self.divergence)


def means(evaluation: Evaluation) -> dict[str, float]:
    return {name: estimate.mean for name, estimate in evaluation.model.overall.items()}


def line(step: int, last: int, seconds: float, evaluation: Evaluation) -> str:
    overall = means(evaluation)
    rate = step / max(seconds, 1e-9)
    return (
        f"step {step:>7}  {seconds:7.1f} s  entropy_mae {overall['entropy_mae']:.5f}  "
        f"kl {overall['kl']:.5f} bits  ({rate:.1f} steps/s, {duration((last - step) / rate)} left)"
    )
