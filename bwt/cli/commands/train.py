"""`bwt train`"""

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Container, Sequence
from pathlib import Path

from bwt import models, tasks, train
from bwt.cli import flags
from bwt.cli.live_plot import live_plot
from bwt.progress import Progress, duration
from bwt.runs.config import TrainConfig
from bwt.runs.files import FullDisk, full_disk, read_former
from bwt.runs.presets import PRESETS, preset, preset_model, preset_task, resolve
from bwt.train.divergence import Divergence

DIVERGED = 3  # exit code
SEQUENCES = 128  # that --report looks at


def add_arguments(parser: flags.Parser, argv: Sequence[str]) -> None:
    """Flags of the task and of the model depend on which ones they are: these are read first."""
    task = next((word for word in argv if word in tasks.TASKS), None)
    model = _peek(argv, "--model", models.MODELS) or "transformer"
    chosen = _peek(argv, "--preset", PRESETS) or "quick"
    parser.usage = "bwt train TASK [--model NAME] [--preset NAME] [--out DIR] [options]\n" + (
        "       bwt train --resume DIR [--extend N] [--threads N]"
    )
    if task is None:
        parser.epilog = "`bwt train TASK --help` shows the options of the task as well."
    add = parser.add_argument
    add("task", metavar="TASK", nargs="?", choices=tasks.TASKS, help=f"{', '.join(tasks.TASKS)}")
    add("--model", choices=models.MODELS, default="transformer", help="(default: transformer)")
    add(
        "--preset",
        choices=PRESETS,
        default="quick",
        help="quick: converges on one CPU core in minutes. paper: the paper's sizes, 100,000 steps "
        "of AdamW, other models matched to the transformer in parameters at equal depth; its "
        "bijection, without a token shift, has not been seen to converge here (two layers of that "
        "kind predict no better than a uniform guess after 50,000 steps). authors: sizes, "
        "optimizer, rates and data of the authors' code, model by model, without dropout "
        "(default: quick)",
    )
    add("--out", metavar="DIR", help="run directory (default: runs/TASK-MODEL-TIME)")
    add("--resume", metavar="DIR", help="continue the run in this directory, bit for bit")
    add(
        "--extend",
        metavar="N",
        type=int,
        help="with --resume of a finished run: N steps more. The learning rate follows the "
        "schedule of the longer run from there on: with --decay none it stays, with linear and "
        "cosine it goes up again to fall once more, until plateau it is held until the next one",
    )
    add(
        "--live-plot",
        action="store_true",
        help="draw a curve of bits from exact Bayes while it trains (on a terminal; elsewhere a "
        "line every 10 s)",
    )
    add(
        "--report",
        action="store_true",
        help="look inside the model afterwards, as bwt geometry does but on fewer sequences "
        f"({SEQUENCES}, seconds), and write report.html into the run",
    )
    training = parser.add_argument_group("training")
    flags.add_fields(training, TrainConfig, preset(chosen, task, model))
    if task is not None:
        group = parser.add_argument_group(f"the task: {task}")
        flags.add_fields(group, tasks.TASKS[task], preset_task(chosen, task))
    title = f"the model: {model}"
    sizes = preset_model(chosen, task, model)
    if model != "transformer" and "width" not in sizes and models.matchable(model):
        title += " (without --width: as many parameters as the transformer of the preset)"
    flags.add_fields(parser.add_argument_group(title), models.options_class(model), sizes)
    parser.whose = _whose


def _peek(argv: Sequence[str], flag: str, choices: Container[str]) -> str | None:
    for word, following in zip(argv, [*argv[1:], ""], strict=False):
        name, _, value = word.partition("=")
        if name == flag and (value or following) in choices:
            return value or following
    return None


def _whose(option: str) -> str:
    """The tasks or models that have it."""
    name = option.removeprefix("--").removeprefix("no-").replace("-", "_")
    owners = {f"the task {task}": kind for task, kind in tasks.TASKS.items()}
    owners |= {f"the model {model}": models.options_class(model) for model in models.MODELS}
    return " and ".join(owner for owner, kind in owners.items() if name in flags.names(kind))


def run(arguments: argparse.Namespace) -> int:
    started = time.perf_counter()

    def say(text: str) -> None:
        # Under torchrun one process speaks.
        if not arguments.json and int(os.environ.get("RANK", 0)) == 0:
            print(text, flush=True)

    if arguments.live_plot and arguments.json:
        raise ValueError("train: --live-plot and --json both write to stdout; leave out one")
    monitor = _monitor(arguments)
    if arguments.resume:
        _refuse_other_flags(arguments)
        threads = getattr(arguments, "threads", 0)
        result = train.resume(
            arguments.resume, extend=arguments.extend, threads=threads, say=say, monitor=monitor
        )
    else:
        if arguments.extend is not None:
            raise ValueError("train: --extend goes with --resume DIR, the finished run")
        if arguments.task is None:
            raise ValueError("train: name a TASK or --resume DIR (see bwt train --help)")
        config = resolve(
            arguments.task,
            arguments.model,
            arguments.preset,
            settings=flags.given(arguments, TrainConfig),
            task_options=flags.given(arguments, tasks.TASKS[arguments.task]),
            model_options=flags.given(arguments, models.options_class(arguments.model)),
        )
        out = arguments.out or time.strftime(f"runs/{config.task}-{config.model}-%Y%m%d-%H%M%S")
        opening = (
            f"preset {arguments.preset}: {config.steps:,} steps of {config.batch_size} sequences"
        )
        result = train.train(config, out, opening=opening, say=say, monitor=monitor)
    return _report(result, arguments, say, started)


def _monitor(arguments: argparse.Namespace) -> Callable[[train.Run], Progress]:
    if arguments.json:
        return train.no_progress
    return live_plot if arguments.live_plot else train.progress_bar


def _refuse_other_flags(arguments: argparse.Namespace) -> None:
    known = {"task", "model", "preset", "out", "resume", "json", "run"}
    known |= {"extend", "live_plot", "report", "threads"}
    extra = [f"--{name.replace('_', '-')}" for name in vars(arguments) if name not in known]
    if arguments.task or arguments.out or extra:
        named = ", ".join(filter(None, [arguments.task, arguments.out and "--out", *extra]))
        raise ValueError(
            f"train: --resume takes everything but --threads from the run; leave out {named}"
        )


def _report(
    result: train.Result,
    arguments: argparse.Namespace,
    say: Callable[[str], None],
    started: float,
) -> int:
    if result.signal is not None:
        say(
            f"stopped after step {result.step}, which is saved; continue with\n"
            f"  bwt train --resume {result.run.path}"
        )
        return 128 + result.signal
    if result.divergence is not None:
        _report_divergence(result, result.divergence, arguments.json)
        return DIVERGED
    if result.evaluation is None:  # not the process that reports
        return 0
    verdict = result.evaluation.verdict(result.run.read_config())
    say(f"\n{result.evaluation.table()}\n\n{verdict}")
    passed = time.perf_counter() - started
    say(
        f"run: {result.run.path} ({duration(passed)} here, with evaluations; training alone took "
        f"{duration(result.seconds)})"
    )
    page = _page(result, arguments.json, say) if arguments.report else None
    if arguments.json:
        document = {"run": str(result.run.path), "step": result.step}
        document |= {} if page is None else {"report": str(page)}
        print(json.dumps({**document, "evaluation": result.evaluation.to_json()}))
    return 0


def _page(result: train.Result, quiet: bool, say: Callable[[str], None]) -> Path:
    """The report of a run, with a quick look inside its model unless there has been one."""
    from bwt.geometry import examine
    from bwt.records.geometry import Geometry
    from bwt.report import report

    run, started = result.run.path, time.perf_counter()
    try:
        former = read_former(run / "geometry.json", Geometry)
        if former is None or former.step != result.step or not former.examined:
            device = result.run.read_config()["device"]
            examine(run, sequences=SEQUENCES, device=device, quiet=quiet)
            passed = duration(time.perf_counter() - started)
            say(f"looked inside the model on {SEQUENCES} sequences ({passed})")
        page = report([run])
    except FullDisk as error:
        raise full_disk(error, f"bwt geometry {run} and bwt report {run}") from error
    say(f"open {page} in a browser")
    return page


def _report_divergence(result: train.Result, divergence: Divergence, as_json: bool) -> None:
    if int(os.environ.get("RANK", 0)):
        return
    if as_json:
        document = {"run": str(result.run.path), "step": result.step}
        print(json.dumps({**document, "diverged": dataclasses.asdict(divergence)}))
    print(
        f"bwt: {result.run.path} {result.run.divergence_in_words()}; try a lower --lr, or go on "
        "with --on-divergence continue",
        file=sys.stderr,
    )
