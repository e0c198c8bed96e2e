"""Builds the native extension. Metadata is in pyproject.toml.

BWT_CUDA=auto|1|0     build bwt._C_cuda: when torch and nvcc have the same CUDA | always | never
BWT_DEBUG=1           -O0 -g
BWT_SANITIZE=1        -O1 -g with the address and undefined sanitizers (see `make sanitize`)
TORCH_CUDA_ARCH_LIST  what bwt._C_cuda is compiled for, such as "8.0;9.0+PTX"
"""

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from setuptools import setup
from setuptools.command import editable_wheel
from torch.utils import cpp_extension

ROOT = Path(__file__).parent
DEBUG = os.environ.get("BWT_DEBUG") == "1"
DEFINES = ["-DPy_LIMITED_API=0x030A0000", "-DTORCH_TARGET_VERSION=0x020a000000000000"]
CXX_FLAGS = ["-std=c++20", "-fvisibility=hidden"]
OPTIMISE = ["-O0", "-g"] if DEBUG else ["-O3"]
# Python's own flags hold -g: a tenth of the time to compile, for what is stripped afterwards.
NO_DEBUG = [] if DEBUG else ["-g0"]
SANITIZE = os.environ.get("BWT_SANITIZE") == "1"
# Python's own flags hold -fwrapv, under which signed overflow is no error.
SANITIZERS = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-wrapv"] if SANITIZE else []
MACOS = sys.platform == "darwin"
# No symbol that nobody asks for (Apple's linker ignores -s), and nothing of where it was built.
STRIP = ["-Wl,-x"] if MACOS else ["-Wl,-s"]
LINKING = STRIP if not (DEBUG or SANITIZE) else SANITIZERS[2:3]
NO_PATHS = [
    f"-ffile-prefix-map={path}=." for path in (ROOT.resolve(), *cpp_extension.include_paths())
]
if MACOS:
    # torch is there for one kind of machine only; Python may be for two, and compile all twice.
    os.environ.setdefault("ARCHFLAGS", f"-arch {platform.machine()}")
HEADERS = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("csrc/**/*.h"))


def sources(pattern: str) -> list[str]:
    """Those of the most code come first: the longest to compile must not be begun last."""

    def code(path: Path) -> int:
        return sum(beside.stat().st_size for beside in path.parent.rglob("*") if beside.is_file())

    found = sorted(ROOT.glob(pattern), key=lambda path: (-code(path), path))
    return [str(path.relative_to(ROOT)) for path in found]


def find_nvcc() -> str | None:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(variable):
            return shutil.which("nvcc", path=str(Path(home) / "bin"))
    return shutil.which("nvcc")


def nvcc_says(*options: str) -> str:
    done = subprocess.run([find_nvcc(), *options], capture_output=True, text=True)
    return done.stdout + done.stderr


def toolkit_libraries() -> list[str]:
    """Folders with libcudart. nvcc may be a wrapper far from its toolkit, so it is asked."""
    top = re.search(r"TOP=(.*)", nvcc_says("-dryrun", "x.cu"))
    home = Path(top[1] if top else Path(find_nvcc()).parents[1]).resolve()
    folders = ("lib64", "lib", "targets/*/lib")
    places = [path.parent for folder in folders for path in home.glob(f"{folder}/libcudart.so")]
    return sorted({str(folder.resolve()) for folder in places})


def same_cuda() -> bool:
    """Whether nvcc belongs to torch's CUDA. A later one may need a later driver than torch does."""
    release = re.search(r"release (\d+)\.", nvcc_says("--version"))
    return release is not None and release[1] == torch.version.cuda.partition(".")[0]


def wants_cuda() -> bool:
    choice = os.environ.get("BWT_CUDA", "auto")
    if choice not in ("auto", "0", "1"):
        raise SystemExit(f"setup.py: BWT_CUDA={choice!r}: expected auto, 1 or 0")
    if choice == "1" and find_nvcc() is None:
        raise SystemExit("setup.py: BWT_CUDA=1 but nvcc was not found: set PATH or CUDA_HOME")
    if choice == "auto":
        return torch.version.cuda is not None and find_nvcc() is not None and same_cuda()
    return choice == "1"


def gencode_flags() -> list[str]:
    """-gencode for each architecture; `+PTX` also embeds PTX for devices that come later."""
    known = re.findall(r"compute_(\d+)", nvcc_says("--list-gpu-arch"))
    # A cubin serves later minor versions too (8.0 also 8.6 and 8.9); 12.0 runs from PTX.
    newest = [arch for arch in ("8.0", "9.0", "10.0") if arch.replace(".", "") in known]
    wanted = os.environ.get("TORCH_CUDA_ARCH_LIST") or ";".join(newest) + "+PTX"
    flags = []
    for arch in re.split(r"[;,\s]+", wanted.strip("; ,")):
        parts = re.fullmatch(r"(\d+)\.(\d)([af]?)(\+PTX)?", arch)
        if parts is None or parts[1] + parts[2] not in known:
            names = ", ".join(f"{number[:-1]}.{number[-1]}" for number in known)
            raise SystemExit(
                f"setup.py: TORCH_CUDA_ARCH_LIST has {arch!r}: this nvcc compiles for {names}; "
                "separate them by ; and append +PTX to embed PTX"
            )
        number = "".join(parts.group(1, 2, 3))
        flags.append(f"-gencode=arch=compute_{number},code=sm_{number}")
        if parts[4]:
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
        flags += [f"-Xcompiler={flag}" for flag in NO_PATHS]
        subprocess.check_call([*command, *flags])
        return str(built)


def extension(name: str, files: list[str], libraries: tuple[str, ...] = ()):
    return cpp_extension.CppExtension(
        name,
        files,
        include_dirs=[str(ROOT / "csrc"), *cpp_extension.include_paths()],
        depends=HEADERS,
        libraries=list(libraries),
        extra_compile_args={
            "cxx": [*CXX_FLAGS, *OPTIMISE, *NO_DEBUG, *DEFINES, *NO_PATHS, *SANITIZERS]
        },
        extra_link_args=list(LINKING),
        py_limited_api=True,
    )


extensions = [extension("bwt._C", sources("csrc/cpu/**/*.cpp"))]
if wants_cuda():
    cuda_sources = [*sources("csrc/cuda/**/*.cpp"), *sources("csrc/cuda/**/*.cu")]
    # The last two hold the shims of the stable ABI that know CUDA; a CPU build of torch has none.
    libraries = ("cudart", "c10_cuda", "torch_cuda") if torch.version.cuda else ("cudart",)
    cuda = extension("bwt._C_cuda", cuda_sources, libraries)
    cuda.library_dirs += toolkit_libraries()
    # For a process whose torch has not loaded a libcudart of this version; LD_LIBRARY_PATH wins.
    cuda.runtime_library_dirs += toolkit_libraries()
    cuda.extra_link_args.append("-Wl,--enable-new-dtags")
    targets = [flag.partition(",code=")[2] for flag in gencode_flags()]
    cuda.extra_compile_args["cxx"].append(f"-DBWT_CUDA_TARGETS={','.join(targets)}")
    extensions.append(cuda)

# The finder of an editable install comes after the search of sys.path. There a folder called bwt,
# such as a clone seen from its parent, is a namespace package, which would be imported instead. A
# regular package on sys.path still comes first.
APPEND = "        sys.meta_path.append(_EditableFinder)\n"
AND_INSERT = "        sys.meta_path.insert(0, _BeforeNamespaces)\n"
BEFORE_NAMESPACES = """

class _BeforeNamespaces:
    @staticmethod
    def find_spec(fullname, path=None, target=None):
        if fullname != "bwt":
            return None
        found = PathFinder.find_spec(fullname, path)
        return None if found and found.origin else _EditableFinder.find_spec(fullname)
"""
template = editable_wheel._FINDER_TEMPLATE
if APPEND not in template:
    raise RuntimeError("setuptools writes another finder of editable installs; adapt setup.py")
editable_wheel._FINDER_TEMPLATE = template.replace(APPEND, APPEND + AND_INSERT) + BEFORE_NAMESPACES

setup(
    ext_modules=extensions,
    cmdclass={"build_ext": BuildExtension},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
