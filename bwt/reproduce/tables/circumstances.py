"""Under which circumstances a number was made, in a few words."""

from collections.abc import Callable
from typing import Any

# Task -> option of its generator -> what is said of it.
_SAID: dict[str, dict[str, Callable[[Any], str]]] = {
    "bijection": {
        "num_symbols": lambda n: f"{n} symbols",
        "num_pairs": lambda n: f"{n} pairs",
        "replacement": lambda yes: "keys with replacement" if yes else "distinct keys",
        "noise": lambda p: f"noise {p:g}",
    },
    "hmm": {
        "num_states": lambda n: f"{n} states",
        "num_symbols": lambda n: f"{n} symbols",
        "length": lambda n: f"length {n}",
        "header": lambda kind: "token header" if kind == "tokens" else f"{kind} header",
        "floor": lambda p: f"floor {p:g}" if p else "no floor",
        "stickiness": lambda p: f"stickiness {p:g}",
        "missing": lambda p: f"{p:.0%} missing",
        "predict": lambda kind: f"the next {kind} asked for" if kind == "symbol" else "state",
    },
    "recall": {
        "num_pairs": lambda n: f"{n} pairs",
        "num_keys": lambda n: f"{n} keys",
        "num_values": lambda n: f"{n} values",
        "num_queries": lambda n: f"{n} questions",
        "filler": lambda n: f"{n} filler tokens",
    },
}
# What is not said of a generator unless it is otherwise.
_USUAL: dict[str, dict[str, Any]] = {
    "bijection": {"num_symbols": 20, "num_pairs": 19, "noise": 0.0},
    "hmm": {
        "num_states": 5,
        "num_symbols": 5,
        "length": 20,
        "stickiness": 0.0,
        "missing": 0.0,
        "predict": "state",
    },
    "recall": {"num_queries": 4, "filler": 8},
}


def circumstances(config: dict[str, Any]) -> str:
    """Generator, header, floor, positions, token shift, curriculum: those that the run has."""
    model = _model(config["model"], config["model_options"])
    parts = (generator(config), model, _curriculum(config))
    return "; ".join(", ".join(words) for words in parts if words)


def generator(config: dict[str, Any]) -> list[str]:
    task, options = config["task"], config["task_options"]
    return [
        say(options[name])
        for name, say in _SAID[task].items()
        if name in options and options[name] != _USUAL[task].get(name)
    ]


def differences(config: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """What the run's generator does and the other, given by its options, does not. An option that
    the run's task did not have yet is as it was."""
    said, options = _SAID[config["task"]], config["task_options"]
    return [
        said[name](options[name]) for name in other if options.get(name, other[name]) != other[name]
    ]


def _model(model: str, options: dict[str, Any]) -> list[str]:
    if model != "transformer":
        return []
    positions, shift = options["positions"], options["token_shift"]
    span = options.get("shift_span", 1)
    reach = f" of the last {span} positions" if span > 1 else ""
    return [
        "no positions" if positions == "none" else f"{positions} positions",
        "no token shift" if shift == "none" else f"token shift {shift}{reach}",
    ]


def _curriculum(config: dict[str, Any]) -> list[str]:
    if not config.get("curriculum"):
        return []
    return [f"first {config['curriculum_steps']:,} steps with {config['curriculum']}"]
