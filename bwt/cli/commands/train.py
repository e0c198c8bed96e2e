"""`bwt train`"""

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Container, Sequence

from bwt import models, tasks, train
from bwt.cli import flags
from bwt.cli.presets import default_preset, why_preset
from bwt.progress import duration
from bwt.runs.config import TrainConfig
from bwt.runs.presets import PRESETS, preset, preset_model, preset_task, resolve

DIVERGED = 3  # exit code


def add_arguments(parser: flags.Parser, argv: Sequence[str]) -> None:
    """Flags of the task and of the model depend on which ones they are: these are read first."""
    task = next((word for word in argv if word in tasks.TASKS), None)
    model = _peek(argv, "--model", models.MODELS) or "transformer"
    device = "cpu" if _peek(argv, "--device", ("cpu",)) else "auto"
    chosen = _peek(argv, "--preset", PRESETS) or default_preset(device)
    parser.usage = "bwt train TASK [--model NAME] [--preset NAME] [--out DIR] [options]\n" + (
        "       bwt train --resume DIR [DIR ...]"
    )
    if task is None:
        parser.epilog = "`bwt train TASK --help` shows the options of the task as well."
    add = parser.add_argument
    add("task", metavar="TASK", nargs="?", choices=tasks.TASKS, help=f"{', '.join(tasks.TASKS)}")
    add("--model", choices=models.MODELS, default="transformer", help="(default: transformer)")
    add(
        "--preset",
        choices=PRESETS,
        help="quick: converges on 2 CPU cores in minutes; paper: the paper's size, other models "
        "matched to the transformer in parameters at equal depth; authors: sizes, optimizer, rates "
        "and data of the authors' code, model by model, without dropout "
        "(default: quick without a GPU, paper with one)",
    )
    add("--out", metavar="DIR", help="run directory (default: runs/TASK-MODEL-TIME)")
    add(
        "--resume",
        metavar="DIR",
        nargs="+",
        help="continue the run in this directory, bit for bit; several that differ in numbers only "
        "(seed, learning rate, ...) train together in one program",
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

    if arguments.resume:
        _refuse_other_flags(arguments)
        if len(arguments.resume) > 1:
            results = train.resume_together(arguments.resume, say=say, quiet=arguments.json)
            return max(_report(result, arguments.json, say, started) for result in results)
        result = train.resume(arguments.resume[0], say=say, quiet=arguments.json)
    else:
        if arguments.task is None:
            raise ValueError("train: name a TASK or --resume DIR (see bwt train --help)")
        device = getattr(arguments, "device", "auto")
        config = resolve(
            arguments.task,
            arguments.model,
            arguments.preset or default_preset(device),
            settings=flags.given(arguments, TrainConfig),
            task_options=flags.given(arguments, tasks.TASKS[arguments.task]),
            model_options=flags.given(arguments, models.options_class(arguments.model)),
        )
        out = arguments.out or time.strftime(f"runs/{config.task}-{config.model}-%Y%m%d-%H%M%S")
        opening = (
            f"{why_preset(arguments.preset, device)}: {config.steps:,} steps of "
            f"{config.batch_size} sequences"
        )
        result = train.train(config, out, say=say, quiet=arguments.json, opening=opening)
    return _report(result, arguments.json, say, started)


def _refuse_other_flags(arguments: argparse.Namespace) -> None:
    known = {"task", "model", "preset", "out", "resume", "json", "run"}
    extra = [f"--{name.replace('_', '-')}" for name in vars(arguments) if name not in known]
    if arguments.task or arguments.out or extra:
        named = ", ".join(filter(None, [arguments.task, arguments.out and "--out", *extra]))
        raise ValueError(f"train: --resume takes everything from the run; leave out {named}")


def _report(result: train.Result, as_json: bool, say, started: float) -> int:
    if result.signal is not None:
        say(
            f"stopped after step {result.step}, which is saved; continue with\n"
            f"  bwt train --resume {result.run.path}"
        )
        return 128 + result.signal
    if result.divergence is not None:
        _report_divergence(result, as_json)
        return DIVERGED
    if result.evaluation is None:  # not the process that reports
        return 0
    if as_json:
        document = {"run": str(result.run.path), "step": result.step}
        print(json.dumps({**document, "evaluation": result.evaluation.to_json()}))
    say(f"\n{result.evaluation.table()}\n\n{result.evaluation.verdict()}")
    passed = time.perf_counter() - started
    say(
        f"run: {result.run.path} ({duration(passed)} here, with evaluations; training alone took "
        f"{duration(result.seconds)})"
    )
    return 0


def _report_divergence(result: train.Result, as_json: bool) -> None:
    if int(os.environ.get("RANK", 0)):
        return
    if as_json:
        document = {"run": str(result.run.path), "step": result.step}
        print(json.dumps({**document, "diverged": dataclasses.asdict(result.divergence)}))
    print(
        f"bwt: {result.run.path} {result.run.divergence_in_words()}; try a lower --lr, or go on "
        "with --on-divergence continue",
        file=sys.stderr,
    )
