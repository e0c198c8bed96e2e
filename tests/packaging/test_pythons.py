"""The versions of Python that pyproject.toml names: those that are on this machine, and the grammar
of the oldest in any case. torch is there for the Python that runs the tests only."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib
import torch
from helpers import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSIONS = [x[-4:] for x in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", x)]
FOLDERS = ("bwt", "kernels", "benchmarks", "examples")


def find(version):
    """An interpreter of this version, if there is one."""
    shelf = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    places = [shutil.which(f"python{version}"), *shelf.glob(f"{version}.*/bin/python")]
    for path in filter(None, places):
        done = subprocess.run([path, "--version"], capture_output=True, text=True)
        if done.stdout.startswith(f"Python {version}."):
            return path
    return None


@pytest.fixture(params=VERSIONS)
def python(request):
    path = find(request.param)
    if path is None:
        pytest.skip(f"there is no Python {request.param} here")

    def run(*words):
        inherited = {key: x for key, x in os.environ.items() if not key.startswith("PYTHON")}
        done = subprocess.run(
            [path, *words],
            capture_output=True,
            text=True,
            env={**inherited, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def sources():
    found = [path for name in FOLDERS for path in (ROOT / name).rglob("*.py")]
    assert len(found) > 150
    return [*found, ROOT / "setup.py"]


def test_the_versions_are_those_that_can_install_it():
    assert VERSIONS == ["3.10", "3.11", "3.12", "3.13"]
    assert PROJECT["requires-python"] == f">={VERSIONS[0]}"
    assert f"{sys.version_info[0]}.{sys.version_info[1]}" in VERSIONS


def test_the_oldest_can_read_every_file():
    for path in sources():
        ast.parse(path.read_text(), str(path), feature_version=(3, 10))


def test_an_interpreter_can_compile_every_file(python):
    code = "import sys; [compile(open(x).read(), x, 'exec') for x in sys.argv[1:]]; print('all')"
    assert python("-W", "error", "-c", code, *map(str, sources())) == "all\n"


def test_the_command_answers(python):
    assert python("-m", "bwt", "--version").startswith("bwt ")
    assert "COMMAND" in python("-m", "bwt", "--help")


def test_one_native_library_serves_them_all(python):
    """By the limited API: no symbol of one version. Its ops are registered with libtorch, which
    knows no Python."""
    (library,) = (ROOT / "bwt").glob("_C.abi3.so")
    code = """
import ctypes, importlib.util, sys
for name in ("libc10.so", "libtorch_cpu.so"):
    ctypes.CDLL(f"{sys.argv[2]}/{name}", ctypes.RTLD_GLOBAL)
spec = importlib.util.spec_from_file_location("_C", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.simd())
"""
    from bwt import _C

    libraries = Path(torch.__file__).parent / "lib"
    assert python("-c", code, str(library), str(libraries)).strip() == _C.simd()
