"""bwt._C_cuda built by setup.py as on a GPU machine, with stubs of the libraries that only such a
machine has."""

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from helpers import ROOT
from helpers.nvcc import CUOBJDUMP, NVCC
from torch.utils import cpp_extension

from emulator import building

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


def _stub(target: Path, source: str, *flags: str) -> None:
    """Make a shared library of a file in runtime/; nvcc, which knows its headers, calls g++."""
    command = [NVCC, "-x", "c++", "-shared", "-std=c++20", "-O1", "-cudart=none", "-DUSE_CUDA"]
    includes = [f"-I{path}" for path in cpp_extension.include_paths()]
    linking = ["-Xcompiler=-fPIC", f"-Xlinker=-soname={target.name}", *flags]
    _run([*command, *includes, *linking, "-o", str(target), str(HERE / "runtime" / source)])


@cache
def _folder() -> Path:
    """Return the folder with everything that is built, once for all processes."""
    sources = (*building.files(ROOT / "csrc"), *building.files(HERE), ROOT / "setup.py")
    compilers = (building.version(NVCC), building.version(os.environ.get("CXX", "c++")))
    versions = (sys.version, torch.__version__, str(TORCH_LIBRARIES))
    return building.built("cuda", (*sources, *compilers, *versions), _build)


def _build(folder: Path) -> None:
    stubs = folder / "torch"
    stubs.mkdir()
    _stub(stubs / "libc10_cuda.so", "c10_cuda.cpp")
    _stub(stubs / "libtorch_cuda.so", "torch_cuda.cpp", f"-L{TORCH_LIBRARIES}", "-ltorch_cpu")

    release = re.search(r"release (\d+\.\d+)", building.version(NVCC))[1]
    choices = {"TORCH_CUDA_ARCH_LIST": "8.0+PTX", "LIBRARY_PATH": str(stubs), "MAX_JOBS": "1"}
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("BWT_")}
    options = [f"--build-lib={folder / 'lib'}", f"--build-temp={folder / 'temp'}"]
    command = [sys.executable, str(HERE / "build_extension.py"), release, *options]
    _run(command, cwd=ROOT, env=inherited | choices)
    shutil.rmtree(folder / "temp")
    (library,) = (folder / "lib").glob("bwt/_C_cuda.*so")

    # The CUDA runtime under the name and symbol version that the extension asks for.
    name = next(name for name in needed(library) if name.startswith("libcudart."))
    (folder / "cudart").mkdir()
    symbol_versions = folder / "versions"
    symbol_versions.write_text(f"{name} {{ global: *; }};\n")
    script = f"-Xlinker=--version-script={symbol_versions}"
    _stub(folder / "cudart" / name, "cudart.cpp", script)
    (folder / "kernels.ptx").write_text(_run([CUOBJDUMP, "-ptx", str(library)]))


def torch_stubs() -> list[Path]:
    """Return the libraries of a CUDA build of torch; the launch code needs nothing of the first."""
    return [_folder() / "torch" / name for name in ("libc10_cuda.so", "libtorch_cuda.so")]


def extension() -> Path:
    """Return the built library. PTX is embedded for the executor."""
    (library,) = (_folder() / "lib").glob("bwt/_C_cuda.*so")
    return library


def cudart_stub() -> Path:
    (library,) = (_folder() / "cudart").iterdir()
    return library


def needed(library: Path) -> list[str]:
    return re.findall(r"\(NEEDED\).*\[(.+)\]", _run(["readelf", "-d", str(library)]))


def symbols(library: Path) -> set[str]:
    """Names that others have to define, without versions; weak ones need not exist."""
    listed = _run(["nm", "-D", "--undefined-only", str(library)]).splitlines()
    return {line.split()[1].partition("@")[0] for line in listed if line.split()[0] == "U"}


@cache
def ptx() -> str:
    """Return the PTX of all kernels of the extension."""
    text = (_folder() / "kernels.ptx").read_text()
    return text[text.index(".version") :]
