"""The weights of a run, or of several that train together, in one buffer.

A row [N] for each model: clipping, the optimizer, averages and messages between processes work on
whole rows, however many parameters a model has. The parameters of the models are views of their
rows, so that whoever has a model sees the weights as they are.

In bfloat16 the models compute with a rounded copy of the buffer, made once in each step; what is
trained, evaluated and saved is the float32 original.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

ALIGNED = 32  # elements: every parameter begins where a kernel likes it best


class Place(NamedTuple):
    start: int
    shape: torch.Size

    @property
    def size(self) -> int:
        return self.shape.numel()


class Alike(NamedTuple):
    """Matrices of one shape, at equal distances from each other."""

    start: int
    number: int
    distance: int
    shape: torch.Size


class Layout:
    """Where each parameter lies in a row: first those of AdamW, then the matrices of Muon, those
    of one shape beside each other, then what is not trained."""

    def __init__(self, model: nn.Module, *, muon: bool):
        self.places: dict[str, Place] = {}
        self.alike: list[Alike] = []
        self.length = 0
        parameters = dict(model.named_parameters())
        matrices: dict[torch.Size, list[str]] = {}
        rest, still = [], []
        for name, p in parameters.items():
            if not p.requires_grad:
                still.append(name)
            elif muon and p.ndim == 2 and re.fullmatch(r"blocks\..*\.weight", name):
                matrices.setdefault(p.shape, []).append(name)
            else:
                rest.append(name)
        self._put(rest, parameters)
        self.adamw = slice(0, self.length)
        for shape, names in matrices.items():
            start = self.length
            self._put(names, parameters)
            distance = (self.length - start) // len(names)
            self.alike.append(Alike(start, len(names), distance, shape))
        self.muon = slice(self.adamw.stop, self.length)
        self.trained = slice(0, self.length)
        self._put(still, parameters)

    def _put(self, names: list[str], parameters: Mapping[str, Tensor]) -> None:
        for name in names:
            place = Place(self.length, parameters[name].shape)
            self.places[name] = place
            self.length += -(-place.size // ALIGNED) * ALIGNED

    @property
    def trained_names(self) -> list[str]:
        return [name for name, place in self.places.items() if place.start < self.trained.stop]

    def views(self, rows: Tensor, names: Sequence[str] | None = None) -> dict[str, Tensor]:
        """Parameters [..., *shape] of rows [..., N], which are not copied."""
        found = {}
        for name in self.places if names is None else names:
            place = self.places[name]
            part = rows[..., place.start : place.start + place.size]
            found[name] = part.view(*rows.shape[:-1], *place.shape)
        return found

    def matrices(self, rows: Tensor, alike: Alike) -> Tensor:
        """[M, n, rows, columns] of a buffer [M, N] whose first column is that of the layout."""
        size = (len(rows), alike.number, *alike.shape)
        strides = (rows.stride(0), alike.distance, alike.shape[1], 1)
        return rows.as_strided(size, strides, rows.storage_offset() + alike.start)


class Weights:
    """Takes in the parameters of models of one structure; they are views of its rows from then
    on. `master` [M, N] is what is trained, `used` what the models compute with."""

    def __init__(self, models: Sequence[nn.Module], *, muon: bool, dtype: torch.dtype):
        self.layout = Layout(models[0], muon=muon)
        device = next(models[0].parameters()).device
        shape = (len(models), self.layout.length)
        self.master = torch.zeros(shape, device=device)
        self.gradient = torch.zeros(len(models), self.layout.trained.stop, device=device)
        self.gradients = self.layout.views(self.gradient, self.layout.trained_names)
        self.used = self.master
        if dtype != torch.float32:
            self.used = torch.zeros_like(self.master, dtype=dtype)
        for row, model in enumerate(models):
            places = self.layout.views(self.master[row])
            with torch.no_grad():
                for name, p in model.named_parameters():
                    places[name].copy_(p)
        self.refresh()
        for row, model in enumerate(models):
            self.point(model, row)

    def refresh(self) -> None:
        """What the models compute with is rounded from what is trained."""
        if self.used is not self.master:
            self.used.copy_(self.master)

    def point(self, model: nn.Module, row: int, source: Tensor | None = None) -> None:
        """The model's parameters are those of the row, by default those it trains with."""
        views = self.layout.views((self.used if source is None else source)[row])
        for name, p in model.named_parameters():
            p.data = views[name]

    @contextmanager
    def pointing(self, model: nn.Module, row: int, source: Tensor) -> Iterator[None]:
        """Inside, the model has the weights of another buffer [M, N]."""
        self.point(model, row, source)
        try:
            yield
        finally:
            self.point(model, row)

    def leaves(self) -> dict[str, Tensor]:
        """Parameters [M, *shape] of all models at once, which take gradients."""
        found = self.layout.views(self.used.detach())
        for name in self.layout.trained_names:
            found[name].requires_grad_()
        return found

    def collect(self, gradients: dict[str, Tensor | None]) -> None:
        """Gradients [M, *shape] or, of a single model, [*shape] into the rows of `gradient`; zeros
        where there is none."""
        copy_or_zero(list(self.gradients.values()), [gradients[name] for name in self.gradients])


def copy_or_zero(views: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """Gradients, of which at least one is there, to their places; zeros where there is none."""
    present = [(x, g) for x, g in zip(views, gradients, strict=True) if g is not None]
    torch._foreach_copy_([x for x, _ in present], [g.view_as(x) for x, g in present])
    for x, g in zip(views, gradients, strict=True):
        if g is None:
            x.zero_()
