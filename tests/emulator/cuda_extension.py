"""bwt._C_cuda built by setup.py as on a GPU machine, with stubs of the libraries that only such a
machine has."""

import os
import re
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest
import torch
from helpers import ROOT
from helpers.nvcc import CUOBJDUMP, NVCC
from torch.utils import cpp_extension

HERE = ROOT / "tests/emulator/cuda"
TORCH_LIBRARIES = Path(torch.__file__).parent / "lib"
# The real libraries would be linked and loaded before the stubs.
needs_cpu_torch = pytest.mark.skipif(
    (TORCH_LIBRARIES / "libtorch_cuda.so").exists(), reason="this torch has its own CUDA libraries"
)


def _run(command, **options) -> str:
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _stub(folder: Path, name: str, source: str, *flags: str) -> Path:
    """A shared library made of a file in runtime/; nvcc, which knows its headers, calls g++."""
    command = [NVCC, "-x", "c++", "-shared", "-std=c++20", "-O1", "-cudart=none", "-DUSE_CUDA"]
    includes = [f"-I{path}" for path in cpp_extension.include_paths()]
    linking = ["-Xcompiler=-fPIC", f"-Xlinker=-soname={name}", *flags]
    target = folder / name
    _run([*command, *includes, *linking, "-o", str(target), str(HERE / "runtime" / source)])
    return target


@cache
def folder() -> tempfile.TemporaryDirectory:
    """Removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="bwt-cuda-")


@cache
def torch_stubs() -> list[Path]:
    """The libraries of a CUDA build of torch; the launch code needs nothing of the first."""
    place = Path(folder().name) / "torch"
    place.mkdir()
    return [
        _stub(place, "libc10_cuda.so", "c10_cuda.cpp"),
        _stub(place, "libtorch_cuda.so", "torch_cuda.cpp", f"-L{TORCH_LIBRARIES}", "-ltorch_cpu"),
    ]


@cache
def extension() -> Path:
    """The built library. PTX is embedded for the executor."""
    place = Path(folder().name)
    release = re.search(r"release (\d+\.\d+)", _run([NVCC, "--version"]))[1]
    stubs = torch_stubs()[0].parent
    choices = {"TORCH_CUDA_ARCH_LIST": "8.0+PTX", "LIBRARY_PATH": str(stubs), "MAX_JOBS": "1"}
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("BWT_")}
    options = [f"--build-lib={place / 'lib'}", f"--build-temp={place / 'temp'}"]
    command = [sys.executable, str(HERE / "build_extension.py"), release, *options]
    _run(command, cwd=ROOT, env=inherited | choices)
    (library,) = (place / "lib").glob("bwt/_C_cuda.*so")
    return library


@cache
def cudart_stub() -> Path:
    """The CUDA runtime under the name and symbol version that the extension asks for."""
    name = next(name for name in needed(extension()) if name.startswith("libcudart."))
    place = Path(folder().name)
    versions = place / "versions"
    versions.write_text(f"{name} {{ global: *; }};\n")
    return _stub(place, name, "cudart.cpp", f"-Xlinker=--version-script={versions}")


def needed(library: Path) -> list[str]:
    return re.findall(r"\(NEEDED\).*\[(.+)\]", _run(["readelf", "-d", str(library)]))


def symbols(library: Path) -> set[str]:
    """Names that others have to define, without versions; weak ones need not exist."""
    listed = _run(["nm", "-D", "--undefined-only", str(library)]).splitlines()
    return {line.split()[1].partition("@")[0] for line in listed if line.split()[0] == "U"}


@cache
def ptx() -> str:
    """All kernels of the extension."""
    text = _run([CUOBJDUMP, "-ptx", str(extension())])
    return text[text.index(".version") :]
