"""The loop of training: steps, and at chosen ones a look at each run. Of several runs that train
together each is logged, evaluated, saved and ended by itself."""

import math
import signal
import time
from collections.abc import Sequence

from bwt.progress import Progress
from bwt.records.evaluation import Evaluation
from bwt.train import distributed
from bwt.train.schedule import BLOCK
from bwt.train.trainer import Result, Trainer
from bwt.train.view import View


class Watched:
    """A run in the loop."""

    def __init__(self, trainer: Trainer):
        self.trainer = trainer
        self.evaluations, self.logs = trainer.evaluations(), trainer.logs()
        self.evaluation: Evaluation | None = None
        self.excess = math.nan  # bits of the loss above those of exact Bayes
        # A look waits for the device, and of several processes for the others.
        self.at_once = trainer.device.type == "cpu" and distributed.world_size() == 1

    def due(self) -> bool:
        step = self.trainer.step
        return step in self.logs or step == self.trainer.last

    def unread(self) -> bool:
        """Return whether losses have to be read before later steps overwrite them."""
        return self.at_once or self.trainer.step - self.trainer.watch.seen >= BLOCK

    def look(self, seconds: float) -> Evaluation | None:
        """After a step, and so many seconds since the last look: what was found now, if it was
        evaluated."""
        trainer, due = self.trainer, self.due()
        trainer.seconds += seconds
        trainer.look()
        _, self.excess, _ = trainer.loss_bits()
        if not due or trainer.stopped:
            return None
        evaluating = trainer.step in self.evaluations or trainer.step == trainer.last
        self.evaluation = trainer.checkpoint(evaluating)
        return self.evaluation

    def result(self, caught: list[int]) -> Result | None:
        """Of a run that has come to its end, or has to stop; None if it goes on."""
        trainer = self.trainer
        if trainer.step >= trainer.last or trainer.stopped:
            return trainer.finish(self.evaluation)
        if not caught:
            return None
        trainer.look()  # the checkpoint counts the losses above the limit
        if trainer.stopped or not trainer.save():
            return trainer.finish(None)
        distributed.wait()
        return Result(trainer.run, trainer.step, None, caught[0])


def loop(trainers: Sequence[Trainer], caught: list[int]) -> list[Result]:
    """Trains runs, which share a program, to their ends, or until a signal is caught."""
    first = trainers[0]
    watched = {row: Watched(trainer) for row, trainer in enumerate(trainers)}
    results: dict[int, Result] = {}
    progress = _progress(trainers)
    tokens = first.config.batch_size * distributed.world_size() * first.task.seq_len * len(trainers)

    def end_runs(caught: list[int]) -> None:
        for row, x in list(watched.items()):
            if result := x.result(caught):
                results[row] = result
                del watched[row]

    end_runs([])
    stop, start = False, time.perf_counter()
    while watched and not stop:
        stop = first.update(bool(caught))
        if any(x.due() or x.unread() for x in watched.values()):
            seconds = time.perf_counter() - start
            for x in watched.values():
                found = x.look(seconds)
                progress.see(x.trainer.step, x.excess, found)
            end_runs([])
            start = time.perf_counter()
        if watched and progress.due():
            x = next(iter(watched.values()))
            progress.draw(x.trainer.step, f"excess {x.excess:.4f} bits", tokens)
    first.agreement.answer()
    progress.end()
    for x in watched.values():
        x.trainer.seconds += time.perf_counter() - start
    end_runs(caught or [signal.SIGTERM])
    return [results[row] for row in range(len(trainers))]


def _progress(trainers: Sequence[Trainer]) -> Progress:
    """What is shown beneath what the runs say."""
    first = trainers[0]
    quiet = first.quiet or not first.main
    progress = Progress(first.config.steps, first.step, quiet=quiet)
    if first.curve:
        progress = View(first.config.steps, first.step, first.run.read_metrics(), quiet=quiet)
    for trainer in trainers:
        trainer.say = progress.above(trainer.say)
    return progress
