"""Hints of the public surface are complete; whether they are true is said by `make lint`."""

import inspect

import pytest

import bwt
from bwt import geometry, models, ops, tasks, train

MODULES = (geometry, models, ops, tasks, train)


def functions():
    """Public functions, and public methods of public classes."""
    yield from (bwt.capture, bwt.patch, bwt.load, bwt.evaluate.evaluate, bwt.evaluate.predictor)
    for module in MODULES:
        for name in module.__all__:
            public = getattr(module, name)
            if inspect.isfunction(public):
                yield public
            elif inspect.isclass(public):
                for key, method in vars(public).items():
                    if inspect.isfunction(method) and not key.startswith("_"):
                        yield method


@pytest.mark.parametrize("function", list(functions()), ids=lambda f: f.__qualname__)
def test_hints_are_complete(function):
    signature = inspect.signature(function)
    bare = [
        name
        for name, parameter in signature.parameters.items()
        if name != "self" and parameter.annotation is inspect.Parameter.empty
    ]
    assert bare == [] and signature.return_annotation is not inspect.Signature.empty
