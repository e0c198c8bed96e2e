"""What of a trainer goes into a checkpoint, and back."""

import torch
from torch import Tensor

from bwt.runs import checkpoints
from bwt.runs.files import RunError
from bwt.train import distributed
from bwt.train.plateau import Plateau


def weights_of(trainer) -> dict[str, Tensor]:
    """The weights that are evaluated."""
    with trainer.averaged.swapped_in():
        trained = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    return {**trained, **dict(trainer.model.named_buffers())}


def state_of(trainer, generators: Tensor) -> dict[str, Tensor]:
    """What a resume needs."""
    names = [name for name, _ in trainer.model.named_parameters()]
    trained = dict(zip(names, trainer.parameters, strict=True))
    mean = dict(zip(names, trainer.averaged.mean, strict=False))
    return {
        **{f"weights/{name}": p for name, p in trained.items()},
        **{f"weights/{name}": x for name, x in trainer.model.named_buffers()},
        **{f"mean/{name}": p for name, p in mean.items()},
        **{f"optimizer/{key}": value for key, value in trainer.optimizer.state().items()},
        "generator": generators,
        "loss_sum": trainer.loss_sum,
        "counts": torch.tensor([trainer.loss_count, trainer.averaged.count]),
        "seconds": torch.tensor(trainer.seconds, dtype=torch.float64),
        **_plateau_state(trainer.plateau),
    }


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
    checkpoints.fill(trainer.run, trainer.model, groups["weights"])
    trainer.averaged.mean = [
        groups["mean"][name] for name, _ in trainer.model.named_parameters() if groups["mean"]
    ]
    trainer.optimizer.load(groups["optimizer"])
    trainer.generator.set_state(_own_generator(trainer, state["generator"]))
    trainer.loss_sum = state["loss_sum"].to(trainer.device)
    trainer.loss_count, trainer.averaged.count = state["counts"].tolist()
    trainer.seconds = state["seconds"].item()
    if trainer.plateau is not None:
        ending = state["plateau_ending"].item()
        trainer.plateau.ending = None if ending < 0 else ending
        trainer.plateau.kl = {int(step): kl for step, kl in state["plateau_kl"].tolist()}


def _own_generator(trainer, states: Tensor) -> Tensor:
    states = torch.atleast_2d(states)  # flat in runs of before, which know of one only
    if len(states) != distributed.world_size():
        raise RunError(
            f"{trainer.run.path} has data for {len(states)} process(es) and there are "
            f"{distributed.world_size()}; resume it with as many as it was started with"
        )
    return states[distributed.rank()].clone()
