"""Reading the values inside a model while it runs, and changing them.

`bwt.capture` and `bwt.patch` are the functions below; the file has another name because a module
bwt.capture would hide the function.
"""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor, nn

from bwt.hook_names import INPUT, OUTPUT, counterparts

Listener = Callable[[Any], None]
Change = Callable[[Tensor], Tensor]


class Tapped(nn.Module):
    """A module with named values inside: `taps` lists the names, `tap` offers a value to whoever
    wants to change or to read it, and the module goes on with what it returns. A module may look
    into `listeners` to skip the work for values nobody wants."""

    taps: tuple[str, ...] = ()
    reported: tuple[str, ...] = ()  # those of them that the module itself does not use
    # name -> list of Change or Listener; empty unless patched or captured
    changes: Mapping[str, list[Change]] = MappingProxyType({})
    listeners: Mapping[str, list[Listener]] = MappingProxyType({})

    def tap(self, name: str, value: Tensor) -> Tensor:
        for change in self.changes.get(name, ()):
            value = change(value)
        for listener in self.listeners.get(name, ()):
            listener(value)
        return value


@contextmanager
def capture(model: nn.Module, *patterns: str) -> Iterator[dict[str, Tensor]]:
    """The values of the model's last call, by name.

    Names are module paths ("blocks.0.attn": what that module returned), taps of modules
    ("blocks.0.attn.weights"), and those of TransformerLens that have a counterpart
    ("blocks.0.attn.hook_pattern", see bwt/hook_names.py), whose values have the axes that they have
    there. In a pattern `*` stands for one part of a name or less, `**` for any number of parts;
    names of TransformerLens are only matched by a pattern with `hook_` in it. Values are those the
    model computes with, part of the gradient's graph; the result of a call does not change by a
    bit. A model compiled by `model.compile()` runs eagerly inside the block. Leaving removes
    everything.

    Raises:
        ValueError: a pattern matches nothing; the message lists the names there are.

    >>> import torch, bwt
    >>> model = bwt.models.build("transformer", vocab_size=4, num_outcomes=2, seq_len=3, heads=2)
    >>> with bwt.capture(model, "blocks.*.attn.weights", "blocks.0.hook_resid_post") as trace:
    ...     logits = model(torch.tensor([[0, 1, 2]]))
    >>> trace["blocks.0.attn.weights"].shape
    torch.Size([1, 2, 3, 3])
    >>> trace["blocks.0.hook_resid_post"].shape
    torch.Size([1, 3, 64])
    """
    places = _places(model)
    wanted = dict.fromkeys(name for x in patterns for name in _matches("capture", x, places))
    trace: dict[str, Tensor] = {}
    with _eager(model), ExitStack() as stack:
        for name in wanted:
            stack.callback(_attach(places[name], "listeners", _recorder(trace, name, places[name])))
        yield trace


@contextmanager
def patch(model: nn.Module, changes: Mapping[str, Change]) -> Iterator[None]:
    """Inside the block the model goes on with what the functions make of its values.

    Names and patterns are those of `bwt.capture`. A function is given the value and returns
    another of the same shape, without writing into the one it was given; gradients flow through
    what it does. A capture, inside the block or around it, sees changed values and what follows
    from them. Of two patches of one value, the outer comes first. A model compiled by
    `model.compile()` runs eagerly inside the block. Leaving removes everything.

    Raises:
        ValueError: there is no such value, or the model only reports it and does not go on with it;
            the message names the nearest that can be changed. Also, when the model is called: a
            function returned something else than a tensor of that shape; and on leaving: the model
            was called and never came by a value that should have been changed.

    >>> import torch, bwt
    >>> model = bwt.models.build("transformer", vocab_size=4, num_outcomes=2, seq_len=3, heads=2)
    >>> tokens = torch.tensor([[0, 1, 2]])
    >>> with bwt.patch(model, {"blocks.0.attn.k": torch.zeros_like}):
    ...     with bwt.capture(model, "blocks.0.attn.weights") as trace:
    ...         logits = model(tokens)
    >>> trace["blocks.0.attn.weights"][0, 0, 2]  # keys that are all alike: it looks everywhere
    tensor([0.3333, 0.3333, 0.3333], grad_fn=<SelectBackward0>)
    """
    places = {name: place for name, place in _places(model).items() if place.used}
    missed: set[str] = set()
    called: list[bool] = []
    with _eager(model), ExitStack() as stack:
        for pattern, change in changes.items():
            for name in _matches("patch", pattern, places):
                missed.add(name)
                function = _changer(name, change, places[name], missed)
                stack.callback(_attach(places[name], "changes", function))
        root = _Place(model, OUTPUT)
        stack.callback(_attach(root, "listeners", lambda value: called.append(True)))
        yield
    if called and missed:
        raise ValueError(f"patch: the model ran and never came by {', '.join(sorted(missed))}")


def names(model: nn.Module) -> list[str]:
    """Everything that can be captured, by its name here."""
    return [name for name, place in _places(model).items() if not place.foreign]


class _Place(NamedTuple):
    """Where a value passes."""

    module: nn.Module
    tap: str  # one of the module's taps, INPUT or OUTPUT
    foreign: bool = False  # a name of TransformerLens
    heads_last: bool = False  # as [B, T, H, D] under this name

    @property
    def used(self) -> bool:
        """Whether the model goes on with the value."""
        return self.tap not in getattr(self.module, "reported", ())

    def seen(self, value: Any) -> Any:
        """The value as it is under this name, or back."""
        return value.transpose(1, 2) if self.heads_last else value


def _places(model: nn.Module) -> dict[str, _Place]:
    places = {}
    for path, module in model.named_modules():
        if path and type(module).forward is not nn.Module.forward:  # a list is never called
            places[path] = _Place(module, OUTPUT)
        for tap in getattr(module, "taps", ()):
            places[f"{path}.{tap}".lstrip(".")] = _Place(module, tap)
    for name, there in counterparts(model):
        module = model.get_submodule(there.module)
        places[name] = _Place(module, there.tap, True, there.heads_last)
    return places


def _matches(caller: str, pattern: str, places: dict[str, _Place]) -> list[str]:
    expression = re.escape(pattern).replace(r"\*\*", ".*").replace(r"\*", "[^.]*")
    foreign = "hook_" in pattern
    known = [name for name, place in places.items() if place.foreign == foreign]
    matches = [name for name in known if re.fullmatch(expression, name)]
    if matches:
        return matches
    nearest = difflib.get_close_matches(pattern, places, n=4, cutoff=0.4)
    near = f"nearest are {', '.join(nearest)}; " if nearest else ""
    what = "matches nothing" if caller == "capture" else "matches nothing that could be changed"
    raise ValueError(
        f"{caller}: {pattern!r} {what}; {near}this model has: {', '.join(known) or 'nothing'}"
    )


def _recorder(trace: dict[str, Tensor], name: str, place: _Place) -> Listener:
    return lambda value: trace.__setitem__(name, place.seen(value))


def _changer(name: str, change: Change, place: _Place, missed: set[str]) -> Change:
    def changed(value: Any) -> Any:
        missed.discard(name)
        given = place.seen(value)
        made = change(given)
        if isinstance(given, Tensor) and getattr(made, "shape", None) != given.shape:
            got = list(made.shape) if isinstance(made, Tensor) else type(made).__name__
            raise ValueError(
                f"patch: the function for {name!r} must return a tensor {list(given.shape)}, got "
                f"{got}"
            )
        return place.seen(made)

    return changed


def _attach(place: _Place, kind: str, function: Callable[[Any], Any]) -> Callable[[], None]:
    """kind: "changes" or "listeners". Returns how to detach it."""
    module, tap = place.module, place.tap
    if tap in (INPUT, OUTPUT):
        doors = module.__dict__.setdefault("_doors", {})
        if tap not in doors:
            doors[tap] = _Door(module, tap)
        return doors[tap].attach(kind, function)
    # An instance attribute hides the class's empty table; the last to leave removes it.
    table = module.__dict__.setdefault(kind, {})
    table.setdefault(tap, []).append(function)

    def detach() -> None:
        table[tap].remove(function)
        if not table[tap]:
            del table[tap]
        if not table:
            del module.__dict__[kind]

    return detach


class _Door:
    """Where a module is entered or left: one hook for all who are there, so that whoever reads sees
    what all changes have made."""

    def __init__(self, module: nn.Module, tap: str):
        self.module, self.tap = module, tap
        self.functions: dict[str, list[Callable[[Any], Any]]] = {"changes": [], "listeners": []}
        if tap == INPUT:
            self.hook = module.register_forward_pre_hook(self._enter)
        else:
            self.hook = module.register_forward_hook(self._leave)

    def attach(self, kind: str, function: Callable[[Any], Any]) -> Callable[[], None]:
        self.functions[kind].append(function)

        def detach() -> None:
            self.functions[kind].remove(function)
            if not any(self.functions.values()):
                self._close()

        return detach

    def _close(self) -> None:
        self.hook.remove()
        doors = self.module.__dict__["_doors"]
        del doors[self.tap]
        if not doors:
            del self.module.__dict__["_doors"]

    def _enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._pass(inputs[0]), *inputs[1:])

    def _leave(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        return self._pass(output)

    def _pass(self, value: Any) -> Any:
        for change in self.functions["changes"]:
            value = change(value)
        for listener in self.functions["listeners"]:
            listener(value)
        return value


@contextmanager
def _eager(model: nn.Module) -> Iterator[None]:
    """A compiled model would not see what is attached to it."""
    with ExitStack() as stack:
        for module in model.modules():
            if getattr(module, "_compiled_call_impl", None) is not None:
                stack.callback(setattr, module, "_compiled_call_impl", module._compiled_call_impl)
                module._compiled_call_impl = None
        yield
