"""Starting a run, and continuing one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from bwt import models, tasks
from bwt.runs import environment
from bwt.runs.config import TrainConfig
from bwt.runs.device import local_device
from bwt.runs.directory import RunDirectory
from bwt.runs.files import RunError, full_disk, is_full, read_object, write_json
from bwt.runs.loading import read_config
from bwt.tasks import statement
from bwt.train import distributed, extending, freezing, state
from bwt.train.curriculum import curriculum
from bwt.train.loop import loop
from bwt.train.penalty import KeyPenalty
from bwt.train.program import graphed
from bwt.train.settings import set_threads, torch_settings
from bwt.train.signals import catch_signals
from bwt.train.trainer import Result, Trainer


def train(
    config: TrainConfig,
    out: str | Path,
    *,
    say: Callable[[str], None] = lambda text: None,
    quiet: bool = False,
    watch: bool = False,
    opening: str | None = None,
) -> Result:
    """Trains a new run in the directory `out`, which must not hold anything yet. The opening is
    said when all is in order, before the first step; `watch` draws a curve in the terminal."""
    task = tasks.get(config.task, **config.task_options)
    models.check_memory(task, config.model, config.model_options)
    if config.key_penalty:
        KeyPenalty(task, config.key_penalty)  # refused before there is a directory
    curriculum(config, task)  # likewise
    freezing.check(config, task)
    device = local_device(config.device)
    with torch_settings(config), distributed.joined(device):
        graphed(config, device)  # likewise
        _check_compile(config, device)
        run = RunDirectory(out) if distributed.rank() else RunDirectory.create(out)
        with _withdrawn_unless_begun(run), _alone(run):
            trainer = Trainer(config, run, device, say, quiet, watch)
            threads = set_threads(config.threads, trainer.flops())
            if trainer.main:
                if opening:
                    say(opening)
                say(statement(trainer.task, trainer.model.num_parameters))
                environment = {**circumstances_of(config), "threads": {"0": threads}}
                write_json(run.path / "environment.json", environment)
                write_json(run.path / "config.json", config.to_json())  # from here on it is a run
            return run_all([trainer])[0]


def circumstances_of(config: TrainConfig) -> dict[str, Any]:
    """The machine, and where a task or a model comes from that is not ours."""
    sources = {
        "task": tasks.TASKS.source(config.task),
        "model": models.MODELS.source(config.model),
    }
    registered = {kind: source for kind, source in sources.items() if source is not None}
    return {**environment.collect(), **({"registered": registered} if registered else {})}


@contextmanager
def _withdrawn_unless_begun(run: RunDirectory) -> Iterator[None]:
    """A start that fails leaves nothing behind that could be neither used again nor resumed."""
    try:
        yield
    except BaseException:
        if distributed.rank() == 0 and not (run.path / "config.json").exists():
            run.withdraw()
        raise


def _check_compile(config: TrainConfig, device: torch.device) -> None:
    if config.compile == "graphs" and device.type != "cuda":
        raise ValueError(f"compile graphs means CUDA graphs, and this runs on {device.type}")


def start_or_restore(trainer: Trainer, **circumstances: Any) -> None:
    """Brings a run to its last saved step. One that has none yet begins here."""
    run = trainer.run
    if run.resumable_steps():
        state.restore(trainer)
    distributed.wait()
    if not trainer.main:
        return
    lost = run.forget_after(trainer.step)
    if lost:
        trainer.say(f"{lost} line(s) of metrics.jsonl could not be read and were left out")
    if not (run.path / "environment.json").exists():
        write_json(
            run.path / "environment.json", {**circumstances_of(trainer.config), **circumstances}
        )


def open_again(out: str | Path) -> tuple[RunDirectory, TrainConfig]:
    """A run to be continued, or begun.

    Raises:
        RunError: it is none, or it has diverged.
    """
    run = RunDirectory.open(out)
    config, _ = read_config(run)
    if run.divergence:
        raise RunError(f"{run.path} {run.divergence_in_words()}; to resume it would repeat that")
    return run, config


def resume(
    out: str | Path,
    *,
    extend: int | None = None,
    threads: int = 0,
    say: Callable[[str], None] = lambda text: None,
    quiet: bool = False,
    watch: bool = False,
) -> Result:
    """Continues a run from its last saved step, as if it had never stopped; from its beginning, if
    none was saved yet. One that is finished can be extended by some steps (see extending.py).
    `threads`, if not 0, replaces the run's own number of CPU threads; with the same number a run
    continues bit for bit, otherwise up to rounding."""
    run, before = open_again(out)
    config = before if extend is None else extending.extended(run, before, extend)
    device = local_device(config.device)
    with torch_settings(config), distributed.joined(device), _alone(run):
        trainer = Trainer(config, run, device, say, quiet, watch)
        count = set_threads(threads or config.threads, trainer.flops())
        start_or_restore(trainer)
        if trainer.main:
            record_threads(trainer, count)
            if extend is not None:
                record_extension(trainer, before)
            say(f"resuming {run.path} at step {trainer.step} of {trainer.last}")
        return run_all([trainer])[0]


def record_threads(trainer: Trainer, threads: int) -> None:
    """Add the number of threads from here on to environment.json, if it changes."""
    path = trainer.run.path / "environment.json"
    environment = read_object(path)
    recorded = environment.get("threads", {})
    before = list(recorded.values())[-1:]
    if before != [threads]:
        write_json(path, {**environment, "threads": {**recorded, str(trainer.step): threads}})
    if before and before != [threads]:
        trainer.say(
            f"CPU threads: {threads} from here on, {before[0]} before; results are equal up to "
            "rounding, not bit for bit"
        )


def record_extension(trainer: Trainer, before: TrainConfig) -> None:
    """When all is in order, before the first step."""
    extending.record(trainer.run, trainer.config)
    trainer.say(extending.in_words(before, trainer.config))


@contextmanager
def _alone(run: RunDirectory) -> Iterator[None]:
    """Of all processes that train a run, the first holds its lock, and the others wait for it."""
    with run.locked() if distributed.rank() == 0 else nullcontext():
        distributed.wait()
        yield


def run_all(trainers: Sequence[Trainer]) -> list[Result]:
    """Of one program, until they end or somebody interrupts them."""
    caught: list[int] = []
    try:
        with catch_signals(caught):
            return loop(trainers, caught)
    except OSError as error:
        if not is_full(error):
            raise
        paths = " ".join(str(trainer.run.path) for trainer in trainers)
        raise full_disk(error, f"go on with bwt train --resume {paths}") from error
