"""Reading the values inside a model while it runs.

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


class Tapped(nn.Module):
    """A module with named values inside: `taps` lists the names, `tap` offers a value to whoever
    listens. A module may look into `listeners` to skip the work for values nobody wants."""

    taps: tuple[str, ...] = ()
    listeners = MappingProxyType({})  # name -> list of Listener; empty unless captured

    def tap(self, name: str, value: Tensor) -> Tensor:
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
    with ExitStack() as stack:
        for module in model.modules():
            if getattr(module, "_compiled_call_impl", None) is not None:
                stack.callback(setattr, module, "_compiled_call_impl", module._compiled_call_impl)
                module._compiled_call_impl = None
        for name in wanted:
            stack.callback(sources[name](_recorder(trace, name)))
        yield trace


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
                sources[name] = lambda listener, m=module, t=tap: _attach_tap(m, t, listener)
    return sources


def _attach_hook(module: nn.Module, listener: Listener) -> Callable[[], None]:
    def hook(module, inputs, output) -> None:
        listener(output)

    return module.register_forward_hook(hook).remove


def _attach_tap(module: Tapped, tap: str, listener: Listener) -> Callable[[], None]:
    # An instance attribute hides the class's empty table; the last to leave removes it.
    listeners = module.__dict__.setdefault("listeners", {})
    listeners.setdefault(tap, []).append(listener)

    def detach() -> None:
        listeners[tap].remove(listener)
        if not listeners[tap]:
            del listeners[tap]
        if not listeners:
            del module.__dict__["listeners"]

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
