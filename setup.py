"""Builds the native extension. Metadata is in pyproject.toml.

BWT_CUDA=auto|1|0   also build bwt._C_cuda: when torch has CUDA and nvcc is found | always | never
BWT_DEBUG=1         -O0 -g
"""

import os
import shutil
import subprocess
from pathlib import Path

import torch
from setuptools import setup
from torch.utils import cpp_extension

ROOT = Path(__file__).parent
DEBUG = os.environ.get("BWT_DEBUG") == "1"
DEFINES = ["-DPy_LIMITED_API=0x030A0000", "-DTORCH_TARGET_VERSION=0x020a000000000000"]
OPTIMISE = ["-O0", "-g"] if DEBUG else ["-O3"]
HEADERS = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("csrc/**/*.h"))


def sources(pattern: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(pattern))


def find_nvcc() -> str | None:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(variable):
            return shutil.which("nvcc", path=str(Path(home) / "bin"))
    return shutil.which("nvcc")


def cuda_home() -> Path:
    """Where nvcc says its toolkit is: nvcc itself may be a wrapper elsewhere."""
    told = subprocess.run([find_nvcc(), "-dryrun", "x.cu"], capture_output=True, text=True).stderr
    top = next(line for line in told.splitlines() if "TOP=" in line).partition("TOP=")[2]
    return Path(top).resolve()


def wants_cuda() -> bool:
    choice = os.environ.get("BWT_CUDA", "auto")
    if choice not in ("auto", "0", "1"):
        raise SystemExit(f"setup.py: BWT_CUDA={choice!r}: expected auto, 1 or 0")
    if choice == "1" and find_nvcc() is None:
        raise SystemExit("setup.py: BWT_CUDA=1 but nvcc was not found: set PATH or CUDA_HOME")
    if choice == "auto":
        return torch.version.cuda is not None and find_nvcc() is not None
    return choice == "1"


def gencode_flags() -> list[str]:
    """-gencode for each architecture; `+PTX` also embeds PTX for devices that come later."""
    flags = []
    wanted = os.environ.get("TORCH_CUDA_ARCH_LIST", "8.0;9.0;10.0+PTX")
    for arch in wanted.replace(" ", ";").split(";"):
        number = arch.removesuffix("+PTX").replace(".", "")
        flags.append(f"-gencode=arch=compute_{number},code=sm_{number}")
        if arch.endswith("+PTX"):
            flags.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    return flags


class BuildExtension(cpp_extension.BuildExtension):
    """Compiles .cu files with nvcc itself: torch's CUDAExtension refuses where torch has no CUDA,
    although kernels on the stable ABI need nothing of it."""

    def build_extensions(self):
        for extension in self.extensions:
            cuda = [source for source in extension.sources if source.endswith(".cu")]
            extension.sources = [source for source in extension.sources if source not in cuda]
            extension.extra_objects += [self.compile_cuda(extension, source) for source in cuda]
        super().build_extensions()

    def compile_cuda(self, extension, source: str) -> str:
        built = Path(self.build_temp) / (Path(source).stem + ".cu.o")
        built.parent.mkdir(parents=True, exist_ok=True)
        includes = [f"-I{path}" for path in extension.include_dirs]
        command = [find_nvcc(), "-c", source, "-o", str(built), "-std=c++20", *includes]
        flags = [*OPTIMISE, *DEFINES, "-DUSE_CUDA", "-Xcompiler=-fPIC", *gencode_flags()]
        subprocess.check_call([*command, *flags])
        return str(built)


def extension(name: str, files: list[str], libraries: tuple[str, ...] = ()):
    return cpp_extension.CppExtension(
        name,
        files,
        include_dirs=[str(ROOT / "csrc"), *cpp_extension.include_paths()],
        depends=HEADERS,
        libraries=list(libraries),
        extra_compile_args={"cxx": ["-std=c++20", "-fvisibility=hidden", *OPTIMISE, *DEFINES]},
        py_limited_api=True,
    )


extensions = [extension("bwt._C", ["csrc/module.cpp", *sources("csrc/cpu/*.cpp")])]
if wants_cuda():
    cuda_sources = ["csrc/cuda/module.cpp", *sources("csrc/cuda/*.cu")]
    cuda = extension("bwt._C_cuda", cuda_sources, ("cudart",))
    cuda.library_dirs.append(str(cuda_home() / "lib64"))
    extensions.append(cuda)

setup(
    ext_modules=extensions,
    cmdclass={"build_ext": BuildExtension},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
