"""Running a changed model from the change on.

Below the block that is changed, and at positions before the first that is, a causal model does what
it did before. So the intact model runs once, what its blocks read and gave is kept, and a changed
model begins behind the changed block, at the first position that differs.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from bwt.geometry.intervene import Edit, edited
from bwt.geometry.subject import CHUNK, Subject, blocks

Values = dict[str, Tensor]  # of "embed" and "blocks.i", [B, T, C]
ALL = slice(None)


@dataclass(frozen=True)
class Recording:
    """The intact model on the sequences of a subject."""

    subject: Subject
    inputs: Values
    outputs: Values
    log_q: Tensor  # what it predicts, [B, P, O] in float64

    @classmethod
    def of(cls, subject: Subject) -> "Recording":
        inputs, outputs = {}, {}

        def keep(path: str) -> Edit:
            def edit(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
                inputs[path], outputs[path] = x, y
                return y

            return edit

        model = subject.model
        with ExitStack() as stack:
            for path in ["embed", *(f"blocks.{i}" for i in range(len(blocks(model))))]:
                stack.enter_context(edited(model, path, keep(path)))
            log_q = subject.predict()
        return cls(subject, inputs, outputs, log_q)

    def part(self, rows: slice) -> "Recording":
        """Of some of the sequences."""
        inputs, outputs = (
            {path: x[rows] for path, x in values.items()} for values in (self.inputs, self.outputs)
        )
        return replace(
            self,
            subject=self.subject.part(rows),
            inputs=inputs,
            outputs=outputs,
            log_q=self.log_q[rows],
        )

    def predict(self, path: str, edit: Edit, read: slice = ALL) -> Tensor:
        """What `subject.predict()[:, read]` is while the module at the path is edited: the
        embedding, a block, or a part of one."""
        model = self.subject.model
        if path not in self.outputs:
            return self.predict_within(_layer(path), edited(model, path, edit), read)
        with torch.no_grad():
            y = edit(model.get_submodule(path), self.inputs[path], self.outputs[path])
        return self._onward(path, y, read)

    def predict_within(
        self, layer: int, change: AbstractContextManager, read: slice = ALL
    ) -> Tensor:
        """The same with a change that is made inside `change`, and inside this block of the
        model."""
        path = f"blocks.{layer}"
        with torch.no_grad(), change:
            y = blocks(self.subject.model)[layer](self.inputs[path])
        return self._onward(path, y, read)

    def _onward(self, path: str, y: Tensor, read: slice) -> Tensor:
        """Predictions if the module at the path gives y."""
        positions = self.subject.positions[read]
        first, end = _first_difference(y, self.outputs[path]), int(positions.max()) + 1
        if first >= end:
            return self.log_q[:, read]
        found = []
        # What an edit does to all sequences is done: smaller pieces stay in the caches.
        for start in range(0, len(y), CHUNK):
            rows = slice(start, start + CHUNK)
            rest = _Rest(self.part(rows), path, y[rows, :end], first, positions)
            found.append(rest.logits())
        return torch.cat(found).double().log_softmax(-1)


@dataclass(frozen=True)
class _Rest:
    """What remains to be run behind the module at the path."""

    recording: Recording
    path: str
    y: Tensor  # [B, end, C], what that module gives now
    first: int  # position that differs from the recording
    positions: Tensor  # to read, before the end

    def logits(self) -> Tensor:
        """[B, P, O]. The model's own forward is called, with blocks that do less."""
        subject = self.recording.subject
        model, batch = subject.model, subject.batch
        with torch.no_grad(), ExitStack() as stack:
            if self.path == "embed":
                stack.enter_context(_replaced(model, "embed", lambda x: self.y))
            for layer, block in enumerate(blocks(model)):
                run = partial(self._block, layer, block.forward)
                stack.enter_context(_replaced(model, f"blocks.{layer}", run))
            return model(batch.tokens, batch.features)

    def _block(self, layer: int, forward: Callable[..., Tensor], x: Tensor) -> Tensor:
        changed = _layer(self.path)
        if layer < changed:
            return x
        last = layer == len(blocks(self.recording.subject.model)) - 1
        if layer > changed:
            if last and _takes_positions(forward):
                return forward(x[:, : self._end], self.positions)
            y = self._changed_part(layer, forward, x[:, : self._end])
        else:
            y = self.y
        return y.index_select(1, self.positions) if last else y

    def _changed_part(self, layer: int, forward: Callable[..., Tensor], x: Tensor) -> Tensor:
        if self.first == 0 or not _takes_positions(forward):
            return forward(x)
        before = self.recording.outputs[f"blocks.{layer}"][:, : self.first]
        after = torch.arange(self.first, self._end, device=x.device)
        return torch.cat((before, forward(x, after)), 1)

    @property
    def _end(self) -> int:
        return self.y.shape[1]


def _layer(path: str) -> int:
    """-1 of the embedding, in front of all blocks."""
    return int(path.split(".")[1]) if path.startswith("blocks.") else -1


def _first_difference(y: Tensor, before: Tensor) -> int:
    """The first position at which [B, T, C] differ; T if there is none."""
    differs = (y != before).flatten(2).any(-1).any(0)
    return int(differs.nonzero()[0]) if bool(differs.any()) else len(differs)


def _takes_positions(forward: Callable[..., Tensor]) -> bool:
    return "positions" in inspect.signature(forward).parameters


@contextmanager
def _replaced(model: nn.Module, path: str, run: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Inside the block the module at the path gives run(x), and its own forward is not called."""
    module = model.get_submodule(path)
    # A hook gives the value: an LSTM runs its layers one by one only if they have hooks.
    with edited(model, path, lambda module, x, y: run(x)):
        module.forward = lambda x, *more: x
        try:
            yield
        finally:
            del module.forward
