"""Reading the values inside a model while it runs, and changing them.

`bwt.capture` is the function below; the file has another name because a module bwt.capture would
hide it.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

Listener = Callable[[Any], None]
Change = Callable[[Tensor], Tensor]


class Tapped(nn.Module):
    """A module with named values inside: `taps` lists the names, `tap` offers a value to whoever
    wants to change or to read it, and the module goes on with what it returns. A module may look
    into `listeners` to skip the work for values nobody wants."""

    taps: tuple[str, ...] = ()
    reported: tuple[str, ...] = ()  # those of them that the module itself does not use
    # name -> list of Change or Listener; empty unless edited or captured
    changes = MappingProxyType({})
    listeners = MappingProxyType({})

    def tap(self, name: str, value: Tensor) -> Tensor:
        for change in self.changes.get(name, ()):
            value = change(value)
        for listener in self.listeners.get(name, ()):
            listener(value)
        return value


@contextmanager
def capture(model: nn.Module, *patterns: str) -> Iterator[dict[str, Tensor]]:
    """The values of the model's last call, by name.

    Names are module paths ("blocks.0.attn": what that module returned) and taps of modules
    ("blocks.0.attn.weights"). In a pattern `*` stands for one part of a name or less, `**` for any
    number of parts. Values are those the model computes with, part of the gradient's graph; the
    result of a call does not change by a bit. A model compiled by `model.compile()` runs eagerly
    inside the block. Leaving removes everything.

    Raises:
        ValueError: a pattern matches nothing; the message lists the names there are.

    >>> import torch, bwt
    >>> model = bwt.models.build("transformer", vocab_size=4, num_outcomes=2, seq_len=3, heads=2)
    >>> with bwt.capture(model, "blocks.*.attn.weights") as trace:
    ...     logits = model(torch.tensor([[0, 1, 2]]))
    >>> trace["blocks.0.attn.weights"].shape
    torch.Size([1, 2, 3, 3])
    """
    sources = _sources(model)
    wanted = _match(patterns, sources)
    trace: dict[str, Tensor] = {}
    with _eager(model), ExitStack() as stack:
        for name in wanted:
            stack.callback(sources[name](_recorder(trace, name)))
        yield trace


@contextmanager
def edited(model: nn.Module, name: str, change: Change) -> Iterator[None]:
    """Inside the block the model goes on with what `change` makes of the value of this tap, and a
    capture sees the changed value. Leaving removes everything.

    Raises:
        ValueError: there is no such tap, or the model does not use its value; the message lists
            those that can be changed.
    """
    usable = {
        f"{path}.{tap}".lstrip("."): (module, tap)
        for path, module in model.named_modules()
        for tap in getattr(module, "taps", ())
        if tap not in module.reported
    }
    if name not in usable:
        known = ", ".join(usable) or "none"
        raise ValueError(f"no tap {name!r} whose value could be changed; this model has: {known}")
    module, tap = usable[name]
    with _eager(model), ExitStack() as stack:
        stack.callback(_attach(module, "changes", tap, change))
        yield


@contextmanager
def _eager(model: nn.Module) -> Iterator[None]:
    """A compiled model would not see what is attached to it."""
    with ExitStack() as stack:
        for module in model.modules():
            if getattr(module, "_compiled_call_impl", None) is not None:
                stack.callback(setattr, module, "_compiled_call_impl", module._compiled_call_impl)
                module._compiled_call_impl = None
        yield


def names(model: nn.Module) -> list[str]:
    """Everything that can be captured."""
    return list(_sources(model))


def _recorder(trace: dict[str, Tensor], name: str) -> Listener:
    return lambda value: trace.__setitem__(name, value)


def _sources(model: nn.Module) -> dict[str, Callable[[Listener], Callable[[], None]]]:
    """name -> function that attaches a listener and returns how to detach it."""
    sources: dict[str, Callable[[Listener], Callable[[], None]]] = {}
    for path, module in model.named_modules():
        if path:
            sources[path] = lambda listener, m=module: _attach_hook(m, listener)
        if isinstance(module, Tapped):
            for tap in module.taps:
                name = f"{path}.{tap}" if path else tap
                sources[name] = lambda x, m=module, t=tap: _attach(m, "listeners", t, x)
    return sources


def _attach_hook(module: nn.Module, listener: Listener) -> Callable[[], None]:
    def hook(module, inputs, output) -> None:
        listener(output)

    return module.register_forward_hook(hook).remove


def _attach(module: Tapped, kind: str, tap: str, function: Callable) -> Callable[[], None]:
    """kind: "changes" or "listeners"."""
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


def _match(patterns: tuple[str, ...], sources: dict) -> list[str]:
    wanted: dict[str, None] = {}
    for pattern in patterns:
        expression = re.escape(pattern).replace(r"\*\*", ".*").replace(r"\*", "[^.]*")
        matches = [name for name in sources if re.fullmatch(expression, name)]
        if not matches:
            known = ", ".join(sources) or "nothing"
            raise ValueError(f"capture: {pattern!r} matches nothing; this model has: {known}")
        wanted.update(dict.fromkeys(matches))
    return list(wanted)
