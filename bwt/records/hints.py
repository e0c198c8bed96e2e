"""What to try with a model that is at a floor, as flags of `bwt train` that its run lacks."""

from collections.abc import Iterator, Mapping
from typing import Any


def hint(config: Mapping[str, Any]) -> str:
    """config: of the run, as config.json has it. What has helped is in results/README.md."""
    return "; ".join([_general(config), *_of_task(config)])


def _general(config: Mapping[str, Any]) -> str:
    muon = "" if config.get("optimizer") == "muon" else ", --optimizer muon"
    return f"more --steps, another --lr (a third of it, or three times){muon}"


def _of_task(config: Mapping[str, Any]) -> Iterator[str]:
    task, options = config.get("task"), config.get("task_options", {})
    transformer, curriculum = config.get("model") == "transformer", config.get("curriculum")
    shift = config.get("model_options", {}).get("token_shift", "none")
    span = config.get("model_options", {}).get("shift_span", 1)
    if task == "bijection" and options.get("replacement") and transformer and shift == "none":
        yield "--token-shift input"
        if not curriculum:
            easier = "--curriculum replacement=false --curriculum-steps 500"
            yield f"or, without a token shift, --positions rotary {easier}"
    elif task == "hmm" and transformer and shift != "block":
        yield "--token-shift block"
    elif task == "recall":
        if transformer and (shift == "none" or span < 2):
            yield "--token-shift input --shift-span 2"
        if options.get("num_pairs", 0) > 4 and not curriculum:
            pairs = options["num_pairs"]
            yield f"fewer pairs mixed in: --curriculum num_pairs=4,{pairs} --curriculum-steps 3000"
