"""What of a trainer goes into a checkpoint, and back."""

import torch
from torch import Tensor

from bwt.runs import checkpoints
from bwt.runs.files import RunError
from bwt.train import distributed
from bwt.train.plateau import Plateau


def weights_of(trainer) -> dict[str, Tensor]:
    """The weights that are evaluated."""
    best = trainer.program.averaged.best(trainer.step)
    return {**_parameters(trainer, best), **dict(trainer.model.named_buffers())}


def _parameters(trainer, buffer: Tensor) -> dict[str, Tensor]:
    """By name, in the order of the model: views of its row of a buffer [M, N]."""
    views = trainer.program.weights.layout.views(buffer[trainer.row])
    return {name: views[name] for name, _ in trainer.model.named_parameters()}


def state_of(trainer, generators: Tensor) -> dict[str, Tensor]:
    """What a resume needs."""
    program = trainer.program
    return {
        **{
            f"weights/{name}": x for name, x in _parameters(trainer, program.weights.master).items()
        },
        **{f"weights/{name}": x for name, x in trainer.model.named_buffers()},
        **{f"mean/{name}": x for name, x in _mean(trainer).items()},
        **{f"optimizer/{key}": x for key, x in program.optimizer.state(trainer.row).items()},
        "generator": generators,
        "sums": trainer.sums,
        **({} if trainer.expected is None else {"expected": trainer.expected}),
        "counts": torch.tensor([trainer.loss_count, trainer.watch.above]),
        "seconds": torch.tensor(trainer.seconds, dtype=torch.float64),
        **_plateau_state(trainer.plateau),
    }


def _mean(trainer) -> dict[str, Tensor]:
    averaged = trainer.program.averaged
    started = averaged.applies(trainer.step - 1)
    return _parameters(trainer, averaged.mean) if started else {}


def kept(trainer) -> list[Tensor]:
    """The numbers that a checkpoint keeps."""
    optimizer = trainer.program.optimizer.state(trainer.row)
    master = _parameters(trainer, trainer.program.weights.master)
    return [*master.values(), *_mean(trainer).values(), *optimizer.values()]


def _plateau_state(plateau: Plateau | None) -> dict[str, Tensor]:
    if plateau is None:
        return {}
    return {
        "plateau_kl": torch.tensor(list(plateau.kl.items()), dtype=torch.float64).view(-1, 2),
        "plateau_ending": torch.tensor(-1 if plateau.ending is None else plateau.ending),
    }


def restore(trainer) -> None:
    """The last state that was saved.

    Raises:
        RunError: it is damaged, or of another run.
    """
    trainer.step, state = checkpoints.load_state(trainer.run)
    try:
        _fill(trainer, state)
    except RunError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        path = trainer.run.state_path(trainer.step)
        raise RunError(f"{path} is not the state of this run: {error!r}") from error


def _fill(trainer, state: dict[str, Tensor]) -> None:
    groups: dict[str, dict[str, Tensor]] = {"weights": {}, "mean": {}, "optimizer": {}}
    for key, value in state.items():
        group, _, name = key.partition("/")
        if name:
            groups[group][name] = value.to(trainer.device)
    program, row = trainer.program, trainer.row
    with program.weights.pointing(trainer.model, row, program.weights.master):
        checkpoints.fill(trainer.run, trainer.model, groups["weights"])
    for name, x in _mean(trainer).items():
        x.copy_(groups["mean"][name])
    program.optimizer.load(row, groups["optimizer"], trainer.step)
    program.go_to(trainer.step)
    trainer.generator.set_state(_own_generator(trainer, state["generator"]))
    trainer.sums.copy_(state["sums"])
    if "expected" in state:
        trainer.expected = state["expected"].to(trainer.device)
    trainer.loss_count, trainer.watch.above = state["counts"].tolist()
    trainer.seconds = state["seconds"].item()
    trainer.watch.seen = trainer.step
    if trainer.plateau is not None:
        ending = state["plateau_ending"].item()
        trainer.plateau.ending = None if ending < 0 else ending
        trainer.plateau.kl = {int(step): kl for step, kl in state["plateau_kl"].tolist()}
        if trainer.step in trainer.config.extended:
            trainer.plateau.reopen()
        program.reschedule()


def _own_generator(trainer, states: Tensor) -> Tensor:
    states = torch.atleast_2d(states)  # flat in runs of before, which know of one only
    if len(states) != distributed.world_size():
        raise RunError(
            f"{trainer.run.path} has data for {len(states)} process(es) and there are "
            f"{distributed.world_size()}; resume it with as many as it was started with"
        )
    return states[distributed.rank()].clone()
