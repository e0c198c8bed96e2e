"""Examples in docstrings and pages print what they say, and links lead somewhere."""

import doctest
import importlib
import inspect
import re

import pytest
from helpers import ROOT

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


PAGES = sorted(
    path
    for folder in (".", "benchmarks", "bwt", "kernels", "results", "tests")
    for path in (ROOT / folder).glob("*.md" if folder == "." else "**/*.md")
)


@pytest.mark.parametrize("page", ["README.md", "bwt/ops/README.md"])
def test_examples_of_a_page(page, capsys):
    found = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", (ROOT / page).read_text(), re.S)
    assert found
    for code, printed in found:
        exec(code, {})
        assert capsys.readouterr().out == printed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), f"{page}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(), re.M)
            assert anchor in {_anchor(text) for text in headings}, f"{page}: {target}"


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_readme_can_be_read_in_one_go():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
