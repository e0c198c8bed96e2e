"""More steps for a run that has come to its end.

From there on the run follows the schedule of one that was planned with all the steps:

- At a constant rate (`decay="none"`) it goes on as it was, and is bit for bit the longer run, if
  the rate rose in as many steps at first (as with `warmup=0`).
- A linear or cosine fall has brought the rate near 0. It goes up again, to where the longer
  schedule has it at this step, and falls to 0 from there. The longer run would not have been there
  before, so that this is another run than that.
- A run until a plateau holds the rate again, and seeks the next plateau.

Means of weights (`average`) begin anew, at the old end or later. The steps at which a run ended
before are in its config.json (`extended`).
"""

import dataclasses

from bwt.runs.checkpoints import load_state
from bwt.runs.config import TrainConfig
from bwt.runs.directory import RunDirectory
from bwt.runs.files import RunError, write_json
from bwt.train.schedule import Plateau, lr_factor


def extended(run: RunDirectory, config: TrainConfig, steps: int) -> TrainConfig:
    """The configuration of the run with so many steps more.

    Raises:
        ValueError: there is no step more.
        RunError: the run has not come to its end, or too few steps are left for the fall.
    """
    if steps < 1:
        raise ValueError(f"a run is extended by at least 1 step, got {steps}")
    done, end = max(run.resumable_steps(), default=0), _end(run, config)
    if done < end:
        raise RunError(
            f"{run.path} is at step {done:,} of {end:,} and can be extended when it is finished: "
            f"bwt train --resume {run.path}"
        )
    if config.until != "steps" and Plateau(done + steps).latest <= done:
        raise RunError(
            f"{run.path} is trained until a plateau, after which the rate falls for a quarter of "
            f"the steps: extend its {done:,} by more than {done // 4:,}"
        )
    return dataclasses.replace(config, steps=done + steps, extended=[*config.extended, done])


def _end(run: RunDirectory, config: TrainConfig) -> int:
    if config.until == "steps" or not run.resumable_steps():
        return config.steps
    step, state = load_state(run)
    if step in config.extended:  # not a step of the extension is saved yet
        return config.steps
    ending = int(state["plateau/ending"])
    return Plateau(config.steps, ending=None if ending < 0 else ending).last


def record(run: RunDirectory, config: TrainConfig) -> None:
    """From here on the run is one with these steps, and not finished."""
    write_json(run.path / "config.json", config.to_json())
    (run.path / "evaluation.json").unlink(missing_ok=True)


def in_words(before: TrainConfig, now: TrainConfig) -> str:
    """What becomes of the learning rate."""
    done = now.extended[-1]
    text = f"extended from step {done:,} to {now.steps:,}: the learning rate "
    if now.until != "steps":
        return text + "is held again until the next plateau"
    if now.decay == "none":
        return text + "stays as it is"
    last, first = lr_factor(done - 1, before), lr_factor(done, now)
    return text + (
        f"goes up from {last:.1%} to {first:.1%} of its peak, where the {now.decay} schedule of "
        f"{now.steps:,} steps has it, and falls from there"
    )
