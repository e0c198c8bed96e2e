"""Starting a run, continuing one, and the loop that trains it."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from bwt import models, tasks
from bwt.progress import Progress
from bwt.runs import environment
from bwt.runs.config import TrainConfig
from bwt.runs.device import local_device
from bwt.runs.directory import RunDirectory
from bwt.runs.files import RunError, full_disk, is_full, read_object, write_json
from bwt.runs.loading import build_model, read_config
from bwt.runs.signals import catch_signals
from bwt.tasks import statement
from bwt.train import distributed, extending
from bwt.train.run import Result, Run
from bwt.train.settings import set_threads, torch_settings
from bwt.train.step import TrainStep

Say = Callable[[str], None]
Monitor = Callable[[Run], Progress]  # shows a run while it trains


def silent(text: str) -> None:
    """Say nothing."""


def progress_bar(run: Run) -> Progress:
    return Progress(run.config.steps, run.step.count, quiet=not run.main)


def no_progress(run: Run) -> Progress:
    return Progress(run.config.steps, run.step.count, quiet=True)


def train(
    config: TrainConfig,
    out: str | Path,
    *,
    say: Say = silent,
    monitor: Monitor = no_progress,
    opening: str = "",
) -> Result:
    """Train a new run in the directory `out`, which must not hold anything yet.

    Args:
        say: called with each line of text about the run.
        monitor: shows the progress; `progress_bar` or another.
        opening: said before the first step, when the configuration has been checked.

    Raises:
        ValueError: the configuration asks for something that cannot be.
        RunError: `out` holds something already.
    """
    device = local_device(config.device)
    with torch_settings(config), distributed.process_group(device):
        step = build_step(config, device)
        main = distributed.rank() == 0
        directory = RunDirectory.create(out) if main else RunDirectory(out)
        with _removed_unless_begun(directory), _one_trainer(directory):
            threads = set_threads(config.threads, step.flops())
            run = Run(directory, config, step, say)
            if main:
                if opening:
                    say(opening)
                say(statement(step.task, step.model.num_parameters))
                _write_environment(run, threads)
                write_json(directory.path / "config.json", config.to_json())  # now it is a run
            return _train(run, monitor)


def resume(
    out: str | Path,
    *,
    extend: int | None = None,
    threads: int = 0,
    say: Say = silent,
    monitor: Monitor = no_progress,
) -> Result:
    """Continue a run from its last saved step, as if it had never stopped.

    Args:
        extend: train a finished run for so many steps more (see extending.py).
        threads: CPU threads, if not 0, in place of the run's own number. With the same number a run
            continues bit for bit, otherwise up to rounding.

    Raises:
        RunError: it is no run, is damaged, or has diverged.
    """
    directory, before = _open(out)
    config = before if extend is None else extending.extended(directory, before, extend)
    device = local_device(config.device)
    with torch_settings(config), distributed.process_group(device), _one_trainer(directory):
        step = build_step(config, device)
        count = set_threads(threads or config.threads, step.flops())
        run = Run(directory, config, step, say)
        if directory.resumable_steps():
            run.restore()
        distributed.barrier()
        if run.main:
            _truncate_metrics(run)
            _record_threads(run, count)
            if extend is not None:
                extending.record(directory, config)
                say(extending.in_words(before, config))
            say(f"resuming {directory.path} at step {step.count} of {run.last}")
        return _train(run, monitor)


def build_step(config: TrainConfig, device: torch.device) -> TrainStep:
    """Build the task and the model of a configuration, and the step that trains them."""
    task = tasks.get(config.task, **config.task_options)
    models.check_memory(task, config.model, config.model_options)
    return TrainStep(build_model(config, task), task, config, device)


def loop(run: Run, progress: Progress, caught: list[int]) -> Result:
    """Train until the run ends or a signal is caught by any process."""
    step, tokens = run.step, run.config.batch_size * run.step.task.seq_len
    start = time.perf_counter()
    while not run.ended and not distributed.any_rank(bool(caught)):
        step.update()
        if run.reads_now:
            run.seconds += time.perf_counter() - start
            run.read_losses()
            evaluation = run.record() if run.logs_now and not run.stopped else None
            progress.see(step.count, run.excess, evaluation)
            start = time.perf_counter()
        if progress.due():
            text = f"excess {run.excess:.4f} bits"
            progress.draw(step.count, text, tokens * distributed.world_size())
    run.seconds += time.perf_counter() - start
    progress.end()
    return run.finish() if run.ended else run.interrupt([*caught, signal.SIGTERM][0])


def _train(run: Run, monitor: Monitor) -> Result:
    progress, caught = monitor(run), []  # type: Progress, list[int]
    run.say = progress.above(run.say)
    try:
        with catch_signals(caught):
            return loop(run, progress, caught)
    except OSError as error:
        if not is_full(error):
            raise
        again = f"go on with bwt train --resume {run.directory.path}"
        raise full_disk(error, again) from error


def _open(out: str | Path) -> tuple[RunDirectory, TrainConfig]:
    run = RunDirectory.open(out)
    config, _ = read_config(run)
    if run.divergence:
        raise RunError(f"{run.path} {run.divergence_in_words()}; to resume it would repeat that")
    return run, config


@contextmanager
def _removed_unless_begun(run: RunDirectory) -> Iterator[None]:
    """Remove the directory of a start that fails: it could be neither used again nor resumed."""
    try:
        yield
    except BaseException:
        if distributed.rank() == 0 and not (run.path / "config.json").exists():
            run.remove_empty()
        raise


@contextmanager
def _one_trainer(run: RunDirectory) -> Iterator[None]:
    """Hold the lock of a run: the first process takes it, and the others wait for that."""
    with run.locked() if distributed.rank() == 0 else nullcontext():
        distributed.barrier()
        yield


def _truncate_metrics(run: Run) -> None:
    """Remove what was recorded after the step that is resumed."""
    lost = run.directory.truncate_metrics(run.step.count)
    if lost:
        run.say(f"{lost} line(s) of metrics.jsonl could not be read and were left out")


def _write_environment(run: Run, threads: int) -> None:
    """Record the machine, the number of threads by first step, and who registered the task and the
    model, if they are not ours."""
    sources = {
        "task": tasks.TASKS.source(run.config.task),
        "model": models.MODELS.source(run.config.model),
    }
    registered = {kind: source for kind, source in sources.items() if source is not None}
    document: dict[str, Any] = {**environment.collect(), "threads": {str(run.step.count): threads}}
    document |= {"registered": registered} if registered else {}
    write_json(run.directory.path / "environment.json", document)


def _record_threads(run: Run, threads: int) -> None:
    """Add the number of threads from here on to environment.json, if it changes."""
    path = run.directory.path / "environment.json"
    if not path.exists():
        return _write_environment(run, threads)
    document = read_object(path)
    recorded = document.get("threads", {})
    before = list(recorded.values())[-1:]
    if before == [threads]:
        return
    write_json(path, {**document, "threads": {**recorded, str(run.step.count): threads}})
    if before:
        run.say(
            f"CPU threads: {threads} from here on, {before[0]} before; results are equal up to "
            "rounding, not bit for bit"
        )
