"""Imports go one way: what a room of the house may know of the others."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# From the ground up: a room knows those above it in this list, and none below.
ROOMS = (
    *(
        "reference",
        "options",
        "registry",
        "progress",
        "curve",
        "hook_names",
        "taps",
        "paper",
        "records",
        "streams",
        "threads",
    ),
    *("kernels", "ops", "tasks", "models", "evaluate", "runs"),
    *("tuning", "train", "geometry", "report", "sweep", "reproduce", "cli"),
)
# What the package itself and `python -m bwt` load is their business.
DOORS = {"__init__", "__main__"}


def modules() -> dict[str, Path]:
    """Name as imported -> file."""
    found = {}
    for top, folder in (("bwt", ROOT / "bwt"), ("bwt.kernels", ROOT / "kernels")):
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            found[".".join((top, *parts))] = path
    return found


def imported(tree: ast.AST, known: set[str]) -> set[str]:
    """Modules of ours that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            deeper = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {node.module, *deeper & known}
    return {name for name in names if name.split(".")[0] == "bwt"}


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def arrows() -> set[tuple[str, str]]:
    files = modules()
    known = set(files)
    return {
        (module, other)
        for module, path in files.items()
        for other in imported(ast.parse(path.read_text()), known)
    }


def test_only_kernels_import_each_other_relatively():
    """Elsewhere such an import could leave its room unseen."""
    relative = {
        room(module)
        for module, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.level
    }
    assert relative <= {"kernels"}


def points_back(module: str, other: str) -> bool:
    here, there = room(module), room(other)
    if here in DOORS or there in DOORS or there.startswith("_C"):
        return False
    return ROOMS.index(there) > ROOMS.index(here)


def test_no_arrow_points_back():
    assert sorted(pair for pair in arrows() if points_back(*pair)) == []


def test_an_arrow_that_points_back_would_be_seen():
    planted = ast.parse("def late():\n    from bwt import cli\n    from bwt.train import loop")
    known = set(modules())
    assert imported(planted, known) == {"bwt", "bwt.cli", "bwt.train", "bwt.train.loop"}
    assert points_back("bwt.reproduce.plan", "bwt.cli") and points_back("bwt.runs.x", "bwt.train")
    assert not points_back("bwt.cli.commands.train", "bwt.train")


def test_every_room_has_its_place():
    assert {room(name) for name in modules()} - DOORS == set(ROOMS)


@pytest.mark.parametrize("module", ["bwt", "bwt.ops", "bwt.cli", "bwt.train"])
def test_import_leaves_the_compiler_of_torch_unloaded(module):
    """torch._dynamo and sympy take longer to load than torch itself."""
    heavy = ("torch._dynamo", "torch._inductor", "sympy")
    code = f"import sys, {module}; print(*(name for name in {heavy} if name in sys.modules))"
    loaded = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert (loaded.stdout.split(), loaded.stderr) == ([], "")
