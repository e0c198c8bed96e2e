"""Parameters that rows [C] share: [C] for all of them alike, or [M, C] where the rows of M models
stand one model's after another's, as many of each."""

from collections.abc import Sequence

from torch import Tensor

LAYOUT = "[C] or [M, C]"


def check(op: str, name: str, parameter: Tensor, x: Tensor) -> None:
    size = x.shape[-1] if x.ndim else 0
    if size < 1:
        raise ValueError(f"{op}: x must be [..., C] with C >= 1, got shape {tuple(x.shape)}")
    if parameter.shape == (size,):
        return
    if parameter.ndim != 2 or parameter.shape[1] != size:
        raise ValueError(
            f"{op}: {name} must be [C] = [{size}] as x says, or [M, C] for M models, "
            f"got {list(parameter.shape)}"
        )
    rows, models = x.shape[:-1].numel(), len(parameter)
    if models == 0 or rows % models:
        raise ValueError(f"{op}: {rows} rows of x are not those of {models} models, as {name} says")


def by_model(x: Tensor, parameter: Tensor) -> tuple[Tensor, Tensor]:
    """Both in shapes that broadcast."""
    if parameter.ndim == 1:
        return x, parameter
    models, size = parameter.shape
    return x.reshape(models, x.shape[:-1].numel() // models, size), parameter[:, None]


def sum_of_rows(x: Tensor, parameter: Tensor) -> Tensor:
    """Of each model, in the shape of the parameter."""
    models = len(parameter) if parameter.ndim == 2 else 1
    rows = x.reshape(models, x.shape[:-1].numel() // models, x.shape[-1])
    return rows.sum(1).reshape(parameter.shape)


def folded(
    models: int, rows: Sequence[tuple[Tensor, int | None]], parameters: Sequence[tuple]
) -> tuple[list[Tensor], list[Tensor | None]]:
    """For a rule of vmap, whose axis becomes that of the models: rows as [M, ..., C], parameters as
    they are if no model has its own, otherwise as [M, C]. Both come with their axes."""

    def in_front(x: Tensor, axis: int | None) -> Tensor:
        return x.expand(models, *x.shape) if axis is None else x.movedim(axis, 0)

    present = [(x, axis) for x, axis in parameters if x is not None]
    alike = all(axis is None and x.ndim == 1 for x, axis in present)

    def for_each(x: Tensor | None, axis: int | None) -> Tensor | None:
        return x if x is None or alike else in_front(x, axis).flatten(0, -2)

    return [in_front(*pair) for pair in rows], [for_each(*pair) for pair in parameters]
