"""Examples in docstrings and in the README print what they say."""

import doctest
import importlib
import re

import pytest
from nvcc import ROOT

MODULES = [f"bwt.ops.{path.stem}" for path in (ROOT / "bwt/ops").glob("[a-z]*.py")]


@pytest.mark.parametrize("name", [*MODULES, "bwt.runs.loading", "bwt.taps"])
def test_docstring_examples(name):
    # bwt.ops.<op> is the function; the module has to be asked for by name.
    module = importlib.import_module(name)
    result = doctest.testmod(module)
    assert result.attempted > 0 and result.failed == 0


def test_readme_example(capsys):
    text = (ROOT / "README.md").read_text()
    code, printed = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", text, re.S).groups()
    exec(code, {})
    assert capsys.readouterr().out == printed
