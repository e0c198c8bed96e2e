"""Changing the values inside a model while it runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

Edit = Callable[[nn.Module, Tensor, Tensor], Tensor]  # (module, its input, its output) -> output


@contextmanager
def edited(model: nn.Module, path: str, edit: Edit) -> Iterator[None]:
    """Inside the block the module at `path` returns what `edit` makes of its output. A model
    compiled by `model.compile()` runs eagerly. Leaving restores everything.

    Raises:
        ValueError: there is no such module.
    """
    modules = dict(model.named_modules())
    if path not in modules:
        raise ValueError(f"no module {path!r}; there are {', '.join(filter(None, modules))}")

    def hook(module: nn.Module, inputs: tuple, output: Tensor) -> Tensor:
        return edit(module, inputs[0], output)

    compiled = model._compiled_call_impl
    handle = modules[path].register_forward_hook(hook)
    model._compiled_call_impl = None
    try:
        yield
    finally:
        handle.remove()
        model._compiled_call_impl = compiled
