"""Examples in docstrings and in the README print what they say."""

import doctest
import importlib
import inspect
import re

import pytest
from nvcc import ROOT

import bwt

MODULES = [f"bwt.ops.{path.stem}" for path in (ROOT / "bwt/ops").glob("[a-z]*.py")]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    # bwt.ops.<op> is the function; the module has to be asked for by name.
    module = importlib.import_module(name)
    result = doctest.testmod(module)
    assert result.attempted > 0 and result.failed == 0


@pytest.mark.parametrize("name", bwt.__all__)
def test_every_public_name_has_an_example_that_works(name, monkeypatch):
    """Of a module: its own docstring, and those of what it defines."""
    for registry in (bwt.tasks.TASKS, bwt.models.MODELS):
        monkeypatch.setattr(registry, "registered", {})  # what examples register does not stay
    public = getattr(bwt, name)
    finder = doctest.DocTestFinder(exclude_empty=True)
    runner = doctest.DocTestRunner()
    module = public if inspect.ismodule(public) else inspect.getmodule(public)
    for test in finder.find(public, public.__name__, module=module):
        runner.run(test)
    assert ">>>" in public.__doc__
    assert runner.tries > 0 and runner.summarize(verbose=False).failed == 0


def test_readme_example(capsys):
    text = (ROOT / "README.md").read_text()
    code, printed = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", text, re.S).groups()
    exec(code, {})
    assert capsys.readouterr().out == printed
