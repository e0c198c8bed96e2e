"""`bwt eval`"""

import argparse
import json
from collections.abc import Sequence

from bwt import evaluate, train
from bwt.options import check_sequences
from bwt.records.evaluation import Evaluation, Evaluations
from bwt.runs.device import local_device
from bwt.runs.directory import RunDirectory
from bwt.runs.files import read_former, write_json


def add_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    add = parser.add_argument
    add("path", metavar="RUN", help="run directory")
    add("--length", metavar="N", type=int, nargs="+", help="at these lengths instead of its own")
    add("--step", metavar="N", type=int, help="of this checkpoint (default: the last one)")
    add("--sequences", metavar="N", type=int, default=4096, help="(default: 4096)")
    add("--seed", metavar="N", type=int, default=0, help="of the sequences")
    add("--device", metavar="NAME", default="auto", help="auto, cpu, or cuda (default: auto)")


def run(arguments: argparse.Namespace) -> None:
    check_sequences("eval", arguments.sequences)
    device = local_device(arguments.device)
    task, model, config = train.load(arguments.path, arguments.step, device)
    evaluations = {}
    for length in arguments.length or [None]:
        evaluations[length] = evaluate.evaluate(
            evaluate.predictor(model),
            task if length is None else task.with_length(length),
            num_sequences=arguments.sequences,
            batch_size=min(evaluate.BATCH, arguments.sequences),
            seed=arguments.seed,
            device=device,
        )
        if not arguments.json:
            title = "" if length is None else f"{task.length_option} {length}\n"
            evaluation = evaluations[length]
            verdict = evaluation.verdict(config.to_json() if length is None else None)
            print(f"{title}{evaluation.table()}\n\n{verdict}\n")
    if arguments.step is None:
        _write(RunDirectory(arguments.path), evaluations)
    if arguments.json:
        documents = [{"length": k, **v.to_json()} for k, v in evaluations.items()]
        print(json.dumps(documents if arguments.length else documents[0]))


def _write(run: RunDirectory, evaluations: dict[int | None, Evaluation]) -> None:
    """Beside what evaluation.json has of other lengths."""
    path = run.path / "evaluation.json"
    former = read_former(path, Evaluations) or Evaluations(None)
    own = evaluations.get(None, former.own)
    lengths = {str(k): v for k, v in evaluations.items() if k is not None}
    write_json(path, Evaluations(own, former.lengths | lengths).to_json())
